"""Exported files against PyTorch, and the pages beside them without it."""

import copy
import json
import re
import resource
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import vit
from vit.data.decode import open_image
from vit.errors import UserError
from vit.extensions.formats.preprocessing import unrecorded
from vit.extensions.serving.engines import KEY, Description, open_engine
from vit.extensions.serving.graph import Graph, baked
from vit.extensions.serving.proof import CEILING, cut, drawn, in_pytorch, prove
from vit.extensions.serving.sole_writer import sole_writer
from vit.extensions.serving.source import described
from vit.extensions.serving.write import Differs

pytest.importorskip("onnxscript")
pytest.importorskip("openvino")
pytestmark = pytest.mark.filterwarnings("ignore")

TINY: dict[str, Any] = {"width": 32, "depth": 1, "mlp_dim": 64, "num_heads": 2, "patch_size": 8}
NAMES = ["ant", "bee", "cow"]


def tiny(name: str = "vit_ti16", **options: Any) -> Any:
    """A model with random values in every parameter."""
    torch.manual_seed(0)
    sizes = {"depths": (1,)} if name.startswith("bit") else TINY
    model: Any = vit.create_model(name, **{"num_classes": 3, "image_size": 32, **sizes, **options})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model.eval()


def classifier(model: Any, **options: Any) -> vit.Classifier:
    changes = options.pop("preprocess", {})
    preprocess = unrecorded(model.config).changed(**changes)
    return vit.Classifier(model, NAMES, preprocess, **options)


def photo(height: int = 45, width: int = 61) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("kind", "format"),
    [
        ("several labels", "onnx"),
        ("rotary, no head", "openvino"),
        ("rotary, no head", "pt2"),
        ("BiT, 7 channels", "onnx"),
        ("BiT, 7 channels", "openvino"),
    ],
)
def test_a_file_answers_as_the_model_for_any_batch(kind: str, format: Any, tmp_path: Path) -> None:
    if kind == "several labels":
        several: dict[str, Any] = {"multilabel": True, "thresholds": [0.2, 0.5, 0.7]}
        model: Any = classifier(tiny(), **several, temperature=2.0)
    elif kind == "rotary, no head":
        model = tiny(num_classes=0, pos_embed="none", rotary={}, num_registers=2)
    else:
        model = classifier(tiny("bit_r50x1", in_channels=7), tree=True, temperature=0.5)
    done = vit.export(model, tmp_path / "model", format=format)
    assert done.proof.passed and done.proof.count == 20
    _, about = described(model)
    if format == "pt2":
        extra = {f"{KEY}.json": ""}
        torch.export.load(done.files[0], extra_files=extra)
        assert Description.from_json(extra[f"{KEY}.json"]) == about
        return
    engine = open_engine(done.files[0])
    assert engine.description == about
    if isinstance(model, vit.Classifier):
        assert vit.load(done.files[0]).tree == model.tree
    network = model.model if isinstance(model, vit.Classifier) else model
    for count in (1, 5):
        pixels = drawn(about.preprocess)[:count]
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        with torch.no_grad():
            expected = network(about.preprocess.normalize(images)).numpy()
        answers = engine.run(pixels)
        assert list(answers) == about.outputs
        name = "logits" if "logits" in answers else "features"
        np.testing.assert_allclose(answers[name], expected, atol=1e-4 * np.abs(expected).max())
        if kind == "several labels":
            sigmoids = 1 / (1 + np.exp(-expected / 2))
            np.testing.assert_allclose(answers["probabilities"], sigmoids, atol=1e-5)
            assert (answers["labels"] == (sigmoids > [0.2, 0.5, 0.7])).all()
    if isinstance(model, vit.Classifier):
        again = vit.load(done.files[0])
        assert (again.temperature, again.thresholds) == (model.temperature, model.thresholds)
        pixels = torch.from_numpy(drawn(about.preprocess)).permute(0, 3, 1, 2)
        theirs, ours = (each.activated(each.outputs(pixels)[0]) for each in (again, model))
        torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=0)


# Each page is alone with the runtime; what it printed, and its variables, end with a line of JSON.
ALONE = """
import json, runpy, sys
picture, *pages = sys.argv[1:]
sys.path.insert(0, pages[0].rpartition("/")[0])
for page in pages:
    sys.argv = [page, picture]
    print(json.dumps(runpy.run_path(page)["outputs"]["logits"].tolist()))
"""
STEPS: dict[str, tuple[str, dict[str, Any]]] = {
    "crop": ("onnx", {"crop_fraction": 0.8, "interpolation": "bicubic"}),
    "floor": ("onnx", {"crop_rounding": "floor", "crop_fraction": 0.9}),
    "squash": ("onnx", {"resize": "squash"}),
    "pad": ("openvino", {"resize": "pad", "mean": (0.1, 0.5, 0.9)}),
}


