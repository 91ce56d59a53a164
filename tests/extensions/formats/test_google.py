"""Google's .npz files give the logits of the papers' equations, in every dialect of their names."""

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch

from tests.extensions.formats import numpy_forward
from tests.extensions.formats.checkpoint_peers import assert_same
from vit.extensions.formats import google
from vit.extensions.formats.exporting import NativeInfo
from vit.models.config import ResNetConfig, ViTConfig
from vit.models.zoo import build_model
from vit.weights.pretrained import load_pretrained

Weights = dict[str, Any]
WIDTH, HEADS = 32, 4
SIZES: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "width": WIDTH,
    "depth": 2,
    "mlp_dim": 48,
    "num_heads": HEADS,
    "num_classes": 5,
}


def weights_of(config: ViTConfig | ResNetConfig) -> Weights:
    """float32 values under which every entry matters, under the names that the equations read."""
    rng, weights = np.random.default_rng(3), {}
    with TemporaryDirectory() as folder:
        export = google.Google().write(config, build_model(config).state_dict(), NativeInfo())
        [path] = export.save(Path(folder, "w.npz"))
        shapes = {key: value.shape for key, value in np.load(path).items()}
    for key, shape in shapes.items():
        if "/gn" in key:  # with three empty axes in the released files
            shape = (1, 1, 1, *shape)
        noise = rng.standard_normal(shape)
        if key.endswith("kernel"):
            noise = noise / np.sqrt(np.prod(shape[:-1])) + 0.02
        elif key.endswith(("scale", "gamma")):
            noise = 1 + 0.2 * noise
        else:
            noise = 0.3 * noise
        weights[key] = noise.astype(np.float32)
    return weights


def vit_weights(**fields: Any) -> Weights:
    return weights_of(ViTConfig(**{**SIZES, **fields}))


def loaded(weights: Weights, path: Path):
    np.savez(path / "w.npz", **weights)
    model, report = load_pretrained(path / "w.npz")
    assert not report.reinitialised and not report.resized and not report.left_out
    return model.double().eval()


def images(height: int, width: int) -> Any:
    return np.random.default_rng(5).standard_normal((2, height, width, 3))


def ours(model: torch.nn.Module, pixels: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.from_numpy(pixels).permute(0, 3, 1, 2))


def expected(weights: Weights, pixels: Any, grid: int = 4) -> torch.Tensor:
    return torch.from_numpy(numpy_forward.vit(pixels, weights, (grid, grid)))


