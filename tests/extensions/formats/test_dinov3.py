"""DINOv3 and the models that share its mechanism, in and out, against timm and transformers.

Every parameter has a random value. Sizes: other aspects than the usual one, and an odd grid.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models.small_models import filled
from vit.errors import UserError
from vit.extensions import inspection
from vit.extensions.formats.convert import convert
from vit.extensions.formats.rotary import Rotary
from vit.models.vision_transformer import VisionTransformer
from vit.weights.pretrained import create_model, load_pretrained

timm = pytest.importorskip("timm")
transformers = pytest.importorskip("transformers")

SIZES = [(160, 256), (112, 176)]
NARROW: dict[str, Any] = {"embed_dim": 64, "depth": 2, "num_heads": 2}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("vit_small_patch16_dinov3", {}),
    ("vit_small_patch16_dinov3_qkvb", {"global_pool": "token"}),
    ("vit_small_plus_patch16_dinov3_qkvb", {"num_reg_tokens": 0}),
    ("vit_huge_plus_patch16_dinov3", {"num_classes": 5}),
    ("vit_7b_patch16_dinov3", {"rope_rescale_coords": 2.0}),
]
HUGGING: dict[str, dict[str, Any]] = {
    "plain": {"num_register_tokens": 4},
    "gated": {"num_register_tokens": 4, "use_gated_mlp": True, "hidden_act": "silu"},
    "without registers": {},
    "with key bias": {"num_register_tokens": 1, "key_bias": True},
    "without biases": {"query_bias": False, "value_bias": False, "pos_embed_rescale": None},
}


def images(size: tuple[int, int]) -> Tensor:
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))


def close(ours: Tensor, theirs: Tensor, tolerance: float = 1e-5) -> None:
    assert ours.shape == theirs.shape and theirs.abs().max() > 0.1
    assert (ours - theirs).abs().max() / theirs.abs().max() < tolerance


def loaded(path: Path, **options: Any) -> VisionTransformer:
    model = load_pretrained(path, **options)[0].eval()
    assert isinstance(model, VisionTransformer)
    return model


def timms(folder: Path, name: str, arguments: dict[str, Any]) -> nn.Module:
    """A scattered model of timm, saved as timm saves it."""
    given = {"num_classes": 0, **NARROW, **arguments}
    peer = filled(timm.create_model(name, **given))
    timm.models.save_for_hf(peer, folder, model_args=given, safe_serialization=True)
    return peer


@pytest.mark.parametrize(("name", "arguments"), VARIANTS)
def test_timms_files_in_and_out(name: str, arguments: dict[str, Any], tmp_path: Path) -> None:
    peer: Any = timms(tmp_path / "in", name, arguments)
    ours = loaded(tmp_path / "in")
    assert ours.config.rotary is not None and not ours.config.rotary["key_bias"]
    assert ours.config.rotary["rescale"] == arguments.get("rope_rescale_coords")
    convert(tmp_path / "in", tmp_path / "out", "timm")
    back: Any = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    with torch.no_grad():
        for size in SIZES:
            x = images(size)
            tokens, maps = peer.forward_intermediates(x, norm=True)
            close(ours.features(x), tokens)
            close(ours(x), peer(x))
            for a, b in zip(ours.intermediate_layers(x, 2), maps, strict=True):
                close(a, b)
            close(back.forward_features(x), tokens)
            close(back(x), peer(x))


@pytest.mark.parametrize("kind", HUGGING)
def test_transformers_files_in_and_out(kind: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    config = transformers.DINOv3ViTConfig(**sizes, num_attention_heads=2, **HUGGING[kind])
    peer = filled(transformers.DINOv3ViTModel(config))
    peer.save_pretrained(tmp_path / "in")  # pyright: ignore
    transformers.DINOv3ViTImageProcessor().save_pretrained(tmp_path / "in")
    ours = loaded(tmp_path / "in")
    expected = Rotary(
        key_bias=kind == "with key bias", rescale=None if kind == "without biases" else 2.0
    )
    assert ours.config.rotary == asdict(expected)
    assert ours.preprocess is not None and ours.preprocess["mean"] == [0.485, 0.456, 0.406]
    assert (ours.preprocess["resize"], ours.preprocess["image_size"]) == ("squash", [224, 224])
    convert(tmp_path / "in", tmp_path / "out", "huggingface")
    back = transformers.AutoModel.from_pretrained(tmp_path / "out").eval()
    torch.save(peer.state_dict(), tmp_path / "state.pth")
    bare = loaded(tmp_path / "state.pth", num_heads=2, rotary=asdict(expected), layer_scale=1.0)
    with torch.no_grad():
        for size in SIZES:
            x = images(size)
            answer = peer(x, output_hidden_states=True)
            close(ours.features(x), answer.last_hidden_state)
            close(ours(x), answer.pooler_output)
            p = ours.num_prefix_tokens
            [first] = ours.intermediate_layers(x, [0], reshape=False, norm=False)
            close(first, answer.hidden_states[1][:, p:])
            close(back(x).last_hidden_state, answer.last_hidden_state)
            assert torch.equal(bare.features(x), ours.features(x))


def test_attention_maps_are_those_that_transformers_returns(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}
    config = transformers.DINOv3ViTConfig(**sizes, num_attention_heads=4, num_register_tokens=2)
    peer: Any = filled(transformers.DINOv3ViTModel(config))
    peer.save_pretrained(tmp_path)
    peer.set_attn_implementation("eager")
    x = images((48, 80))
    with torch.no_grad():
        theirs = torch.stack(peer(x, output_attentions=True).attentions, 1)
    model = loaded(tmp_path)
    assert (inspection.attention(model, x, None) - theirs).abs().max() < 1e-5
    assert inspection.rollout(model, x).shape == (2, 3, 5)
    with pytest.raises(UserError, match="rotary positions alone"):
        inspection.position_similarity(model)


def test_unknown_forms_in_files_are_refused(tmp_path: Path) -> None:
    timms(tmp_path, *VARIANTS[1])
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    for name, value in (("rope_type", "mrope"), ("rope_grid_offset", 0.5)):
        changed = {**values, "model_args": {**values["model_args"], name: value}}
        path.write_text(json.dumps(changed))
        with pytest.raises(UserError, match=f"{name}={value!r}"):
            create_model(pretrained=tmp_path)