def test_the_page_beside_it_answers_without_torch_and_this_package(tmp_path: Path) -> None:
    picture = Image.fromarray(photo()).convert("RGBA")
    picture.putalpha(Image.linear_gradient("L").resize(picture.size))
    picture.save(tmp_path / "photo.png")
    for library in ("torch", "vit"):
        (tmp_path / f"{library}.py").write_text("raise ImportError")
    several: dict[str, Any] = {"multilabel": True, "thresholds": [0.4, 0.5, 0.6]}
    models, pages = [], []
    for name, (format, changes) in STEPS.items():
        models.append(classifier(tiny(image_size=(24, 32)), preprocess=changes, **several))
        done = vit.export(models[-1], tmp_path / name, format=format)  # pyright: ignore
        pages += [file for file in done.files if file.suffix == ".py"]
    ran = subprocess.run(
        [sys.executable, "-c", ALONE, tmp_path / "photo.png", *pages],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin"},
        check=True,
    )
    *printed, end = re.split(r"(\[\[.*\]\])\n", ran.stdout)
    assert not end and len(printed) == 2 * len(models)
    for model, lines, logits in zip(models, printed[::2], printed[1::2], strict=True):
        first, *_, last = lines.splitlines()
        expected, _ = model.outputs(model.preprocess(open_image(tmp_path / "photo.png"))[None])
        torch.testing.assert_close(torch.tensor(json.loads(logits)), expected, rtol=1e-4, atol=1e-4)
        [best] = model.predict(tmp_path / "photo.png", top=1)
        assert first.split()[-1] == best.classes[0]
        assert last == f"labels: {' '.join(c for c in NAMES if c in (best.labels or ()))}"


def test_what_does_not_depend_on_the_images_is_computed_once() -> None:
    model: Any = tiny(image_size=32)
    fixed: Any = baked(model, (48, 40))
    assert fixed.pos_embed.shape[1] == 1 + 6 * 5
    assert model.pos_embed.shape[1] == 1 + 4 * 4  # a copy
    images = torch.rand(2, 3, 48, 40)
    torch.testing.assert_close(fixed(images), model(images))
    resnet: Any = tiny("bit_r50x1")
    folded: Any = baked(resnet, (32, 32))
    kernel = folded.stem.conv.weight
    torch.testing.assert_close(kernel.mean((1, 2, 3)), torch.zeros(64), atol=1e-6, rtol=0)


