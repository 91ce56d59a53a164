"""Google's .npz files give the logits of the papers' equations, in every dialect of their names."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.checkpoints import numpy_forward
from tests.checkpoints.checkpoint_peers import assert_same
from vit.checkpoints.pretrained import inspect_pretrained, load_pretrained
from vit.models.config import ResNetConfig, ViTConfig

Weights = dict[str, Any]
WIDTH, HEADS, HIDDEN, CLASSES = 32, 4, 48, 5


def drawn(shapes: dict[str, tuple[int, ...]]) -> Weights:
    """float32 values under which every entry matters."""
    rng = np.random.default_rng(3)
    weights = {}
    for key, shape in shapes.items():
        noise = rng.standard_normal(shape)
        if key.endswith("kernel"):
            noise = noise / np.sqrt(np.prod(shape[:-1])) + 0.02
        elif key.endswith(("scale", "gamma")):
            noise = 1 + 0.2 * noise
        else:
            noise = 0.3 * noise
        weights[key] = noise.astype(np.float32)
    return weights


def attention_shapes(base: str) -> dict[str, tuple[int, ...]]:
    e = WIDTH // HEADS
    shapes: dict[str, tuple[int, ...]] = {}
    for part in ("query", "key", "value"):
        shapes |= {f"{base}/{part}/kernel": (WIDTH, HEADS, e), f"{base}/{part}/bias": (HEADS, e)}
    return shapes | {f"{base}/out/kernel": (HEADS, e, WIDTH), f"{base}/out/bias": (WIDTH,)}


def part_shapes(norm: str, mlp: str) -> dict[str, tuple[int, ...]]:
    return {
        f"{norm}/scale": (WIDTH,),
        f"{norm}/bias": (WIDTH,),
        f"{mlp}/Dense_0/kernel": (WIDTH, HIDDEN),
        f"{mlp}/Dense_0/bias": (HIDDEN,),
        f"{mlp}/Dense_1/kernel": (HIDDEN, WIDTH),
        f"{mlp}/Dense_1/bias": (WIDTH,),
    }


def vit_shapes(
    *,
    grid: int = 4,
    kernel: tuple[int, int, int] = (8, 8, 3),
    cls: bool = True,
    pre_logits: bool = False,
    pooled: bool = False,
) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "embedding/kernel": (*kernel, WIDTH),
        "embedding/bias": (WIDTH,),
        "Transformer/posembed_input/pos_embedding": (1, grid * grid + cls, WIDTH),
        "Transformer/encoder_norm/scale": (WIDTH,),
        "Transformer/encoder_norm/bias": (WIDTH,),
        "head/kernel": (WIDTH, CLASSES),
        "head/bias": (CLASSES,),
    }
    if cls:
        shapes["cls"] = (1, 1, WIDTH)
    if pre_logits:
        shapes |= {"pre_logits/kernel": (WIDTH, WIDTH), "pre_logits/bias": (WIDTH,)}
    for i in range(2):
        base = f"Transformer/encoderblock_{i}"
        shapes |= {f"{base}/LayerNorm_0/scale": (WIDTH,), f"{base}/LayerNorm_0/bias": (WIDTH,)}
        shapes |= attention_shapes(f"{base}/MultiHeadDotProductAttention_1")
        shapes |= part_shapes(f"{base}/LayerNorm_2", f"{base}/MlpBlock_3")
    if pooled:
        shapes["MAPHead_0/probe"] = (1, 1, WIDTH)
        shapes |= attention_shapes("MAPHead_0/MultiHeadDotProductAttention_0")
        shapes |= part_shapes("MAPHead_0/LayerNorm_0", "MAPHead_0/MlpBlock_0")
    return shapes


def stem_shapes(depths: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"conv_root/kernel": (7, 7, 3, 64)}
    shapes |= {"gn_root/scale": (64,), "gn_root/bias": (64,)}
    channels = 64
    for s, depth in enumerate(depths, start=1):
        mid = 64 * 2 ** (s - 1)
        for u in range(1, depth + 1):
            base = f"block{s}/unit{u}"
            convs = {"1": (1, 1, channels, mid), "2": (3, 3, mid, mid), "3": (1, 1, mid, 4 * mid)}
            if u == 1:
                convs["_proj"] = (1, 1, channels, 4 * mid)
            for name, shape in convs.items():
                shapes[f"{base}/conv{name}/kernel"] = shape
                # Stored with three empty axes in the released files.
                shapes |= {f"{base}/gn{name}/{p}": (1, 1, 1, shape[3]) for p in ("scale", "bias")}
            channels = 4 * mid
    return shapes


def bit_shapes(depths: tuple[int, ...], factor: int = 1) -> dict[str, tuple[int, ...]]:
    conv, channels = "standardized_conv2d/kernel", 64 * factor
    shapes: dict[str, tuple[int, ...]] = {f"resnet/root_block/{conv}": (7, 7, 3, channels)}
    for s, depth in enumerate(depths, start=1):
        mid = 64 * factor * 2 ** (s - 1)
        for u in range(1, depth + 1):
            base = f"resnet/block{s}/unit{u:02d}"
            convs = {"a": (1, 1, channels, mid), "b": (3, 3, mid, mid), "c": (1, 1, mid, 4 * mid)}
            for name, shape in convs.items():
                shapes[f"{base}/{name}/{conv}"] = shape
                for part in ("gamma", "beta"):
                    shapes[f"{base}/{name}/group_norm/{part}"] = (shape[2],)
            if u == 1:
                shapes[f"{base}/a/proj/{conv}"] = (1, 1, channels, 4 * mid)
            channels = 4 * mid
    shapes |= {f"resnet/group_norm/{part}": (channels,) for part in ("gamma", "beta")}
    return shapes | {
        "resnet/head/conv2d/kernel": (1, 1, channels, CLASSES),
        "resnet/head/conv2d/bias": (CLASSES,),
    }


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
    "tanh layer": {"pre_logits": True},
    "average": {"cls": False},
    "attention pooling": {"cls": False, "pooled": True},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("size", [(32, 32), (48, 40), (16, 64)])
def test_vit_logits_equal_the_papers_equations(
    variant: str, size: tuple[int, int], tmp_path: Path
) -> None:
    weights = drawn(vit_shapes(**VARIANTS[variant]))
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
    weights = drawn(vit_shapes())
    model = loaded(DIALECTS[dialect](weights), tmp_path)
    tolerance = 1e-6 if dialect == "root table" else 1e-9  # this test sums the slot in float32
    for size in ((32, 32), (40, 48)):
        pixels = images(*size)
        assert_same(ours(model, pixels), expected(weights, pixels), tolerance)


def test_old_attention_pooling_lies_at_the_root(tmp_path: Path) -> None:
    weights = drawn(vit_shapes(cls=False, pooled=True))
    moved = {key.removeprefix("MAPHead_0/"): value for key, value in weights.items()}
    pixels = images(32, 32)
    assert_same(ours(loaded(moved, tmp_path), pixels), expected(weights, pixels))


def test_bfloat16_stored_as_raw_bytes_is_read(tmp_path: Path) -> None:
    weights = drawn(vit_shapes())
    short = {k: torch.from_numpy(v).bfloat16() for k, v in weights.items()}
    raw = {k: v.view(torch.int16).numpy().view("V2") for k, v in short.items()}
    rounded = {k: v.float().numpy() for k, v in short.items()}
    model = loaded(raw, tmp_path)
    assert {p.dtype for p in load_pretrained(tmp_path / "w.npz")[0].parameters()} == {torch.float32}
    pixels = images(32, 32)
    assert_same(ours(model, pixels), expected(rounded, pixels))


HYBRIDS = {
    "root alone": ((), (2, 2, 64), (32, 64)),
    "three stages": ((1, 2, 1), (1, 1, 1024), (64, 96)),
    "two stages": ((2, 1), (2, 2, 512), (64, 48)),
}


@pytest.mark.parametrize("kind", HYBRIDS)
def test_hybrid_logits_equal_the_papers_equations(kind: str, tmp_path: Path) -> None:
    depths, kernel, size = HYBRIDS[kind]
    weights = drawn(vit_shapes(kernel=kernel) | stem_shapes(depths))
    model = loaded(weights, tmp_path)
    assert isinstance(model.config, ViTConfig) and model.config.stem_depths == depths
    pixels = images(*size)
    assert_same(ours(model, pixels), expected(weights, pixels))


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize("size", [(64, 64), (65, 47)])
def test_bit_logits_equal_the_papers_equations(
    numbered: bool, size: tuple[int, int], tmp_path: Path
) -> None:
    weights = drawn(bit_shapes((1, 2, 1)))
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
    weights = drawn(vit_shapes(cls=False, pre_logits=True))
    del weights["Transformer/posembed_input/pos_embedding"]
    np.savez(tmp_path / "w.npz", **linen(weights))
    model, _ = load_pretrained(tmp_path / "w.npz", image_size=32)
    y, x = np.mgrid[:4, :4]
    omega = 1 / 10_000.0 ** (np.arange(WIDTH // 4) / (WIDTH // 4 - 1))
    y, x = (axis.reshape(-1, 1) * omega for axis in (y, x))
    table = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], 1)[None]
    full = weights | {"Transformer/posembed_input/pos_embedding": table}
    pixels = images(32, 32)
    assert_same(ours(model.double().eval(), pixels), expected(full, pixels), 1e-6)


def test_the_papers_profile_and_input_range_are_chosen(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", **drawn(vit_shapes()))
    info = inspect_pretrained(tmp_path / "w.npz")
    assert isinstance(info.config, ViTConfig)
    assert info.config.activation == "gelu_tanh"
    assert info.config.layer_norm_eps == 1e-6
    assert info.config.pos_resize == "bilinear_corners"
    assert info.config.num_heads == HEADS
    assert info.preprocess is not None
    assert info.preprocess["mean"] == info.preprocess["std"] == [0.5, 0.5, 0.5]
