"""Answers for many pictures: order, engines, features, and what a stop leaves behind."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import vit
from vit.data.sources import PathList
from vit.errors import UserError
from vit.extensions.answers import answer_files
from vit.extensions.answers.answer_files import columns, identity, opened
from vit.extensions.answers.answers import Row, answer
from vit.extensions.serving.engines import Description, Engine, EngineClassifier, Run
from vit.inference.answers import PredictOptions
from vit.inference.classifier import Classifier
from vit.preprocessing import Preprocess

STEPS = Preprocess(image_size=(16, 16), crop_fraction=1.0)


@pytest.fixture
def classifier() -> Classifier:
    torch.manual_seed(0)
    model = vit.create_model(
        "vit_ti16", num_classes=3, image_size=16, depth=1, width=24, mlp_dim=48, num_heads=2
    )
    torch.nn.init.normal_(model.get_parameter("head.weight"))
    return Classifier(model, ["cat", "dog", "hen"], STEPS)


@pytest.fixture
def paths(tmp_path: Path) -> PathList:
    """Twenty pictures, of which two cannot be read and one has a line break in its name."""
    random, files = np.random.default_rng(0), [tmp_path / f"{i:02}.png" for i in range(20)]
    files[4] = tmp_path / '04 "\n.png'
    for file in files:
        Image.fromarray(random.integers(0, 255, (20, 18, 3), dtype=np.uint8)).save(file)
    files[7].write_bytes(b"<html>")
    files[8].write_bytes(files[8].read_bytes()[:99])
    return PathList(map(str, files))


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_are_in_order_with_the_answers_of_predict(
    workers: int, classifier: Classifier, paths: PathList
) -> None:
    rows: list[Row] = []
    options: dict[str, Any] = {"features": True, "batch_size": 3, "num_workers": workers}
    tally = answer(classifier, paths, rows.extend, PredictOptions(top=2), **options)
    assert (tally.pictures, tally.unreadable) == (20, 2)
    assert [row["image"] for row in rows] == [path.replace("\n", "\\n") for path in paths]
    assert "web page" in rows[7]["error"] and str(paths[7]) not in rows[7]["error"]
    assert set(rows[7]) == set(rows[8]) == {"image", "error"}
    for i in {*range(20)} - {7, 8}:
        row, [expected] = rows[i], classifier.predict(paths[i], 2)
        assert [best["class"] for best in row["top"]] == expected.classes and "error" not in row
        shares = [best["probability"] for best in row["top"]]
        assert shares == pytest.approx(expected.probabilities, abs=1e-5)
        logits = classifier.model.get_submodule("head")(torch.from_numpy(row["features"]))
        assert logits.softmax(-1).max().item() == pytest.approx(shares[0], abs=1e-5)


def test_an_exported_model_gives_the_same_rows(classifier: Classifier, paths: PathList) -> None:
    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
        logits, features = classifier.outputs(pixels, features=True)
        assert features is not None
        return {"logits": logits.numpy(), "features": features.numpy()}

    asked: list[int] = []

    def beside(threads: int) -> Run:
        asked.append(threads)
        return run

    about = Description(outputs=["logits"], classes=classifier.classes, preprocess=STEPS)
    engine = Engine("other", run, beside, about, "float32", "weights")
    exported = EngineClassifier(nn.Identity(), classifier.classes, STEPS, engine=engine)
    both: list[list[Row]] = [[], []]
    for model, rows in zip((classifier, exported), both, strict=True):
        answer(model, paths, rows.extend, PredictOptions(top=3), features=True, num_workers=0)
    assert repr(both[0]) == repr(both[1]) and identity(classifier) != identity(exported)
    batches = -(-len(paths) // 8)  # as of PyTorch on a CPU: a thread for each core
    streams = min(torch.get_num_threads(), batches)
    assert asked == ([streams] if streams > 1 else [])


def best_classes(file: Path) -> list[tuple[str, str]]:
    """Picture and class of each row; probabilities depend on the batch in their last digits."""
    with file.open(newline="") as stream:
        lines = csv.DictReader(stream) if file.suffix == ".csv" else map(json.loads, stream)
        return [(row["image"].replace("\n", "\\n"), row["class"] or "") for row in lines]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_file_that_is_cut_anywhere_is_completed(
    suffix: str, classifier: Classifier, paths: PathList, tmp_path: Path
) -> None:
    out, names = tmp_path / f"x{suffix}", columns(classifier, PredictOptions(top=3), features=False)

    def run() -> int:
        with opened(out, names, {"top": 3}) as file:
            start = file.done
            options: dict[str, Any] = {"start": start, "num_workers": 0}
            return answer(classifier, paths, file.add, PredictOptions(top=3), **options).pictures

    assert run() == 20
    whole, classes = out.read_bytes(), best_classes(out)
    assert [image for image, _ in classes] == [path.replace("\n", "\\n") for path in paths]
    breaks = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for end in {0, 5, len(whole), len(whole) - 1, breaks[0], *breaks[4:7], breaks[6] + 9}:
        out.write_bytes(whole[:end])
        assert run() <= 20
        assert best_classes(out) == classes
    assert run() == 0


def test_what_a_file_was_begun_with_is_an_object(tmp_path: Path) -> None:
    out = tmp_path / "x.csv"
    with opened(out, ["image"], {"top": 3}):
        pass
    for text in ("[1]", "{", "3"):
        out.with_name("x.csv.json").write_text(text)
        with pytest.raises(UserError, match=r"x\.csv\.json is damaged"), opened(out, ["image"], {}):
            pass


def test_a_folder_of_parts_goes_on_at_the_first_that_is_missing(
    classifier: Classifier,
    paths: PathList,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pyarrow import parquet

    monkeypatch.setattr(answer_files, "PART_ROWS", 8)
    out, names = tmp_path / "x.parquet", columns(classifier, PredictOptions(top=1), features=True)

    def run() -> int:
        options: dict[str, Any] = {"features": True, "batch_size": 3, "num_workers": 0}
        with opened(out, names, {}) as file:
            tally = answer(
                classifier, paths, file.add, PredictOptions(top=1), start=file.done, **options
            )
        return tally.pictures

    assert run() == 20
    before = parquet.read_table(out)
    assert before.num_rows == 20 and before["image"][19].as_py() == paths[19]
    assert [str(kind) for kind in before.schema.types[2::2]] == ["float", "list<element: float>"]
    assert len(before["features"][0]) == 24 and before["features"][7].as_py() is None
    parts = sorted(out.iterdir())
    assert [file.name for file in parts] == [f"part-{i:010}.parquet" for i in (0, 9, 18)]
    parts[1].unlink()
    (out / ".part-0000000009.0123abcd.parquet").write_bytes(b"killed")
    assert run() == 11
    assert parquet.read_table(out).equals(before) and sorted(out.iterdir()) == parts


@pytest.mark.parametrize("change", ["weights", "classes", "preprocess"])
def test_another_model_has_another_identity(
    change: str, classifier: Classifier, paths: PathList
) -> None:
    before = identity(classifier)
    changes: dict[str, Callable[[], object]] = {
        "weights": lambda: (
            classifier.model.get_submodule("norm").get_parameter("bias").data.add_(1)
        ),
        "classes": lambda: classifier.classes.reverse(),
        "preprocess": lambda: setattr(classifier, "preprocess", STEPS.changed(resize="squash")),
    }
    assert identity(classifier) == before
    changes[change]()
    assert identity(classifier) != before