@pytest.mark.parametrize("fault", ["noise", "nan", "other class"])
def test_a_file_that_answers_differently_is_not_kept(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(kind: str, graph: Graph, about: Description, path: Path, opset: None) -> Any:
        def run(pixels: np.ndarray) -> dict[str, np.ndarray]:
            answers = in_pytorch(graph, pixels)
            if fault == "noise":
                return {k: v * (1 + 2e-4) for k, v in answers.items()}
            answers["features"] = answers["features"] * (np.nan if fault == "nan" else 1)
            if fault == "other class":
                answers["logits"] = np.roll(answers["logits"], 1, axis=1)
            return answers

        path.touch()
        return run, "detail"

    monkeypatch.setattr("vit.extensions.serving.write.written", wrong)
    with pytest.raises(Differs, match="was not kept"):
        vit.export(classifier(tiny()), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_a_proof_names_the_largest_difference_of_any_output() -> None:
    graph = Graph(tiny(), unrecorded(tiny().config))
    pictures = cut([photo(), photo(32, 32)], graph.preprocess)

    def run(pixels: np.ndarray) -> dict[str, np.ndarray]:
        with torch.no_grad():
            outputs = graph(torch.from_numpy(pixels))
        answers = {n: t.numpy().copy() for n, t in zip(graph.names, outputs, strict=True)}
        at = np.abs(answers["features"]).argmax()
        answers["features"].flat[at] *= 1.25
        return answers

    proof = prove(graph, run, pictures, "two")
    assert proof.difference == pytest.approx(0.25, rel=1e-4) and not proof.passed
    assert (proof.agreeing, proof.count, proof.origin) == (2, 2, "two")


def test_a_deep_random_model_is_measured_by_what_float64_says(tmp_path: Path) -> None:
    """Its weights amplify float32's rounding, layer by layer."""
    model = tiny(depth=8)
    for name, parameter in model.named_parameters():
        if name.endswith(("qkv.weight", "fc1.weight")):
            parameter.data *= 5
    right = vit.export(classifier(model), tmp_path / "m.xml").proof
    assert right.in_float32 is not None and right.passed
    assert f"from float64 (PyTorch in float32: {right.in_float32:.1e})" in right.line()
    assert not replace(right, in_float32=right.in_float32 / 100, difference=2e-4).passed
    graph = Graph(model, unrecorded(model.config))
    for name in ("blocks.0.mlp.fc2.weight", "head.weight"):
        wrong = copy.deepcopy(graph)
        wrong.model.get_parameter(name).data *= 1.05
        proof = prove(graph, partial(in_pytorch, wrong), drawn(graph.preprocess), "")
        assert not proof.passed and proof.difference > CEILING


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dst": "there.onnx"}, "is there already"),
        ({"dst": "folder.onnx", "overwrite": True}, "is a folder"),
        ({"dst": "c.tflite"}, "tflite is not written here; give .onnx"),
        ({"dst": "there.onnx/m.onnx"}, r"there.onnx: cannot be written to \(File exists\)"),
        ({"dst": "/proc/m.onnx"}, "/proc: cannot be written to"),
        ({"dst": "x.ONNX"}, "x_onnxruntime.py is there already"),
        ({"dst": "x.xml"}, "x.bin is there already"),
        ({"format": "onx"}, "did you mean 'onnx'"),
        ({"opset": 3}, "opset=3"),
        ({"opset": 99}, "opset=99"),
        ({"opset": 18, "format": "pt2"}, "is for ONNX"),
        ({"model": "unprepared"}, "do not record their normalisation"),
        ({"model": "indivisible"}, "not a multiple of patch_size"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_one_line(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    for name in ("there.onnx", "x_onnxruntime.py", "x.bin"):
        (tmp_path / name).write_text("")
    (tmp_path / "folder.onnx").mkdir()
    model: Any = classifier(tiny())
    if change.get("model") == "unprepared":
        model = tiny()
        model.preprocess = {}
    elif change.get("model") == "indivisible":
        model = classifier(tiny(), preprocess={"image_size": 33})
    options = {k: v for k, v in change.items() if k not in ("model", "dst")}
    with pytest.raises(UserError, match=message) as raised:
        vit.export(model, tmp_path / change.get("dst", "m"), **options)
    assert "\n" not in str(raised.value)
    names = {"there.onnx", "folder.onnx", "x_onnxruntime.py", "x.bin"}
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vit.export(classifier(tiny()), tmp_path_factory.mktemp("exported") / "m.onnx").files[0]


def test_the_axis_of_a_batch_is_called_so_in_onnx(exported: Path) -> None:
    session = pytest.importorskip("onnxruntime").InferenceSession(exported)
    nodes = [*session.get_inputs(), *session.get_outputs()]
    assert [node.name for node in nodes] == ["images", "logits", "probabilities", "features"]
    assert [node.shape[0] for node in nodes] == ["batch"] * 4
    assert nodes[0].shape[1:] == [32, 32, 3]


def test_a_missing_runtime_is_named(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library, name in (("openvino", "m.xml"), ("onnxscript", "m.onnx")):
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(UserError, match=rf"{library} is not installed.*vitkit\["):
            vit.export(classifier(tiny()), tmp_path / name)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match="onnxruntime is not installed"):
        vit.load(exported)


def test_an_exported_file_is_neither_exported_again_nor_computed_by_another_engine(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(exported.parent))
    for source in (exported, vit.load(f"~/{exported.name}")):
        with pytest.raises(UserError, match="exported already"):
            vit.export(source, tmp_path / "again.xml")
    with pytest.raises(UserError, match="leave --engine"):
        vit.load(exported, engine="openvino")


def test_a_module_in_memory_with_a_head_of_zeros_keeps_its_weights(tmp_path: Path) -> None:
    model: Any = vit.create_model("bit_r50x1", num_classes=3, image_size=32, depths=(1,))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert vit.export(model, tmp_path / "m.pt2").proof.passed
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert isinstance(model, nn.Module) and model.get_parameter("norm.weight").requires_grad


def test_what_a_killed_export_has_left_is_deleted_by_the_next(tmp_path: Path) -> None:
    for name in (".m.0123abcd", ".other.0123abcd"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.onnx").write_bytes(b"half")
    vit.export(tiny(), tmp_path / "m.pt2")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.0123abcd", "m.pt2"]
    with sole_writer(tmp_path / "n.pt2", ""), pytest.raises(UserError, match=r"n\.pt2 is being w"):
        vit.export(tiny(), tmp_path / "n.pt2")


@pytest.mark.parametrize("suffix", [".onnx", ".xml", ".pt2"])
def test_a_full_disk_is_named(suffix: str, tmp_path: Path) -> None:
    """A limit on the size of a file stands for the disk."""
    model, before = classifier(tiny()), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as failure:
            vit.export(model, tmp_path / f"x{suffix}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert failure.value.filename == str(tmp_path / f"x{suffix}")
    assert not list(tmp_path.iterdir())
