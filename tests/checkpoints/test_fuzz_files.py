"""Random damage to our own files ends in one line, or in a model that answers with sense.

The oracle: UserError of one line, or a classifier whose logits are finite, whose class names are
distinct and whose probabilities are probabilities. Digests are computed again after the damage, as
somebody would who makes such a file on purpose.
"""

import hashlib
import json
import math
import os
import struct
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.checkpoints.checkpoint_peers import scatter
from vit.checkpoints.native import load_native, save_native
from vit.checkpoints.pretrained import load_pretrained
from vit.errors import UserError
from vit.inference.classifier import load
from vit.models.config import ResNetConfig, ViTConfig
from vit.models.zoo import ModelConfig, build_model

IN_SUITE = 50
CASES = int(os.environ.get("VIT_FUZZ_CASES", IN_SUITE))
"""Of each of the four tests; a search by hand takes thousands, which are then random."""
MODELS: dict[str, ModelConfig] = {
    "vit": ViTConfig(
        image_size=16, patch_size=8, width=32, depth=2, mlp_dim=40, num_heads=4, num_classes=3
    ),
    "fixed positions": ViTConfig(
        image_size=16, patch_size=8, width=32, depth=1, mlp_dim=40, num_heads=4, num_classes=3,
        pos_embed="sincos2d", pool="gap", class_token=False,
    ),
    "bit": ResNetConfig(depths=(1,), num_classes=3, image_size=16),
}  # fmt: skip
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 10**6, 10**9, 2**63, 10**30, 10**400, 0.5, -0.5, 1e-9,
    1e-40, 1e38, 1e308, math.nan, math.inf, -math.inf, "", "a", "ab", "no", "224", "cls", "gelu",
    "\ud800", "\x00", "x" * 5000, [], [1], [1, 2], [0, 0], ["a"], ["a", "a", "a"], ["a", "b", "c"],
    ["a", "b", "\udfff"], [1, 2, 3], [math.nan] * 3, [1e-300] * 3, [1e300] * 3, [[1]], {}, {"a": 1},
    {"image_size": [16, 16]}, {"image_size": [10**6, 10**6]}, {"multilabel": "no"},
    {"image_size": [16, 16], "std": [0] * 3}, {"multilabel": True}, [[[[[]]]]], [10**9] * 4,
    [10**6, 10**6], [8192, 8192],
)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(ODD),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.one_of(st.integers(-2, 300), st.floats(), st.text(max_size=2)), max_size=4),
    st.dictionaries(st.text(max_size=3), st.integers(-2, 300), max_size=2),
)
FUZZ = settings(
    max_examples=CASES,
    deadline=None,
    derandomize=CASES == IN_SUITE,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)


