"""Exported files and OpenVINO in the place of PyTorch: same answers, and one line for what is
missing."""

import json
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.command import Vit, saved
from vit.errors import UserError
from vit.extensions.evaluation.frozen import Frozen, Reading
from vit.extensions.serving.engines import in_openvino, open_engine
from vit.extensions.serving.write import export
from vit.inference.classifier import load
from vit.preprocessing import Preprocess

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The model, its exports, and an export without a head."""
    folder = tmp_path_factory.mktemp("exports")
    model = saved(folder / "model")
    files = {"torch": model, "onnx": folder / "x.onnx", "openvino": folder / "x.xml"}
    files["backbone"] = folder / "backbone.onnx"
    for name in ("onnx", "openvino"):
        export(model, files[name])
    export(saved(folder / "encoder", None), files["backbone"])
    return files


@pytest.mark.parametrize("name", ["onnx", "openvino", "in memory"])
def test_an_engine_gives_the_models_probabilities(
    files: dict[str, Path], photos: Path, name: str
) -> None:
    images = sorted((photos / "red").iterdir())
    ours = load(files["torch"]).probabilities(images)
    memory = name == "in memory"
    theirs = load(files["torch"], engine="openvino") if memory else load(files[name])
    assert theirs.runtime and repr(theirs).startswith(f"Classifier({theirs.runtime}")
    torch.testing.assert_close(theirs.probabilities(images), ours, atol=1e-5, rtol=0)
    with pytest.raises(UserError, match=f"{theirs.runtime} computes on the CPU, not on cuda"):
        theirs.to("cuda")


@pytest.mark.parametrize(("name", "runtime"), [("onnx", "ONNX Runtime"), ("torch", "OpenVINO")])
def test_classify_names_the_engine(
    vit: Vit, files: dict[str, Path], photos: Path, name: str, runtime: str
) -> None:
    plain = json.loads(vit("classify", files["torch"], photos, "--json").out)
    flags = ("--engine", "openvino") if name == "torch" else ()
    done = vit("classify", files[name], photos, "--json", *flags)
    assert done.status == 0 and f"computed by {runtime}" in done.err
    rows = json.loads(done.out)
    assert [r["top"][0]["class"] for r in rows] == [r["top"][0]["class"] for r in plain]


@pytest.mark.parametrize(
    ("command", "engines"),
    [
        (("knn", "--k", 3), ("onnx", "openvino", "--engine")),
        (("fewshot", "--shots", 2), ("--engine",)),
        (("probe", "--num-c", 2), ("onnx",)),
    ],
    ids=["knn", "fewshot", "probe"],
)
def test_frozen_features_of_every_engine_score_the_same(
    vit: Vit, files: dict[str, Path], photos: Path, command: tuple[object, ...], engines: Any
) -> None:
    def result(engine: str) -> dict[str, Any]:
        flags = ("--engine", "openvino") if engine == "--engine" else ()
        name, *options = command
        args = (files.get(engine, files["torch"]), "--data", photos, "--num-workers", 0, "--json")
        done = vit(name, *args, *options, *flags)
        assert done.status == 0, done.err
        found = json.loads(done.out)
        assert found["engine"] in done.err
        return {k: v for k, v in found.items() if k not in ("model", "engine", "features")}

    plain = result("torch")
    assert [result(engine) for engine in engines] == [plain] * len(engines)


def test_a_backbone_gives_features_and_neither_logits_nor_names(
    files: dict[str, Path], photos: Path
) -> None:
    frozen = Frozen.load(str(files["backbone"]), "pooled", Reading(num_workers=0))
    data = frozen.images(root=str(photos))
    plain = Frozen.load(str(files["torch"].with_name("encoder")), "pooled", Reading(num_workers=0))
    found = frozen.extractor(data, "train").values
    np.testing.assert_allclose(found, plain.extractor(data, "train").values, atol=1e-5)
    with pytest.raises(UserError, match="the model has no head"):
        Frozen.load(str(files["backbone"]), "logits", Reading())
    with pytest.raises(UserError, match="is an encoder without classes"):
        load(files["backbone"])


def test_features_are_cached_by_engine_precision_and_file(
    files: dict[str, Path], photos: Path, tmp_path: Path
) -> None:
    def cached(path: Path, **options: Any) -> bool:
        reading = Reading(num_workers=0)
        frozen = Frozen.load(str(path), "pooled", reading, cache=tmp_path / "c", **options)
        return frozen.extractor(frozen.images(root=str(photos)), "train").cached

    assert not cached(files["torch"]) and cached(files["torch"])
    assert not cached(files["torch"], engine="openvino")
    assert cached(files["torch"], engine="openvino")
    assert not cached(files["onnx"]) and cached(files["onnx"])
    assert not cached(files["openvino"])
    other = tmp_path / "x.xml"
    export(saved(tmp_path / "other", layer_norm_eps=1e-3), other)
    assert not cached(other)
    other.with_suffix(".bin").rename(tmp_path / "x.bin")
    assert cached(files["openvino"]) and cached(other)


def test_features_before_a_tanh_layer_are_refused(tmp_path: Path) -> None:
    model = str(saved(tmp_path / "tanh", representation_size=12))
    with pytest.raises(UserError, match="from before the model's tanh layer"):
        Frozen.load(model, "pooled", Reading(), engine="openvino")
    found = Frozen.load(model, "pre_logits", Reading(), engine="openvino").extractor
    assert (found.layer, found.precision) == ("pre_logits", "float32")


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "in float32 or bfloat16, not in float64": ("openvino", {"precision": "float64"}),
    "ONNX Runtime computes in the precision of": ("onnx", {"precision": "bfloat16"}),
    "takes images of 16 x 16 pixels only": ("onnx", {"reading": Reading(image_size=(32, 32))}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_an_engine_cannot_do_is_one_line(files: dict[str, Path], message: str) -> None:
    name, options = REFUSED[message]
    with pytest.raises(UserError, match=message):
        Frozen.load(str(files[name]), "pooled", **{"reading": Reading(), **options})


def test_bfloat16_needs_units_of_the_cpu(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, photos: Path
) -> None:
    model: Any = load(files["torch"]).model
    engine, asked = in_openvino(model, Preprocess(image_size=(16, 16))), []

    class Old:
        def get_property(self, device: str, name: str) -> list[str]:
            asked.append(name)
            return ["FP32", "INT8"]

    monkeypatch.setattr("vit.extensions.serving.engines.openvino_core", Old)
    with pytest.raises(UserError, match="the CPU has no units for bfloat16"):
        in_openvino(model, Preprocess(image_size=(16, 16)), "bfloat16")
    assert asked == ["OPTIMIZATION_CAPABILITIES"] and engine.precision == "float32"
    half = load(files["torch"], precision="bfloat16")
    assert next(half.model.parameters()).dtype == torch.bfloat16
    pictures = [photos / "red" / "00.jpg"]
    ours, whole = half.probabilities(pictures), load(files["torch"]).probabilities(pictures)
    torch.testing.assert_close(ours, whole, atol=0.05, rtol=0)


ALONE = """
import signal, sys
from vit.extensions.serving.engines import open_engine, openvino_part
engines = [open_engine(sys.argv[1]) for _ in range(2)]
while engines:
    del engines[0]  # in the order in which they began
