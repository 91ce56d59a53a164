"""vit export --at: the rule of the choice, what is measured on which images, and refusals."""

import dataclasses
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.command import CLASSES, TINY, Vit, saved
from vit.extensions.compute.timing import Times
from vit.extensions.reports.intervals import Paired
from vit.extensions.serving import engines, quantize
from vit.extensions.serving.choice import Candidate, choose
from vit.extensions.serving.write import export
from vit.inference.classifier import load

OWN = (16, 16)


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """int8 files are the float32 ones under another name: no NNCF, which takes seconds."""

    def copy(plain: Path, file: Path, pixels: Any, about: Any) -> None:
        model = engines.openvino_core().read_model(plain)
        quantize.save_openvino(model, about, file)

    monkeypatch.setitem(quantize.QUANTIZERS, "openvino", copy)


def candidate(
    milliseconds: float, lost: int, gained: int, count: int = 2_000, *, is_model: bool = False
) -> Candidate:
    times = Times(tuple(np.full(5, milliseconds / 1e3)))
    pair = Paired(count, count // 2, lost, gained)
    return Candidate(Path("x.xml"), "int8", OWN, times, pair, is_model)


def upper(lost: float, gained: float, count: int) -> float:
    """Upper end in points: Bonett and Price (2012), equation of the adjusted Wald interval."""
    p12, p21 = (lost + 1) / (count + 2), (gained + 1) / (count + 2)
    return 100 * (p12 - p21 + 1.959964 * np.sqrt((p12 + p21 - (p12 - p21) ** 2) / (count + 2)))


def test_the_choice_is_the_lowest_bound_among_those_in_time_by_the_closed_form() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        planted = [(9.0, 0, 0)] + [
            (random.uniform(1, 10), *random.integers(0, 40, 2).tolist()) for _ in range(5)
        ]
        candidates = [candidate(*each, is_model=i == 0) for i, each in enumerate(planted)]
        limit, most = random.uniform(2, 10), random.uniform(0.2, 1.5)
        bounds = [0.0, *(upper(lost, gained, 2_000) for _, lost, gained in planted[1:])]
        fitting = [
            (bound, time, place)
            for place, (bound, (time, *_)) in enumerate(zip(bounds, planted, strict=True))
            if time <= limit and bound < most
        ]
        chosen = choose(candidates, limit / 1e3, most)
        expected = candidates[min(fitting)[2]] if fitting else None
        assert chosen is expected


def test_the_model_itself_is_chosen_where_it_is_in_time_and_else_the_faster_of_two_equals() -> None:
    whole = candidate(9, 0, 0, is_model=True)
    slow, fast = candidate(8, 1, 1), candidate(7, 1, 1)
    assert choose([whole, slow, fast], 0.01, 0.5) is whole
    assert choose([whole, slow, fast], 0.0085, 0.5) is fast
    assert choose([whole, slow, fast], 0.001, 0.5) is None
    better = candidate(8, 0, 60)  # larger images: surely more accurate
    assert choose([whole, better], 0.01, 0.5) is better


@pytest.mark.parametrize(("lost", "gained", "count"), [(3, 2, 200), (10, 9, 500), (0, 0, 40)])
def test_the_number_of_photos_is_the_first_at_which_the_bound_falls_below(
    lost: int, gained: int, count: int
) -> None:
    needed = candidate(1, lost, gained, count).needs(1.0)
    assert needed is not None and needed > count
    shares = lost / count, gained / count
    assert upper(*(needed * share for share in shares), needed) < 1.0
    assert upper(*((needed - 1) * share for share in shares), needed - 1) >= 1.0
    assert candidate(1, lost, gained, count).verdict(1.0, 1.0) == f"needs {needed:,} photos"


def test_a_drop_above_the_limit_needs_no_more_photos() -> None:
    losing = candidate(1, 8, 2, 200)
    assert losing.needs(3.0) is None and losing.verdict(1.0, 3.0) == "loses too much"
    assert losing.verdict(0.0005, 3.0) == "too slow"


def test_a_model_is_exported_at_the_precision_and_size_that_are_printed(
    vit: Vit, photos: Path, tmp_path: Path
) -> None:
    pytest.importorskip("nncf")
    model = saved(tmp_path / "model")
    other = shutil.copytree(photos, tmp_path / "other")
    for path in other.rglob("*.jpg"):
        with Image.open(path) as image:
            image.rotate(180).save(path)
    args = ("--at", "60s", "--sizes", "24", "8x16", "--data", photos, "--int8", other)
    done = vit("export", model, "x.xml", *args, "--max-drop", "99.5", "--json")
    assert done.status == 0, done.err
    printed = json.loads(done.out)
    assert printed["images"] == printed["calibration"] == 36 and printed["limit_ms"] == 60_000
    rows = printed["candidates"]
    precisions = ["float32", *(["bfloat16"] if engines.computes_bfloat16() else []), "int8"]
    tried = itertools.product([[16, 16], [24, 24], [8, 16]], precisions)
    assert [(row["image_size"], row["precision"]) for row in rows] == [*tried]
    row = rows[printed["chosen"]]
    assert row["verdict"] == "chosen" and all(
        row["interval"][1] <= each["interval"][1] for each in rows
    )
    file = load("x.xml")
    assert file.preprocess.image_size == tuple(row["image_size"])
    assert file.runtime is not None and file.runtime.endswith(row["precision"])
    paths = sorted(photos.rglob("*.jpg"))
    right = [p.classes[0] == q.parent.name for p, q in zip(file.predict(paths), paths, strict=True)]
    assert row["accuracy"] == pytest.approx(np.mean(right))
    assert {Path(name).name for name in printed["files"]} == {"x.xml", "x.bin", "x_openvino.py"}
    assert printed["proof"]["count"] == 36 and printed["proof"]["difference"] < 0.5


def test_too_few_photos_leave_no_file_and_the_number_that_is_needed(
    vit: Vit, photos: Path, tmp_path: Path, copied: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = saved(tmp_path / "model")
    monkeypatch.setattr(Times, "median", property(lambda times: 1.0))
    monkeypatch.setattr(
        Candidate, "bound", property(lambda self: self.accuracy.interval[1])
    )  # of the model itself too: nothing else may differ
    args = ("--data", photos, "--int8", shutil.copytree(photos, tmp_path / "copy"))
    done = vit("export", model, "x.xml", "--at", "2s", *args)
    assert done.status == 2 and "no image of" in done.err  # all are in the calibration
    done = vit("export", model, "x.xml", "--at", "2s", "--data", photos)
    needed = candidate(1, 0, 0, 29).needs(0.5)  # a fifth of 36 is put aside
    assert done.status == 2 and not list(Path().glob("x*"))
    assert "int8 is not tried: 7 pictures to calibrate on are fewer than 32" in done.err
    text = "29 images are too few to say that less than 0.5 points are lost"
    assert f"{text}; {needed:,} are enough" in done.err
    assert f"needs {needed:,} photos" in done.out


def test_a_time_that_nothing_meets_prints_the_table_and_the_nearest(
    vit: Vit, photos: Path, tmp_path: Path, copied: None
) -> None:
    model = saved(tmp_path / "model")
    done = vit("export", model, "x.xml", "--at", "0.0001ms", "--data", photos, "--json")
    assert done.status == 2 and "the nearest is float32 at 16x16 with" in done.err
    rows = json.loads(done.out)["candidates"]
    assert [row["verdict"] for row in rows] == ["too slow"] and not list(Path().glob("x*"))


def test_images_that_the_run_learned_are_left_out_and_its_val_is_the_default(
    vit: Vit, photos: Path, copied: None
) -> None:
    done = vit("fit", "-c", "cifar10", "--data", photos, *TINY, "--steps=1", "--run-dir=run")
    assert done.status == 0, done.err
    counts = json.loads(Path("run/summary.json").read_text())["images"]
    at = ("--at", "60s", "--max-drop", "99.9", "--json")
    done = vit("export", "run", *at)
    printed = json.loads(done.out)
    assert done.status == 0 and Path("run/model.xml").is_file()
    assert (printed["images"], printed["calibration"]) == (counts["val"], counts["train"])
    done = vit("export", "run", *at, "--data", photos, "--overwrite")
    rest = 36 - counts["train"]
    assert f"{counts['train']} of 36 images were in the training of run" in done.err
    assert json.loads(done.out)["images"] == rest - rest // 5


def test_a_file_of_bfloat16_is_computed_in_it_where_the_cpu_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")
    export(load(saved(tmp_path / "model")), tmp_path / "x.xml")
    model = engines.openvino_core().read_model(tmp_path / "x.xml")
    about = engines.Description.from_json(model.get_rt_info([engines.KEY]).value)
    about = dataclasses.replace(about, precision="bfloat16")
    quantize.save_openvino(model, about, tmp_path / "y.xml")
    for can, name in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr(engines, "computes_bfloat16", lambda can=can: can)
        assert engines.open_engine(tmp_path / "y.xml").precision == name


REFUSED = {
    "20 is not a time above 0, such as 20ms": ("x.xml", "--at", "20"),
    "0ms is not a time above 0": ("x.xml", "--at", "0ms"),
    "--sizes and --data are for --at": ("x.xml", "--sizes", "16"),
    "--check does not go with --at": ("x.xml", "--at", "20ms", "--check", "{photos}"),
    "name it X.xml, without --format": ("x.onnx", "--at", "20ms", "--data", "{photos}"),
    "has no images to measure on: --data FOLDER": ("x.xml", "--at", "20ms"),
    "is no run: name the file": ("--at", "20ms"),
    "image_size": ("x.xml", "--at", "20ms", "--data", "{photos}", "--sizes", "17"),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_mistakes_are_one_line(vit: Vit, photos: Path, tmp_path: Path, message: str) -> None:
    args = [str(arg).format(photos=photos) for arg in REFUSED[message]]
    done = vit("export", saved(tmp_path / "m"), *args)
    assert done.status == 2 and message in done.err and not list(tmp_path.glob("x*"))


def test_models_without_one_label_per_image_are_refused(
    vit: Vit, photos: Path, tmp_path: Path
) -> None:
    for extra, classes in (({}, None), ({"multilabel": True}, CLASSES)):
        model = saved(tmp_path / str(classes), classes, extra=extra)
        done = vit("export", model, "x.xml", "--at", "20ms", "--data", photos)
        assert done.status == 2 and "classes and one label per image" in done.err