@cache
def saved(kind: str) -> dict[str, bytes]:
    """The two files of a model directory."""
    with TemporaryDirectory() as folder:
        preprocess = {
            "image_size": [16, 16],
            "resize": "crop",
            "crop_fraction": 0.875,
            "interpolation": "bilinear",
            "mean": [0.5, 0.5, 0.5],
            "std": [0.5, 0.5, 0.5],
        }
        extra = {"multilabel": False, "recipe": {"seed": 0}, "metrics": {"val/acc1": 0.5}}
        model = scatter(build_model(MODELS[kind]))
        save_native(folder, model, classes=["a", "b", "c"], preprocess=preprocess, extra=extra)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def split(weights: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and tensors of a safetensors file."""
    (length,) = struct.unpack("<Q", weights[:8])
    return json.loads(weights[8 : 8 + length]), weights[8 + length :]


def joined(header: Any, tensors: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + tensors


def places(values: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where in a JSON document something stands."""
    inside: list[Any] = []
    if isinstance(values, dict):
        inside = list(values.items())
    elif isinstance(values, list):
        inside = list(enumerate(values))
    return [path, *(place for key, item in inside for place in places(item, (*path, key)))]


def changed(values: Any, changes: list[tuple[int, str, Any]]) -> Any:
    """A document with some of its values replaced, removed, or put under another name."""
    values = json.loads(json.dumps(values))
    for number, how, value in changes:
        known = places(values)
        place = known[number % len(known)]
        if not place:
            values = value if how == "replace" else values
            continue
        inside = values
        for key in place[:-1]:
            inside = inside[key]
        if how == "replace":
            inside[place[-1]] = value
        elif how == "remove":
            inside.pop(place[-1])
        elif isinstance(inside, dict):
            inside[str(value)[:20]] = inside.pop(place[-1])
    return values


CHANGES = st.lists(
    st.tuples(st.integers(0, 200), st.sampled_from(["replace"] * 6 + ["remove", "rename"]), VALUES),
    min_size=1,
    max_size=3,
)


def judge(files: dict[str, bytes]) -> str:
    """ "refused" or "loaded"; fails for whatever else reading these files leads to."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        for file, content in files.items():
            (folder / file).write_bytes(content)
        outcomes = [attempt(read, folder) for read in (classified, logits_finite, pretrained)]
    return outcomes[0]


def attempt(read: Callable[[Path], None], folder: Path) -> str:
    try:
        read(folder)
    except UserError as error:
        assert str(error) and "\n" not in str(error) and len(str(error)) < 1000
        str(error).encode()  # can be printed
        return "refused"
    return "loaded"


def classified(folder: Path) -> None:
    classifier = load(folder)
    if math.prod(classifier.preprocess.image_size) / classifier.preprocess.crop_fraction**2 > 1e5:
        return  # within the stated limit, but not worth the time
    [prediction] = classifier.predict(Image.new("RGB", (20, 30), "red"), top=3)
    assert len(set(prediction.classes)) == 3 == len(prediction.classes)
    assert all(isinstance(name, str) for name in prediction.classes)
    assert all(0 <= p <= 1 for p in prediction.probabilities)  # false for NaN
    total = sum(prediction.probabilities)
    assert classifier.multilabel or total == pytest.approx(1, abs=1e-4)


def logits_finite(folder: Path) -> None:
    model, info = load_native(folder)
    config: ModelConfig = model.config  # pyright: ignore[reportAssignmentType]
    assert info.classes is None or len(set(info.classes)) == len(info.classes) == config.num_classes
    size = (
        config.size if isinstance(config, ViTConfig) and config.pos_embed == "learned" else (16, 16)
    )
    if isinstance(config, ViTConfig) and size[0] % config.patch_size:
        return
    images = torch.rand(1, config.in_channels, *size)
    with torch.inference_mode():
        assert model(images).isfinite().all()


def pretrained(folder: Path) -> None:
    _, report = load_pretrained(folder)
    "\n".join(report.lines()).encode()


DEEP = "[" * 100_000


@given(kind=st.sampled_from(list(MODELS)), changes=CHANGES)
@example(kind="vit", changes=[])
@FUZZ
def test_config_json_is_refused_or_makes_sense(kind: str, changes: list[Any]) -> None:
    files = saved(kind)
    values = changed(json.loads(files["config.json"]), changes)
    outcome = judge({**files, "config.json": json.dumps(values).encode()})
    assert changes or outcome == "loaded"


@given(kind=st.sampled_from(list(MODELS)), changes=CHANGES, alone=st.booleans())
@example(kind="vit", changes=[], alone=True)
@FUZZ
def test_the_header_of_our_weights_is_refused_or_makes_sense(
    kind: str, changes: list[Any], alone: bool
) -> None:
    """The description inside, with its digest computed again; without config.json or with it."""
    files = saved(kind)
    header, tensors = split(files["model.safetensors"])
    described = changed(json.loads(header["__metadata__"]["vit"]), changes)
    text = json.dumps(described)
    digest = hashlib.sha256(text.encode()).hexdigest()
    header["__metadata__"] |= {"vit": text, "vit_sha256": digest}
    damaged = {"model.safetensors": joined(header, tensors)}
    if not alone:
        damaged["config.json"] = text.encode()
    outcome = judge(damaged)
    assert changes or outcome == "loaded"


@given(kind=st.sampled_from(list(MODELS)), changes=CHANGES)
@example(kind="vit", changes=[])
@FUZZ
def test_the_table_of_tensors_is_refused_or_makes_sense(kind: str, changes: list[Any]) -> None:
    """Names, types, shapes and places of the tensors."""
    files = saved(kind)
    header, tensors = split(files["model.safetensors"])
    outcome = judge({**files, "model.safetensors": joined(changed(header, changes), tensors)})
    assert changes or outcome == "loaded"


@given(
    kind=st.sampled_from(list(MODELS)),
    name=st.sampled_from(["config.json", "model.safetensors"]),
    edits=st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=4)), min_size=1, max_size=4),
    length=st.one_of(st.none(), st.floats(0, 1)),
)
@FUZZ
def test_damaged_bytes_are_refused_or_make_sense(
    kind: str, name: str, edits: list[tuple[float, bytes]], length: float | None
) -> None:
    files = saved(kind)
    content = bytearray(files[name])
    limit = min(len(content), 6000)  # most of the rest is tensors, which have a digest
    for at, replacement in edits:
        start = int(at * limit)
        content[start : start + len(replacement)] = replacement
    if length is not None:
        content = content[: int(length * len(content))]
    assert judge({**files, name: bytes(content)}) in ("loaded", "refused")


@pytest.mark.parametrize(
    "content",
    [
        DEEP,
        '{"format": "vit", "model": ' * 50_000,
        '{"a":' + "1" * 5000 + "}",
        "[]",
        "null",
        "1",
        "",
    ],
    ids=["deep list", "deep object", "long number", "list", "null", "number", "empty"],
)
def test_config_json_that_is_no_object_of_ours_is_one_line(content: str) -> None:
    assert judge({**saved("vit"), "config.json": content.encode()}) == "refused"


def test_sizes_beyond_the_file_are_refused_without_memory_for_them() -> None:
    resource = pytest.importorskip("resource")
    if sys.platform != "linux":
        pytest.skip("memory is counted in another unit")
    files = saved("fixed positions")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, value in [
        *(("depth", n) for n in (3, 10**6, 10**9, 10**30)),
        *(("width", n) for n in (64, 10**6, 10**12)),
        *(("image_size", [n, n]) for n in (8 * 10**5, 10**6, 8 * 10**12)),
        *(("num_registers", n) for n in (10**9, 10**15)),
        *((name, 10**12) for name in ("mlp_dim", "in_channels", "num_classes", "patch_size")),
        ("representation_size", 10**12),
        ("stem_depths", [10**9]),
    ]:
        header, tensors = split(files["model.safetensors"])
        described = json.loads(header["__metadata__"]["vit"])
        described["model"][name] = value
        text = json.dumps(described)
        digest = hashlib.sha256(text.encode()).hexdigest()
        header["__metadata__"] |= {"vit": text, "vit_sha256": digest}
        assert judge({"model.safetensors": joined(header, tensors)}) == "refused", name
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB
