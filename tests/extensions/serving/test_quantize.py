"""vit export --int8: files of 8 bits, the accuracy that they lose, and what is refused."""

import json
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.command import CLASSES, TINY, Vit, saved
from vit.data.decode import open_image
from vit.errors import UserError
from vit.extensions.serving import quantize
from vit.extensions.serving.write import export
from vit.inference.classifier import load

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")


@pytest.mark.parametrize(("suffix", "runtime"), [(".onnx", "onnxruntime"), (".xml", "openvino")])
def test_a_model_of_8_bits_is_kept_with_its_accuracy(
    vit: Vit, photos: Path, tmp_path: Path, suffix: str, runtime: str, capsys: Any, monkeypatch: Any
) -> None:
    pytest.importorskip("nncf" if runtime == "openvino" else runtime)
    model, file = saved(tmp_path / "model"), tmp_path / f"x{suffix}"
    done = vit(
        "export", model, file, "--int8", photos, "--check", photos, "--max-drop", 50, "--json"
    )
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert set(found["files"]) >= {str(file), str(tmp_path / f"x_{runtime}.py")}
    images = sorted(photos.rglob("*.jpg"))
    for name, path in (("float32", model), ("int8", file)):
        first = [row.classes[0] for row in load(path).predict(images, top=1)]
        share = np.mean([path.parent.name == c for path, c in zip(images, first, strict=True)])
        assert found[name]["accuracy"] == pytest.approx(share)
    assert found["images"] == found["in_calibration"] == 36 and found["sees_max_drop"] is not (
        found["interval"][1] > 100
    )
    exported = load(file)
    assert exported.runtime is not None and exported.runtime.endswith(", int8")
    apart = [found[kind]["comparison"]["difference"] for kind in ("float32", "int8")]
    assert apart[0] < 1e-4 < apart[1]
    ours, theirs = load(model).probabilities(images), exported.probabilities(images)
    assert 1e-4 < float((ours - theirs).abs().max()) < 0.1
    monkeypatch.setattr("vit.extensions.serving.engines.cpu_features", lambda: " amx_tile")
    torch.testing.assert_close(load(file).probabilities(images), theirs)  # compiled for this size
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["page", str(images[0])])
    runpy.run_path(str(tmp_path / f"x_{runtime}.py"))
    assert exported.predict(images[0])[0].classes[0] in capsys.readouterr().out.splitlines()[0]


def test_each_figure_names_what_was_measured_and_images_seen_before_are_counted(
    vit: Vit, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other = saved(Path("model")), load(saved(Path("other")))
    for parameter in other.model.get_submodule("head").parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))

    def worse(plain: Path, file: Path, *_: Any) -> None:
        export(other, file)

    monkeypatch.setitem(quantize.QUANTIZERS, "onnx", worse)
    args = ("--int8", photos, "--check", photos, "--max-drop", 100)
    pictures = sorted(photos.rglob("*.jpg"))
    logits = []
    for classifier in (load(model), other):
        pixels = torch.stack([classifier.preprocess(open_image(path)) for path in pictures])
        logits.append(classifier.outputs(pixels)[0])
    first, second = logits
    equal = int((first.argmax(1) == second.argmax(1)).sum())
    done = vit("export", model, "x.onnx", *args)
    _, plain, eight, *_ = lines = done.out.splitlines()
    assert equal < 36 and "float32  36 images of" in plain and "36 of 36 answers equal" in plain
    assert "int8     36 images of" in eight and f"{equal} of 36 answers equal" in eight
    assert "36 of these images are of the calibration: others may lose more" in lines