signal.signal(signal.SIGINT, lambda *_: print("handled"))
signal.raise_signal(signal.SIGINT)
openvino_part("openvino")
from openvino.tools.ovc import convert_impl
print(convert_impl.tm.__name__)
"""


def test_openvino_leaves_signals_to_their_handlers_and_reports_nothing_to_its_makers(
    files: dict[str, Path],
) -> None:
    command = [sys.executable, "-c", ALONE, files["openvino"]]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "handled\nopenvino.tools.ovc.telemetry_stub\n", done.stderr


@pytest.mark.parametrize("name", ["onnx", "openvino"])
def test_batches_of_threads_are_computed_beside_each_other(
    files: dict[str, Path], name: str
) -> None:
    engine, kind = open_engine(files[name]), np.random.default_rng(0)
    shape = *engine.description.preprocess.image_size, 3
    batches = [kind.integers(0, 256, (1 + i % 3, *shape), dtype=np.uint8) for i in range(40)]
    beside = engine.beside(4)
    with ThreadPoolExecutor(4) as pool:
        for images, named in zip(batches, pool.map(beside, batches), strict=True):
            expected = engine.run(images)["logits"]
            np.testing.assert_allclose(named["logits"], expected, atol=1e-5, rtol=1e-5)


TOGETHER = """
import sys, threading
import numpy as np
from vit.extensions.serving.engines import open_engine
engine, ready = open_engine(sys.argv[1]), threading.Barrier(2)
run, images = engine.beside(2), np.zeros((1, *engine.description.preprocess.image_size, 3), "uint8")
def first():
    ready.wait()
    run(images)
