"""open_clip's files give what timm's own converter makes of them; other towers are refused.

The names and shapes are typed here from open_clip 3.3 (model.py, transformer.py).
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from vit.errors import UserError
from vit.weights.pretrained import load_pretrained

timm = pytest.importorskip("timm")

WIDTH, DEPTH, OUTPUTS, PATCH, SIZE = 128, 2, 24, 16, (48, 80)
VISION: dict[str, Any] = {
    "image_size": list(SIZE),
    "layers": DEPTH,
    "width": WIDTH,
    "patch_size": PATCH,
    "head_width": 32,
}


def state(seed: int = 0) -> dict[str, Tensor]:
    """A CLIP with both towers."""
    draw = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw) * shape[-1] ** -0.5

    def norm(name: str) -> dict[str, Tensor]:
        return {f"{name}.weight": 1 + noise(WIDTH), f"{name}.bias": noise(WIDTH)}

    patches = (SIZE[0] // PATCH) * (SIZE[1] // PATCH)
    tensors = {
        "positional_embedding": noise(8, 64),
        "text_projection": noise(64, OUTPUTS),
        "logit_scale": torch.tensor(2.6),
        "visual.class_embedding": noise(WIDTH),
        "visual.positional_embedding": noise(1 + patches, WIDTH),
        "visual.proj": noise(WIDTH, OUTPUTS),
        "visual.conv1.weight": 0.1 * noise(WIDTH, 3, PATCH, PATCH),
        **norm("visual.ln_pre"),
        **norm("visual.ln_post"),
        "token_embedding.weight": noise(64, 64),
    }
    for i in range(DEPTH):
        block = f"visual.transformer.resblocks.{i}."
        tensors |= {**norm(f"{block}ln_1"), **norm(f"{block}ln_2")}
        for name, rows, columns in (
            ("attn.out_proj", WIDTH, WIDTH),
            ("mlp.c_fc", 3 * WIDTH, WIDTH),
            ("mlp.c_proj", WIDTH, 3 * WIDTH),
        ):
            tensors |= {f"{block}{name}.weight": 3 * noise(rows, columns)}
            tensors |= {f"{block}{name}.bias": noise(rows)}
        tensors[f"{block}attn.in_proj_weight"] = 3 * noise(3 * WIDTH, WIDTH)
        tensors[f"{block}attn.in_proj_bias"] = noise(3 * WIDTH)
    return tensors


def saved(
    folder: Path, quick: bool, preprocess: dict[str, Any] | None = None, **vision: Any
) -> Path:
    """A directory as open_clip pushes it to the hub."""
    torch.save(state(), folder / "open_clip_model.ckpt")
    model = {"embed_dim": OUTPUTS, "vision_cfg": {**VISION, **vision}, "text_cfg": {"width": 64}}
    described = {
        "model_cfg": {**model, **({"quick_gelu": True} if quick else {})},
        "preprocess_cfg": preprocess or {"mean": [0.48] * 3, "std": [0.27] * 3},
    }
    (folder / "open_clip_config.json").write_text(json.dumps(described))
    return folder / "open_clip_model.ckpt"


def peer(quick: bool) -> Any:
    """timm's model with the weights that timm converts."""
    from timm.models.vision_transformer import checkpoint_filter_fn

    name = f"vit_base_patch16_clip_{'quickgelu_' if quick else ''}224"
    sizes = {"embed_dim": WIDTH, "depth": DEPTH, "num_heads": 4, "mlp_ratio": 3.0}
    model = timm.create_model(name, num_classes=OUTPUTS, img_size=SIZE, **sizes)
    model.load_state_dict(checkpoint_filter_fn(state(), model))
    return model.eval()


@pytest.mark.parametrize("quick", [True, False])
@torch.no_grad()
def test_a_file_gives_what_timm_makes_of_it(quick: bool, tmp_path: Path) -> None:
    ours, report = load_pretrained(saved(tmp_path, quick))
    images = torch.randn(2, 3, *SIZE)
    theirs = peer(quick)(images)
    assert (ours.eval()(images) - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    other = peer(not quick)(images)
    assert (other - theirs).abs().max() > 1e-3 * theirs.abs().max()
    assert report.unanswerable == "is a projection, its outputs are numbers and no classes"
    assert report.left_out == {"text": "the text tower"} and report.format == "open_clip"
    assert report.preprocess is not None and report.preprocess["mean"] == [0.48] * 3
    assert report.preprocess["resize"] == "crop" and report.preprocess["crop_fraction"] == 1


@torch.no_grad()
def test_a_checkpoint_of_a_training_needs_heads_and_gelu(tmp_path: Path) -> None:
    tensors = {f"module.{name}": tensor for name, tensor in state().items()}
    optimizer = {"state": {0: {"exp_avg": torch.zeros(3)}}}
    file = tmp_path / "epoch_3.pt"
    torch.save({"epoch": 3, "state_dict": tensors, "optimizer": optimizer}, file)
    facts: dict[str, Any] = {"image_size": SIZE, "num_heads": 4}
    with pytest.raises(UserError, match=r"activation='quick_gelu' .* or 'gelu'"):
        load_pretrained(file, **facts)
    ours, _ = load_pretrained(file, **facts, activation="quick_gelu")
    images = torch.randn(2, 3, *SIZE)
    theirs = peer(True)(images)
    assert (ours.eval()(images) - theirs).abs().max() <= 1e-5 * theirs.abs().max()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pool_type": "avg"}, "open_clip's pool_type='avg' is not supported"),
        ({"act_kwargs": {"approximate": "tanh"}}, "open_clip's act_kwargs="),
        ({"norm_kwargs": {"eps": 1e-3}}, "open_clip's norm_kwargs="),
        ({"qk_norm": True}, "open_clip's qk_norm=True"),
        ({"head_width": 48}, "head_width=48 does not divide 128"),
        ({"image_size": "big"}, "image_size='big' must be"),
    ],
)
def test_another_tower_is_refused_by_name(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message) as raised:
        load_pretrained(saved(tmp_path, False, **change))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("gone", "more", "message"),
    [
        ("visual.ln_pre.weight", {}, "has no ln_pre.weight"),  # CLIPA
        ("visual.proj", {}, "has no proj"),  # Meta's Perception Encoder, spatial
        ("", {"visual.attn_pool.probe": torch.zeros(1, 1, 8)}, "has an attention pooling"),
        ("", {"visual.transformer.resblocks.0.ls_1.gamma": torch.ones(8)}, "1 unexpected"),
    ],
)
def test_a_file_of_another_tower_is_refused(
    gone: str, more: dict[str, Tensor], message: str, tmp_path: Path
) -> None:
    tensors = {name: tensor for name, tensor in state().items() if name != gone} | more
    torch.save(tensors, tmp_path / "clip.pt")
    with pytest.raises(UserError, match=message):
        load_pretrained(tmp_path / "clip.pt", image_size=SIZE, num_heads=4, activation="gelu")


def test_a_preparation_that_is_not_done_is_named(tmp_path: Path) -> None:
    padded = {"mean": [0.5] * 3, "std": [0.5] * 3, "resize_mode": "longest"}
    _, report = load_pretrained(saved(tmp_path, False, padded))
    assert report.preprocess is None and "resize_mode='longest'" in report.unprepared
