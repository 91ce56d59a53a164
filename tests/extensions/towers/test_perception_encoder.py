"""Perception Encoder gives what timm gives at its own size and at odd ones, both ways."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.parity.families import scatter
from vit.errors import UserError
from vit.extensions.formats.convert import convert
from vit.extensions.serving.image_transform import ImageTransform
from vit.models.config import ViTConfig
from vit.models.vision_transformer import VisionTransformer
from vit.models.zoo import build_model
from vit.preprocessing import Preprocess
from vit.weights.pretrained import load_pretrained

timm = pytest.importorskip("timm")

EQUAL = 1e-5
"""Of the largest output, in float32."""
SMALL = {"embed_dim": 128, "num_heads": 4, "mlp_ratio": 3.0}
"""Sizes in place of the gigantic ones, with an MLP that is narrower than the pooling's."""
MODELS: dict[str, dict[str, Any]] = {
    "vit_pe_core_tiny_patch16_384": {},
    "vit_pe_core_base_patch16_224": SMALL,
    "vit_pe_core_large_patch14_336": SMALL,
    "vit_pe_core_gigantic_patch14_448": SMALL,
    "vit_pe_lang_large_patch14_448": SMALL,
    "vit_pe_lang_gigantic_patch14_448": SMALL,
    "vit_pe_spatial_tiny_patch16_512": {},
    "vit_pe_spatial_gigantic_patch14_448": SMALL,
}
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


def saved(name: str, folder: Path) -> Any:
    """timm's model of two layers with random weights, saved as timm saves it."""
    from timm.models import save_for_hf

    side = int(name.split("patch")[1].split("_")[0])
    size = (3 * side, 5 * side)
    model = scatter(timm.create_model(name, depth=2, img_size=size, **MODELS[name]))
    save_for_hf(model, str(folder), safe_serialization=True)
    return model


def assert_equal(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= EQUAL * theirs.abs().max()


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_photo_gives_what_it_gives_in_timm_and_the_model_goes_back(
    name: str, tmp_path: Path
) -> None:
    peer = saved(name, tmp_path / "theirs")
    ours, report = load_pretrained(tmp_path / "theirs")
    noise = np.random.default_rng(0).integers(0, 256, (9, 7, 3)).astype(np.uint8)
    photo = Image.fromarray(noise).resize((131, 97), Image.Resampling.BICUBIC)
    described = json.loads((tmp_path / "theirs/config.json").read_text())["pretrained_cfg"]
    config = timm.data.resolve_data_config({}, pretrained_cfg=described)
    theirs = timm.data.create_transform(**config)(photo)[None]
    assert report.preprocess is not None
    images = ImageTransform(Preprocess.from_dict(report.preprocess))(photo)[None]
    assert_equal(ours.eval()(images), peer(theirs))
    assert_equal(ours.features(images), peer.forward_features(theirs))  # pyright: ignore

    convert(tmp_path / "theirs", tmp_path / "back", "timm")
    again = timm.create_model(f"local-dir:{tmp_path / 'back'}", pretrained=True).eval()
    assert torch.equal(again(theirs), peer(theirs))
    assert load_pretrained(tmp_path / "back")[0].config == ours.config
    convert(tmp_path / "theirs", tmp_path / "native", "native")
    native, _ = load_pretrained(tmp_path / "native")
    states = native.state_dict(), ours.state_dict()
    assert all(torch.equal(*pair) for pair in zip(*(s.values() for s in states), strict=True))
    assert native.config == ours.config and [*states[0]] == [*states[1]]

    odd = (5 * ours.config.patch_size, 2 * ours.config.patch_size)  # pyright: ignore
    peer.set_input_size(odd)
    images = torch.randn(2, 3, *odd)
    assert_equal(ours(images), peer(images))
    resized, _ = load_pretrained(tmp_path / "theirs", image_size=odd)
    assert_equal(resized.eval()(images), peer(images))


def described_as(folder: Path, **changes: Any) -> Path:
    """A saved model whose config.json says something else."""
    saved("vit_pe_core_tiny_patch16_384", folder)
    values = json.loads((folder / "config.json").read_text())
    values["model_args"].update(changes)
    (folder / "config.json").write_text(json.dumps(values))
    return folder


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
        load_pretrained(described_as(tmp_path, **change))
    assert "\n" not in str(raised.value)


def test_a_file_without_its_description_is_refused(tmp_path: Path) -> None:
    """Whatever is said of it: rotary positions leave no tensors, and rows change their places."""
    for name in ("vit_pe_core_tiny_patch16_384", "vit_pe_spatial_tiny_patch16_512"):
        peer = saved(name, tmp_path / name)
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
    ({"pool": "gap", "norm_after_pool": True}, "tower goes neither with norm_after_pool"),
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