threads = [threading.Thread(target=first) for _ in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def test_two_threads_that_are_the_first_to_use_openvino_end(files: dict[str, Path]) -> None:
    command = [sys.executable, "-c", TOGETHER, files["openvino"]]
    started = [subprocess.Popen(command) for _ in range(3)]  # of which one or two would wait
    try:
        assert [process.wait(timeout=300) for process in started] == [0, 0, 0]
    finally:
        for process in started:
            process.kill()


@pytest.mark.parametrize("suffixes", [(".onnx",), (".xml", ".bin")])
def test_a_file_that_is_not_as_it_was_written_is_one_line(
    files: dict[str, Path], tmp_path: Path, suffixes: tuple[str, ...]
) -> None:
    main = tmp_path / f"x{suffixes[0]}"
    with pytest.raises(UserError, match=f"there is no file {re.escape(str(main))}"):
        load(main)
    for suffix in suffixes:
        shutil.copy(files["onnx"].with_suffix(suffix), tmp_path)
    for part in main, *(tmp_path / f"x{suffix}" for suffix in suffixes[1:]):
        whole, expected = part.read_bytes(), "or has changed since"
        for at in np.random.default_rng(0).integers(0, len(whole), 40):
            part.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(UserError, match=expected):
                load(main)
        part.write_bytes(whole)
    for change in (slice(200), slice(0)):
        main.write_bytes((whole := main.read_bytes())[change])
        with pytest.raises(UserError, match="was not written by `vit export`"):
            load(main)
        main.write_bytes(whole)
    load(main.rename(tmp_path / f"x{suffixes[0].upper()}"))
    if part != main:
        part.unlink()
        with pytest.raises(UserError, match=r"needs the file of its weights beside it: x\.bin"):
            load(tmp_path / "x.XML")


def test_a_file_of_another_tool_or_of_code_is_refused(
    files: dict[str, Path], tmp_path: Path
) -> None:
    import onnx
    import openvino

    foreign = openvino.convert_model(torch.nn.ReLU(), example_input=torch.zeros(1, 4))
    openvino.save_model(foreign, tmp_path / "y.xml")
    with pytest.raises(UserError, match="was not written by `vit export`"):
        open_engine(tmp_path / "y.xml")
    model = onnx.load(files["onnx"])
    text = model.metadata_props[0].value
    model.metadata_props[0].value = text.replace('"red"', '"rot"')
    onnx.save(model, tmp_path / "y.onnx")
    (tmp_path / "any.pt2").write_bytes(b"PK")
    for name, message in (("y.onnx", "has changed since"), ("any.pt2", "can execute code")):
        with pytest.raises(UserError, match=message):
            load(tmp_path / name)
