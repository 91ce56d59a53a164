"""Perception Encoder's positions, and what is refused as another form of it."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("timm")

from benchmarks.parity.families import scatter
from tests.extensions.towers.peers import described_as, saved
from vit.errors import UserError
from vit.models.config import ViTConfig
from vit.models.vision_transformer import VisionTransformer
from vit.models.zoo import build_model
from vit.weights.pretrained import load_pretrained

NAME = "vit_pe_core_tiny_patch16_384"
CONFIG: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "width": 32,
    "depth": 2,
    "mlp_dim": 48,
    "num_heads": 2,
    "num_classes": 5,
    "pool": "map",
    "activation": "gelu",
    "pre_norm": True,
    "layer_norm_eps": 1e-5,
    "tower": {},
}


@pytest.mark.parametrize(
    "change",
    [
        {"rope_grid_indexing": "ij"},
        {"rope_rotate_half": True},
        {"rope_type": "mixed"},
        {"use_rot_pos_emb": False},
        {"attn_type": "eva"},
        {"scale_mlp": True},
    ],
)
def test_another_form_of_the_positions_is_refused_by_name(
    change: dict[str, Any], tmp_path: Path
) -> None:
    [(name, value)] = change.items()
    with pytest.raises(UserError, match=f"timm's {name}={value!r} ") as raised:
        load_pretrained(described_as(tmp_path, NAME, change, depth=2, img_size=(48, 80)))
    assert "\n" not in str(raised.value)


def test_a_file_without_its_description_is_refused(tmp_path: Path) -> None:
    """Whatever is said of it: rotary positions leave no tensors, and rows change their places."""
    for name in (NAME, "vit_pe_spatial_tiny_patch16_512"):
        peer = saved(name, tmp_path / name, depth=2, img_size=(48, 80))
        torch.save(peer.state_dict(), tmp_path / "pe.pth")
        facts = {"activation": "gelu", "image_size": (48, 80)}
        for more in ({}, {"tower": {}}, {"tower": {"final_norm": False}}):
            with pytest.raises(UserError, match=r"Perception Encoder|does not fit: 2 missing"):
                load_pretrained(tmp_path / "pe.pth", **facts, **more)


@pytest.mark.parametrize("pool", ["map", "gap", "cls"])
def test_every_parameter_gets_a_gradient(pool: str) -> None:
    tower = {"final_norm": pool == "map"}
    model = build_model(ViTConfig(**{**CONFIG, "pool": pool, "tower": tower})).train()
    torch.nn.init.normal_(model.head.weight)  # pyright: ignore
    model(torch.randn(2, 3, 32, 32)).square().sum().backward()
    silent = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []


def test_a_score_depends_on_the_difference_of_two_places_only() -> None:
    """Moving all coordinates by one, which is what `offset` does, changes nothing."""
    config = ViTConfig(**CONFIG)
    model, moved = build_model(config), build_model(ViTConfig(**{**CONFIG, "tower": {"offset": 2}}))
    moved.load_state_dict(scatter(model).state_dict())
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        # The class token is not rotated, so its scores depend on the offset: it is left out.
        first, second = (
            m.double().eval().blocks[0].attn
            for m in (model, moved)  # pyright: ignore
        )
        tokens = torch.randn(2, 16, 32, dtype=torch.float64)
        places = [m._place((4, 4), tokens)._replace(num_prefix=0) for m in (model, moved)]  # pyright: ignore
        torch.testing.assert_close(
            first(tokens, places[0]), second(tokens, places[1]), rtol=0, atol=1e-6
        )
        assert (model(images) - moved(images)).abs().max() > 1e-4


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"tower": {"pool_heads": 5}}, "tower: width=32 is not a multiple of pool_heads=5"),
    ({"tower": {"ofset": 1}}, "tower: unknown model option 'ofset'; did you mean 'offset'"),
    ({"tower": {"order": "ij"}}, "tower: order='ij' is not one of 'xy', 'yx'"),
    ({"tower": {"reference": 0}}, "tower: image_size=0 must be"),
    ({"tower": 3}, "tower=3 must be an object"),
    ({"rotary": {}}, "tower does not go with rotary"),
    ({"variant": {"mlp": "geglu"}}, "tower does not go with variant"),
    ({"num_heads": 16}, "the head size must be a multiple of 4"),
    ({"representation_size": 8}, "tower goes neither with distillation_token nor"),
]


@pytest.mark.parametrize(("fields", "message"), MISTAKES)
def test_a_mistake_is_one_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        build_model(ViTConfig(**{**CONFIG, **fields}))
    assert "\n" not in str(raised.value)


def test_a_plain_transformer_does_not_ignore_the_field() -> None:
    model = VisionTransformer(ViTConfig(**CONFIG))
    with pytest.raises(UserError, match="are added by build_model"):
        model(torch.randn(1, 3, 32, 32))
