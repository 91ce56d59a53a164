"""Image towers of CLIP, MetaCLIP 2, SigLIP and SigLIP 2 give what transformers gives, both ways."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import vit
from benchmarks.parity.families import scatter
from vit.errors import UserError
from vit.extensions.formats.convert import convert
from vit.extensions.formats.preprocessing import HUGGING_FACE
from vit.weights.native import save_native
from vit.weights.pretrained import inspect_pretrained, load_pretrained

transformers = pytest.importorskip("transformers")

SIDE, PATCH, ODD = 40, 8, (24, 56)
EQUAL = 1e-5
"""Of the largest output, in float32."""
VISION = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": SIDE,
    "patch_size": PATCH,
    "intermediate_size": 96,
}
TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 64,
    "max_position_embeddings": 16,
}
TOWERS: dict[str, tuple[str, dict[str, Any]]] = {
    "clip": ("CLIPVisionModel", {}),
    "clip, exact GELU": ("CLIPVisionModel", {"hidden_act": "gelu"}),
    "clip, projected": ("CLIPVisionModelWithProjection", {"projection_dim": 32}),
    "clip with text": ("CLIPModel", {"projection_dim": 32}),
    "metaclip 2": ("MetaClip2VisionModel", {}),
    "metaclip 2 with text": ("MetaClip2Model", {"projection_dim": 32}),
    "siglip": ("SiglipVisionModel", {}),
    "siglip, exact GELU": ("SiglipVisionModel", {"hidden_act": "gelu"}),
    "siglip with text": ("SiglipModel", {}),
    "siglip 2": ("Siglip2VisionModel", {"num_patches": (SIDE // PATCH) ** 2}),
}


def peer_of(name: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    if "Vision" not in name:
        changes = {"vision_config": VISION, "text_config": TEXT, **changes}
    else:
        changes = {**VISION, **changes}
    return scatter(kind(kind.config_class(**changes)))


@torch.no_grad()
def answer(peer: Any, images: Tensor) -> Tensor:
    """The embedding of the images: projected where the model does so."""
    if type(peer).__name__ == "Siglip2VisionModel":
        b, _, height, width = images.shape
        grid = height // PATCH, width // PATCH
        rows = torch.nn.functional.unfold(images, PATCH, stride=PATCH).mT  # b n (c side side)
        rows = rows.unflatten(-1, (3, PATCH * PATCH)).mT.flatten(-2)  # colours last
        mask = torch.ones(rows.shape[:2], dtype=torch.int32)
        return peer(rows, mask, torch.tensor([grid] * b)).pooler_output
    resized = images.shape[-2:] != (SIDE, SIDE)
    call = getattr(peer, "get_image_features", peer)
    result = call(images, **({"interpolate_pos_encoding": True} if resized else {}))
    embedding = getattr(result, "image_embeds", None)
    return result.pooler_output if embedding is None else embedding


@torch.no_grad()
def outputs(path: Path, images: Tensor) -> Tensor:
    model, _ = load_pretrained(path, image_size=tuple(images.shape[-2:]))
    return model.eval()(images)


def assert_equal(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= EQUAL * theirs.abs().max()


@pytest.mark.parametrize("tower", TOWERS)
def test_a_tower_equals_its_home_at_odd_sizes_and_goes_back(tower: str, tmp_path: Path) -> None:
    name, changes = TOWERS[tower]
    peer = peer_of(name, **changes)
    peer.save_pretrained(tmp_path / "theirs")
    for size in ((SIDE, SIDE), ODD):
        images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))
        assert_equal(outputs(tmp_path / "theirs", images), answer(peer, images))
    images = images[..., :SIDE].repeat(1, 1, 2, 1)[:, :, :SIDE]
    convert(tmp_path / "theirs", tmp_path / "back", "huggingface")
    [kind] = json.loads((tmp_path / "back/config.json").read_text())["architectures"]
    again, account = getattr(transformers, kind).from_pretrained(
        tmp_path / "back", output_loading_info=True
    )
    assert not any(account.values())
    assert torch.equal(answer(again.eval(), images), answer(peer, images))
    first, second = (inspect_pretrained(tmp_path / each).config for each in ("theirs", "back"))
    assert first == second


def test_the_gelu_and_the_epsilon_matter(tmp_path: Path) -> None:
    """By more than is taken for equal, so that a wrong one would be seen."""
    peer = peer_of("CLIPVisionModel")
    with torch.no_grad():
        for parameter in peer.embeddings.parameters():
            parameter.mul_(0.03)  # small enough for the epsilon to count
    peer.save_pretrained(tmp_path)
    images = torch.randn(2, 3, SIDE, SIDE)
    for change in ({"activation": "gelu"}, {"layer_norm_eps": 1e-6}):
        model, _ = load_pretrained(tmp_path, **change)
        with torch.no_grad():
            apart = (model.eval()(images) - answer(peer, images)).abs().max()
        assert apart > 3 * EQUAL * answer(peer, images).abs().max(), change


def test_defaults_that_config_json_leaves_out_are_the_librarys() -> None:
    for kind, model_type in (
        ("clip", "clip_vision_model"),
        ("clip", "metaclip_2_vision_model"),
        ("siglip", "siglip_vision_model"),
        ("siglip2", "siglip2_vision_model"),
    ):
        table = {k: v for k, v in HUGGING_FACE["towers"][kind].items() if k != "written"}
        config = transformers.AutoConfig.for_model(model_type)
        usual = {name: getattr(config, name, table[name]) for name in table}
        assert table == usual, model_type


def test_the_older_description_of_a_tower_wins_as_at_home(tmp_path: Path) -> None:
    """transformers takes its fields, and the library's defaults for those that it leaves out."""
    of_vision = {**VISION, "hidden_act": "gelu", "layer_norm_eps": 1e-3}
    older = {**VISION, "num_attention_heads": 2}
    peer_of("CLIPModel", vision_config=of_vision).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"vision_config_dict": older}))
    peer = transformers.CLIPModel.from_pretrained(tmp_path).eval()
    assert peer.config.vision_config.hidden_act == "quick_gelu"
    images = torch.randn(2, 3, SIDE, SIDE)
    assert_equal(outputs(tmp_path, images), answer(peer, images))