def test_training_images_of_the_run_among_those_of_the_accuracy_are_counted(
    vit: Vit, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        quantize.QUANTIZERS, "onnx", lambda plain, file, *_: shutil.copy(plain, file)
    )
    done = vit("fit", "-c", "cifar10", "--data", photos, *TINY, "--steps=1", "--run-dir=run")
    assert done.status == 0, done.err
    train = json.loads(Path("run/summary.json").read_text())["images"]["train"]
    other = shutil.copytree(photos, tmp_path / "other")
    for path in other.rglob("*.jpg"):
        with Image.open(path) as image:
            image.rotate(180).save(path)
    done = vit("export", "run", "x.onnx", "--int8", other, "--check", photos, "--max-drop", 100)
    assert done.status == 0, done.err
    assert f"{train} of 36 --check images were in the training of run" in done.err
    assert "of the calibration" not in done.out and train < 36
    assert "drop     0.00 points" in done.out


def test_first_and_last_products_and_those_of_activations_stay_whole(
    photos: Path, tmp_path: Path
) -> None:
    import onnx

    quantize.export_int8(saved(tmp_path / "m"), tmp_path / "x.onnx", photos, photos, max_drop=100)
    graph = onnx.load(tmp_path / "x.onnx").graph
    made_by = {name: node.op_type for node in graph.node for name in node.output}
    products = [node for node in graph.node if node.op_type in ("Conv", "Gemm", "MatMul")]
    eight = [
        [made_by.get(name) == "DequantizeLinear" for name in node.input[:2]] for node in products
    ]
    # Patches; queries, keys and values; scores and their sum; projection; two of the MLP; head.
    assert len(products) == 8 and [all(pair) for pair in eight] == [
        False, True, False, False, True, True, True, False
    ]  # fmt: skip
    sizes = [tuple(t.dims) for t in graph.initializer if t.name.endswith("_scale")]
    assert (72,) in sizes  # one for each channel of queries, keys and values


def test_what_loses_too_much_leaves_no_file(
    vit: Vit, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, flipped = saved(tmp_path / "model"), load(tmp_path / "model")
    [first] = {row.classes[0] for row in flipped.predict(sorted(photos.rglob("*.jpg"))[:1], top=1)}
    check = tmp_path / "check" / first / "a.jpg"
    check.parent.mkdir(parents=True)
    shutil.copy(sorted(photos.rglob("*.jpg"))[0], check)
    args = ("--int8", photos, "--check", tmp_path / "check")

    def worse(plain: Path, file: Path, *_: Any) -> None:
        export(flipped, file)

    for parameter in flipped.model.get_submodule("head").parameters():
        parameter.data.neg_()
    monkeypatch.setitem(quantize.QUANTIZERS, "onnx", worse)
    done = vit("export", model, "out/x.onnx", *args)
    assert done.status == 1 and "out/x.onnx was not kept: int8 loses 100.00 points" in done.out
    assert "on 1 images, more than 0.5" in done.out and not list(Path("out").iterdir())


REFUSED = {
    "needs --check with one folder": ("--int8", "{photos}"),
    "--max-drop is for --int8": ("--max-drop", 1),
    "has 12 pictures; a calibration needs 32": ("--int8", "{photos}/red", "--check", "{photos}"),
    "folders that are no classes of the model (my photos)": (
        "--int8", "{photos}/..", "--check", "{photos}",
    ),
    "there is no folder nowhere to calibrate on": ("--int8", "nowhere", "--check", "{photos}"),
    "int8 is for .onnx and .xml": (
        "--format", "pt2", "--int8", "{photos}", "--check", "{photos}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_mistakes_are_one_line(vit: Vit, photos: Path, tmp_path: Path, message: str) -> None:
    model = saved(tmp_path / "a model" / "m")
    args = [str(arg).format(photos=photos) for arg in REFUSED[message]]
    done = vit("export", model, "x", *args)
    assert done.status == 2 and message in done.err and not list(tmp_path.glob("x*"))


def test_models_without_one_label_per_image_are_refused(photos: Path, tmp_path: Path) -> None:
    for extra, classes in (({}, None), ({"multilabel": True}, CLASSES)):
        model = saved(tmp_path / str(classes), classes, extra=extra)
        with pytest.raises(UserError, match="classes and one label per image"):
            quantize.export_int8(model, tmp_path / "x.onnx", photos, photos)
