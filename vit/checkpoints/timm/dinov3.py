"""timm's DINOv3 and LingBot-Vision: rotary positions, and keys without biases.

The form of the positions is in no tensor: the architecture's name and `model_args` say it, or the
user's word. Keys have biases where attention is timm's AttentionRope.
Source: timm 1.0.31, models/eva.py and layers/pos_embed_sincos.py.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vit.checkpoints.exporting import ANY, check_expressed
from vit.checkpoints.files import WeightFile
from vit.checkpoints.layout import HALVES, Op, Rule, exported
from vit.checkpoints.timm.families import Family, arguments_of
from vit.errors import UserError
from vit.models.config import Rotary, ViTConfig

_READ = frozenset(
    "attn_type use_abs_pos_emb num_reg_tokens qkv_fused swiglu_mlp swiglu_align_to use_fc_norm "
    "use_post_transformer_norm rope_temperature rope_shift_coords rope_jitter_coords "
    "rope_rescale_coords".split()
)
# The form of the positions in timm's words.
_FORM = {
    "use_rot_pos_emb": True,
    "rope_type": "dinov3",
    "rope_rotate_half": True,
    "rope_grid_indexing": "ij",
    "rope_grid_offset": 0.0,
}
_EPSILON = 1e-5
KEYLESS = Op(lambda q, v: torch.cat([q, torch.zeros_like(q), v]), lambda t: t.chunk(3)[::2])
"""Biases of queries and values, without those of keys."""


def rotary_of(file: WeightFile, known: Family | None) -> Rotary | None:
    """The rotary positions of the architecture described, or by the user's word; None without."""
    if "rotary" in file.hints:
        given = file.hints["rotary"]
        return None if given is None else Rotary.of(given)
    if known is None or not re.search("dinov3|lingbot", known.architecture):
        return None
    values = arguments_of(file)
    return Rotary(
        period=float(values.get("rope_temperature", 100.0)),
        key_bias=values.get("attn_type") == "rope",
        shift=values.get("rope_shift_coords"),
        jitter=values.get("rope_jitter_coords"),
        rescale=values.get("rope_rescale_coords"),
    )


def arguments(file: WeightFile) -> frozenset[str]:
    """Arguments of these models that tensors show, that are read here, or that are DINOv3's own."""
    values = arguments_of(file)
    return _READ | {name for name, own in _FORM.items() if values.get(name, own) == own}


def epsilon(file: WeightFile, rotary: Rotary | None) -> float:
    """Epsilon of the norms: timm's 1e-6, or DINOv3's."""
    return file.hints.get("layer_norm_eps", 1e-6 if rotary is None else _EPSILON)


def joined(
    shapes: Mapping[str, tuple[int, ...]], names: Mapping[str, str]
) -> tuple[dict[str, tuple[int, ...]], list[Rule]]:
    """Shapes and rules of our tensors that timm stores apart: biases of q and v, gate and value.

    `shapes`: of the file; `names`: its keys -> ours. Those that are stored as ours are included.
    """
    ours = {name: shapes[key] for key, name in names.items()}
    rules = [Rule(name, (key,)) for key, name in names.items()]
    for key in shapes:
        block, _, part = key.partition(".attn.q_bias")
        if not part and key.endswith(".attn.q_bias"):
            rules.append(Rule(f"{block}.attn.qkv.bias", (key, f"{block}.attn.v_bias"), KEYLESS))
            ours[f"{block}.attn.qkv.bias"] = (3 * shapes[key][0],)
        if ".mlp.fc1_g." in key:
            name = key.replace("fc1_g", "fc1")
            rules.append(Rule(name, (key, key.replace("fc1_g", "fc1_x")), HALVES))
            rows, *columns = shapes[key]
            ours[name] = (2 * rows, *columns)
    apart = {key for rule in rules if len(rule.theirs) > 1 for key in rule.theirs}
    kept = [rule for rule in rules if len(rule.theirs) > 1 or apart.isdisjoint(rule.theirs)]
    return {name: shape for name, shape in ours.items() if name not in apart}, kept


def write(
    config: ViTConfig, tensors: Mapping[str, Tensor]
) -> tuple[str, dict[str, Any], dict[str, Tensor]]:
    """Architecture, arguments and tensors of a DINOv3. UserError where it is not the same model."""
    rotary = config.rotary
    assert rotary is not None
    check_expressed(
        "timm's DINOv3",
        config,
        "keep it --to native",
        rotary=ANY,
        pool=("cls", "gap") if config.num_classes else ("cls", "gap", "cls_gap"),
        norm_after_pool=ANY,
        class_token=ANY,
        num_registers=ANY,
        pos_embed=("learned", "sincos2d", "none"),
        pos_embed_class_slot=ANY,
        layer_scale=ANY,
        activation=("gelu", "swiglu"),
    )
    if config.layer_norm_eps != _EPSILON:
        raise UserError(
            f"timm's DINOv3 has norms with an epsilon of 1e-5, not {config.layer_norm_eps:g}; "
            "keep it --to native"
        )
    gated = config.activation == "swiglu"
    split = gated and config.mlp_dim % 8 == 0
    arguments = {
        "img_size": list(config.size),
        "in_chans": config.in_channels,
        "patch_size": config.patch_size,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.num_heads,
        "mlp_ratio": _ratio(config.mlp_dim, config.width),
        "swiglu_mlp": gated,
        "swiglu_align_to": 8 if split else 0,
        "global_pool": {"cls": "token", "gap": "avg", "cls_gap": "token"}[config.pool],
        "class_token": config.class_token,
        "num_reg_tokens": config.num_registers,
        "init_values": config.layer_scale,
        "qkv_bias": True,
        "use_fc_norm": config.norm_after_pool,
        "use_post_transformer_norm": not config.norm_after_pool,
        "use_abs_pos_emb": config.pos_embed != "none",
        "no_embed_class": not (config.class_token and config.pos_embed_class_slot),
        **_FORM,
        "attn_type": "rope" if rotary.key_bias else "eva",
        "rope_temperature": rotary.period,
        "rope_shift_coords": rotary.shift,
        "rope_jitter_coords": rotary.jitter,
        "rope_rescale_coords": rotary.rescale,
    }
    rules = [_rule(key, keyless=not rotary.key_bias, split=split) for key in tensors]
    return "vit_base_patch16_dinov3_qkvb", arguments, exported(tensors, rules)


def _rule(key: str, *, keyless: bool, split: bool) -> Rule:
    """Where timm keeps one of our tensors."""
    if scale := re.fullmatch(r"(blocks\.\d+)\.ls([12])\.gamma", key):
        return Rule(key, (f"{scale[1]}.gamma_{scale[2]}",))
    if keyless and key.endswith(".attn.qkv.bias"):
        block = key.removesuffix("qkv.bias")
        return Rule(key, (f"{block}q_bias", f"{block}v_bias"), KEYLESS)
    if split and ".mlp.fc1." in key:
        return Rule(key, tuple(key.replace("fc1", f"fc1_{part}") for part in "gx"), HALVES)
    return Rule(key, (key,))


def _ratio(hidden: int, width: int) -> float:
    """The MLP ratio from which timm derives this width, rounding down."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else (hidden + 0.5) / width