VARIANTS: dict[str, dict[str, Any]] = {
    "class token": {},
    "tanh layer": {"representation_size": WIDTH},
    "average": {"pool": "gap", "class_token": False},
    "attention pooling": {"pool": "map", "class_token": False},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("size", [(32, 32), (48, 40), (16, 64)])
def test_vit_logits_equal_the_papers_equations(
    variant: str, size: tuple[int, int], tmp_path: Path
) -> None:
    weights = vit_weights(**VARIANTS[variant])
    model = loaded(weights, tmp_path)
    pixels = images(*size)
    assert_same(ours(model, pixels), expected(weights, pixels))


def linen(weights: Weights) -> Weights:
    changes = (("Attention_1/", "Attention_0/"), ("LayerNorm_2/", "LayerNorm_1/"))
    changes = (*changes, ("MlpBlock_3/", "MlpBlock_0/"))
    renamed = {}
    for key, value in weights.items():
        for old, new in changes:
            key = key.replace(old, new)
        renamed[key] = value
    return renamed


def stacked(weights: Weights) -> Weights:
    layered = re.compile(r"encoderblock_(\d+)/")
    rest = {k: v for k, v in weights.items() if not layered.search(k)}
    names = {layered.sub("encoderblock/", k) for k in weights if layered.search(k)}
    for name in names:
        keys = [name.replace("encoderblock/", f"encoderblock_{i}/") for i in range(2)]
        rest[name] = np.stack([weights[key] for key in keys])
    return rest


def root_table(weights: Weights) -> Weights:
    """big_vision: no class slot, positions are added before the class token joins."""
    weights = dict(weights)
    table = weights.pop("Transformer/posembed_input/pos_embedding")
    return weights | {"pos_embedding": table[:, 1:], "cls": weights["cls"] + table[:, :1]}


DIALECTS = {
    "linen": linen,
    "opt/target/": lambda w: {f"opt/target/{k}": v for k, v in w.items()},
    "params/": lambda w: {f"params/{k}": v for k, v in linen(w).items()},
    "params/img/": lambda w: {f"params/img/{k}": v for k, v in linen(w).items()},
    "stacked": lambda w: stacked(linen(w)),
    "root table": lambda w: root_table(linen(w)),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_dialects_of_the_names_are_one_model(dialect: str, tmp_path: Path) -> None:
    weights = vit_weights()
    model = loaded(DIALECTS[dialect](weights), tmp_path)
    tolerance = 1e-6 if dialect == "root table" else 1e-9  # this test sums the slot in float32
    for size in ((32, 32), (40, 48)):
        pixels = images(*size)
        assert_same(ours(model, pixels), expected(weights, pixels), tolerance)


def test_old_attention_pooling_lies_at_the_root(tmp_path: Path) -> None:
    weights = vit_weights(**VARIANTS["attention pooling"])
    moved = {key.removeprefix("MAPHead_0/"): value for key, value in weights.items()}
    pixels = images(32, 32)
    assert_same(ours(loaded(moved, tmp_path), pixels), expected(weights, pixels))


def test_bfloat16_stored_as_raw_bytes_is_read(tmp_path: Path) -> None:
    weights = vit_weights()
    short = {k: torch.from_numpy(v).bfloat16() for k, v in weights.items()}
    raw = {k: v.view(torch.int16).numpy().view("V2") for k, v in short.items()}
    rounded = {k: v.float().numpy() for k, v in short.items()}
    model = loaded(raw, tmp_path)
    assert {p.dtype for p in load_pretrained(tmp_path / "w.npz")[0].parameters()} == {torch.float32}
    pixels = images(32, 32)
    assert_same(ours(model, pixels), expected(rounded, pixels))


HYBRIDS = {
    "root alone": ((), 8, (32, 64)),
    "three stages": ((1, 2, 1), 16, (64, 96)),
    "two stages": ((2, 1), 16, (64, 48)),
}


@pytest.mark.parametrize("kind", HYBRIDS)
def test_hybrid_logits_equal_the_papers_equations(kind: str, tmp_path: Path) -> None:
    depths, patch_size, size = HYBRIDS[kind]
    weights = vit_weights(stem_depths=depths, patch_size=patch_size, image_size=4 * patch_size)
    model = loaded(weights, tmp_path)
    assert isinstance(model.config, ViTConfig) and model.config.stem_depths == depths
    pixels = images(*size)
    assert_same(ours(model, pixels), expected(weights, pixels))


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize("size", [(64, 64), (65, 47)])
def test_bit_logits_equal_the_papers_equations(
    numbered: bool, size: tuple[int, int], tmp_path: Path
) -> None:
    weights = weights_of(ResNetConfig(depths=(1, 2, 1), num_classes=5))
    stored = weights
    if numbered:  # as some of the released files call them
        stored = {
            key.replace("standardized_conv2d/", f"standardized_conv2d_{i}/"): value
            for i, (key, value) in enumerate(weights.items())
        }
    model = loaded(stored, tmp_path)
    assert isinstance(model.config, ResNetConfig) and model.config.depths == (1, 2, 1)
    pixels = images(*size)
    assert_same(ours(model, pixels), torch.from_numpy(numpy_forward.bit(pixels, weights)))


def test_files_without_a_table_have_fixed_positions(tmp_path: Path) -> None:
    """big_vision's vit_s16: average pooling, a tanh layer, sine and cosine positions."""
    weights = vit_weights(**VARIANTS["average"], representation_size=WIDTH)
    del weights["Transformer/posembed_input/pos_embedding"]
    np.savez(tmp_path / "w.npz", **linen(weights))
    model, report = load_pretrained(tmp_path / "w.npz", image_size=32)
    assert not report.notes
    assert "224 pixels" in load_pretrained(tmp_path / "w.npz")[1].notes[0]
    y, x = np.mgrid[:4, :4]
    omega = 1 / 10_000.0 ** (np.arange(WIDTH // 4) / (WIDTH // 4 - 1))
    y, x = (axis.reshape(-1, 1) * omega for axis in (y, x))
    table = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], 1)[None]
    full = weights | {"Transformer/posembed_input/pos_embedding": table}
    pixels = images(32, 32)
    assert_same(ours(model.double().eval(), pixels), expected(full, pixels), 1e-6)