def test_files_of_transformers_4_have_a_constant_more(tmp_path: Path) -> None:
    peer = peer_of("CLIPModel", projection_dim=32)
    peer.save_pretrained(tmp_path)
    state = {
        **peer.state_dict(),
        "vision_model.embeddings.position_ids": torch.arange(26)[None],
    }
    (tmp_path / "model.safetensors").unlink()
    torch.save(state, tmp_path / "pytorch_model.bin")
    images = torch.randn(2, 3, SIDE, SIDE)
    assert_equal(outputs(tmp_path, images), answer(peer, images))


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("CLIPForImageClassification", {}, r"2 unexpected: \+classifier.bias \+classifier.weight"),
    ("SiglipForImageClassification", {}, r"2 unexpected: \+classifier.bias \+classifier.weight"),
    ("SiglipVisionModel", {"vision_use_head": False}, "neither CLIP's norm nor SigLIP's pooling"),
    ("CLIPVisionModel", {"hidden_act": "relu"}, "hidden_act='relu' is not one of gelu, "),
]


@pytest.mark.parametrize(("name", "changes", "message"), REFUSED)
def test_another_model_is_refused_in_one_line(
    name: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    peer_of(name, **changes).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=message) as raised:
        load_pretrained(tmp_path)
    assert "\n" not in str(raised.value)


def test_an_embedding_is_not_taken_for_classes(tmp_path: Path) -> None:
    peer_of("CLIPModel", projection_dim=32).save_pretrained(tmp_path / "clip")
    convert(tmp_path / "clip", tmp_path / "ours", "native")
    for folder in ("clip", "ours"):
        with pytest.raises(UserError, match="is a projection, its outputs are numbers and no"):
            vit.load(tmp_path / folder)


def test_a_bare_file_needs_its_heads_and_gelu(tmp_path: Path) -> None:
    peer, file = peer_of("CLIPVisionModel"), tmp_path / "clip.pth"
    torch.save(peer.state_dict(), file)
    missing = "num_heads=... and activation='quick_gelu' or 'gelu'"
    with pytest.raises(UserError, match=missing):
        load_pretrained(file)
    images = torch.randn(2, 3, SIDE, SIDE)
    model, _ = load_pretrained(file, num_heads=4, activation="quick_gelu")
    with torch.no_grad():
        assert_equal(model.eval()(images), answer(peer, images))


def test_a_head_with_classes_is_not_written_as_a_projection(tmp_path: Path) -> None:
    peer_of("CLIPVisionModel").save_pretrained(tmp_path / "clip")
    with pytest.raises(UserError, match=r"projection without a bias.*try --to timm"):
        model, _ = load_pretrained(tmp_path / "clip", classes=["cat", "dog"])
        save_native(tmp_path / "ours", model, classes=["cat", "dog"], preprocess=None, extra={})
        convert(tmp_path / "ours", tmp_path / "back", "huggingface")


def test_a_picture_that_patches_do_not_fill_is_cut(tmp_path: Path) -> None:
    """transformers leaves the last rows and columns out, as of SigLIP's 384 pixels by 14."""
    peer = peer_of("SiglipVisionModel", image_size=SIDE + 4)
    peer.save_pretrained(tmp_path)
    described = {
        "image_processor_type": "SiglipImageProcessor",
        "size": {"height": 44, "width": 44},
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(described))
    model, report = load_pretrained(tmp_path)
    assert report.preprocess is not None and report.preprocess["image_size"] == [SIDE, SIDE]
    assert round(SIDE / report.preprocess["crop_fraction"]) == SIDE + 4
    assert any(f"44x44 pixels: images are cut to {SIDE}x{SIDE}" in note for note in report.notes)
    images = torch.randn(1, 3, SIDE + 4, SIDE + 4)
    with torch.no_grad():
        theirs = peer.eval()(images).pooler_output
        ours = model.eval()(images[..., :SIDE, :SIDE])
    assert (ours - theirs).abs().max() <= EQUAL * theirs.abs().max()
