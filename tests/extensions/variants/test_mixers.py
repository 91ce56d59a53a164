"""Mixers: against timm, transformers and PyTorch, where they are full attention, and mistakes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.extensions.variants.test_contract import SIZE, built
from tests.models.small_models import SMALL, random_images, relative_error
from vit.errors import UserError
from vit.extensions import inspection
from vit.extensions.adaptation.lora import add_lora
from vit.models.attention import attend
from vit.models.config import ViTConfig
from vit.models.encoder import Attention, Place
from vit.models.zoo import build_model
from vit.weights.native import save_native
from vit.weights.pretrained import load_pretrained


def mixer(name: str, form: str = "patches", layer: int = 1, **options: Any) -> Any:
    return built("mixer", name, options, form).blocks[layer].attn


def attention(like: Any) -> Attention:
    """Full attention with the matrices of a mixer."""
    full = Attention(32, 4)
    state = {key: v for key, v in like.state_dict().items() if key in full.state_dict()}
    full.load_state_dict(state)
    return full.eval()


@pytest.mark.parametrize(
    ("size", "grid"),
    [((4, 3), (4, 6)), ((4, 6), (4, 6)), ((5, 4), (10, 8))],
)
def test_windows_are_those_of_timms_swin(size: tuple[int, int], grid: tuple[int, int]) -> None:
    swin = pytest.importorskip("timm.models.swin_transformer")
    pixels = (8 * grid[0], 8 * grid[1])
    ours = built("mixer", "window", {"size": size}, "patches", image_size=pixels).blocks[1].attn
    shift = tuple(side // 2 for side in size)
    theirs = swin.SwinTransformerBlock(32, grid, 4, window_size=size, shift_size=shift).eval()
    theirs.attn.load_state_dict(ours.state_dict())
    x = random_images(2, grid[0] * grid[1], 32)
    expected = theirs._attn(x.reshape(2, *grid, 32)).flatten(1, 2)
    assert relative_error(ours(x, Place(*grid, 0)), expected) < 1e-6  # -100 there, -inf here


@pytest.mark.parametrize(
    ("name", "weights", "bound", "deviation"),
    [
        ("lstm", "weight_hh_l0", 96**-0.5, None),  # torch.nn.LSTM
        ("lightweight", "kernels", (6 / (7 + 7 * 4)) ** 0.5, None),  # fairseq: 4 x 1 x 7
        ("dynamic", "kernels", (6 / (96 + 7 * 4)) ** 0.5, None),
        ("linformer", "key_sums", None, 16**-0.5),
        ("synthesizer_random", "score_table", None, 0.02),
        ("window", "relative_position_bias_table", None, 0.02),  # timm
    ],
)
def test_weights_start_as_published(
    name: str, weights: str, bound: float | None, deviation: float | None
) -> None:
    sizes: dict[str, Any] = {**SMALL, "width": 96, "image_size": 128, "pool": "gap"}
    model: Any = build_model(ViTConfig(**sizes, variant={"mixer": name}))
    values = torch.stack([block.attn.get_parameter(weights).flatten() for block in model.blocks])
    if bound is not None:
        assert 0.9 * bound < values.abs().max() <= bound
        deviation = bound / 3**0.5
    assert values.std().item() == pytest.approx(deviation, rel=0.15)


def test_bigbird_is_that_of_transformers_with_its_random_blocks() -> None:
    bird = pytest.importorskip("transformers.models.big_bird.modeling_big_bird")
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "block_size": 3, "num_random_blocks": 2}
    theirs = bird.BigBirdBlockSparseAttention(transformers.BigBirdConfig(**sizes))
    ours, x = mixer("bigbird", block=3, random=2), random_images(2, 24, 32)
    drawn = np.zeros((4, 6, 2), int)
    for head, i in np.ndindex(4, 6):
        drawn[head, i] = [*{*ours.index[head, i].tolist()} - {-1, 0, 7, i, i + 1, i + 2}]
    theirs._bigbird_block_rand_mask_with_head = lambda **_: [*drawn]
    ones = torch.ones(2, 24)
    masks = {
        "band_mask": torch.ones(2, 1, 4, 3, 9),
        "from_mask": ones[:, None, :, None],
        "to_mask": ones[:, None, None],
        "from_blocked_mask": ones.view(2, 8, 3),
        "to_blocked_mask": ones.view(2, 8, 3),
    }
    matrices = zip(ours.qkv.weight.chunk(3), ours.qkv.bias.chunk(3), strict=True)
    with torch.no_grad():
        for layer, values in zip((theirs.query, theirs.key, theirs.value), matrices, strict=True):
            for own, value in zip((layer.weight, layer.bias), values, strict=True):
                own.copy_(value)
        expected = ours.proj(theirs(x, **masks)[0])
        assert relative_error(ours(x, Place(4, 6, 0)), expected) < 1e-6


def test_random_blocks_differ_among_layers_heads_and_blocks() -> None:
    fields = {**SMALL, "image_size": 256, "class_token": False, "pool": "gap"}
    draws = []
    for seed in (0, 1):
        part = {"name": "bigbird", "random": 3, "seed": seed}
        model: Any = build_model(ViTConfig(**fields, variant={"mixer": part}))
        draws += [block.attn.index.sort(-1).values.flatten(0, 1) for block in model.blocks]
    rows = torch.cat(draws)  # 62 inner blocks of 64, of each head
    assert all(len(row.unique()) == 8 for row in rows)
    assert len(rows.unique(dim=0)) > 0.98 * len(rows)
    counts = rows[rows >= 0].bincount(minlength=64)[1:-1]
    mean = len(rows) * (3 + 3) / 62  # three of the window, and three others
    assert counts.min() > 0.7 * mean and counts.max() < 1.3 * mean


def test_rotary_positions_turn_queries_and_keys_or_are_refused() -> None:
    options: dict[str, Any] = {"pos_embed": "none", "rotary": {"key_bias": True}}
    for name, more in (("window", {"size": (4, 6), "bias": False}), ("linformer", {"k": 27})):
        model = built("mixer", name, more, **options)
        x, layer = random_images(2, 27, 32), model.blocks[1].attn
        if name == "linformer":
            with torch.no_grad():
                layer.key_sums.copy_(torch.eye(27))
                layer.value_sums.copy_(torch.eye(27))
        place = Place(4, 6, 3, model.rope((4, 6), x))
        assert relative_error(layer(x, place), attention(layer)(x, place)) < 1e-5
    for name, more, message in (
        ("lstm", {}, "rotary positions turn queries and keys, which"),
        ("softmax", {"head_size": 4}, "head_size=4 is not for rotary positions"),
    ):
        with pytest.raises(UserError, match=message):
            built("mixer", name, more, **options)


def test_what_needs_attention_says_that_there_is_none() -> None:
    images = random_images(1, 3, *SIZE)
    for name in ("window", "linformer", "bigbird", "axial", "lstm"):
        model = built("mixer", name, {}, pool="cls")
        for question in (inspection.attention, inspection.gradient_rollout):
            with pytest.raises(UserError, match="no attention weights") as caught:
                question(model, images)
            assert "\n" not in str(caught.value)
    weights = inspection.attention(built("mixer", "softmax", {"causal": True}), images)
    assert not weights.triu(1).any()
    model = built("mixer", "window", {})
    add_lora(model, 2)
    assert hasattr(model.blocks[0].attn.qkv, "lora_a")
    add_lora(built("mixer", "gru", {}), 2)  # its MLPs


def test_other_image_sizes_are_refused_where_they_do_not_fit(tmp_path: Path) -> None:
    for name, message in (
        ("linformer", "each token of 4 x 6 patches, and cannot read 6 x 5"),
        ("synthesizer_factorized", "each token of 4 x 6 patches, and cannot read 6 x 5"),
        ("window", "do not divide the 6 x 5 patches"),
    ):
        model = built("mixer", name, {})
        with pytest.raises(UserError, match=message):
            model(random_images(1, 3, 48, 40))
        save_native(tmp_path / name, model, classes=None, preprocess=None, extra={})
        with pytest.raises(UserError, match=message):
            load_pretrained(tmp_path / name, image_size=(48, 40))


@pytest.mark.parametrize("channels", [4, 16, 64])
def test_scores_have_the_variance_of_their_channels_unless_they_are_scaled(channels: int) -> None:
    """Logarithms of the weights of a query are its scores, less a constant."""
    tokens, place = 8 * channels, Place(8, channels, 0)
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 1, 256, tokens, channels, generator=generator, dtype=torch.float64)
    first = torch.eye(tokens, channels, dtype=torch.float64).expand(1, 256, tokens, channels)
    unscaled = mixer("dot_product").attend(q, k, first, place)  # weights of the first keys
    for weights, variance in ((unscaled, channels), (attend(q, k, first), 1)):
        assert weights.log().var(-1).mean().item() == pytest.approx(variance, rel=0.1)
