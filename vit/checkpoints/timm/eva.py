"""timm's Eva: DINOv3, LingBot-Vision, RoPE-ViT and the small EVA-02, which have rotary positions.

The form of the positions is in no tensor: the architecture's name and `model_args` say it, or the
user's word. Keys have no biases, unless attention is timm's AttentionRope.
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

# Pattern of an architecture -> the arguments that its entry builds its positions with.
_FORMS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        r"dinov3|lingbot",
        {"rope_type": "dinov3", "rope_temperature": 100.0, "rope_rotate_half": True},
    ),
    (r"_rope_reg|eva02", {"ref_feat_shape": (16, 16)}),
    (
        r"_rope_mixed",
        {"rope_type": "mixed", "rope_temperature": 10.0, "rope_grid_indexing": "xy"}
        | {"attn_type": "rope"},
    ),
    (
        r"_rope_",
        {"rope_temperature": 100.0, "rope_grid_indexing": "xy", "attn_type": "rope"},
    ),
)
_DEFAULTS: dict[str, Any] = {
    "use_rot_pos_emb": True,
    "attn_type": "eva",
    "ref_feat_shape": None,
    "rope_type": "cat",
    "rope_temperature": 10000.0,
    "rope_rotate_half": False,
    "rope_grid_indexing": "ij",
    "rope_grid_offset": 0.0,
    "rope_shift_coords": None,
    "rope_jitter_coords": None,
    "rope_rescale_coords": None,
}
ARGUMENTS = frozenset(
    "use_abs_pos_emb num_reg_tokens qkv_fused swiglu_mlp swiglu_align_to use_fc_norm "
    "use_post_transformer_norm".split()
) | frozenset(_DEFAULTS)
"""Arguments of these models that tensors show, or that are read here."""
_EPSILON = 1e-5  # of DINOv3's norms
_LARGE_EPSILON = re.compile(r"dinov3|lingbot")
KEYLESS = Op(lambda q, v: torch.cat([q, torch.zeros_like(q), v]), lambda t: t.chunk(3)[::2])
"""Biases of queries and values, without those of keys."""


def rotary_of(file: WeightFile, known: Family | None) -> Rotary | None:
    """The rotary positions of the architecture described, or by the user's word; None without.

    UserError for a form that is not known here.
    """
    if "rotary" in file.hints:
        given = file.hints["rotary"]
        return None if given is None else Rotary.of(given)
    architecture = known.architecture if known else ""
    form = next((form for sign, form in _FORMS if re.search(sign, architecture)), None)
    if form is None:
        return None
    values = _DEFAULTS | form
    values |= {key: value for key, value in arguments_of(file).items() if key in _DEFAULTS}
    if not values["use_rot_pos_emb"]:
        return None
    kind, reference = values["rope_type"], values["ref_feat_shape"]
    if kind not in ("cat", "dinov3", "mixed"):
        raise UserError(
            f"{file.path}: timm's rope_type={kind!r} (config.json) is not supported here, only "
            "'cat', 'dinov3' and 'mixed'"
        )
    return Rotary(
        coordinates="centred" if kind == "dinov3" else "index",
        period=float(values["rope_temperature"]),
        pairing="halves" if values["rope_rotate_half"] else "neighbours",
        columns_first=values["rope_grid_indexing"] == "xy",
        offset=0.0 if kind == "mixed" else float(values["rope_grid_offset"]),
        reference=reference if kind == "cat" else None,
        learned=kind == "mixed",
        key_bias=values["attn_type"] == "rope",
        shift=values["rope_shift_coords"],
        jitter=values["rope_jitter_coords"],
        rescale=values["rope_rescale_coords"],
    )


def epsilon(file: WeightFile, known: Family | None, rotary: Rotary | None) -> float:
    """Epsilon of the norms: timm's 1e-6, or DINOv3's."""
    if "layer_norm_eps" in file.hints:
        return file.hints["layer_norm_eps"]
    if known is None:
        return _EPSILON if rotary and rotary.coordinates == "centred" else 1e-6
    return _EPSILON if _LARGE_EPSILON.search(known.architecture) else 1e-6


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
    """Architecture, arguments and tensors of an Eva. UserError where it is not the same model."""
    rotary = config.rotary
    assert rotary is not None
    check_expressed(
        "timm's Eva",
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
    if config.layer_norm_eps not in (_EPSILON, 1e-6):
        raise UserError(
            f"timm's Eva has norms with an epsilon of 1e-5 or 1e-6, not {config.layer_norm_eps:g}; "
            "keep it --to native"
        )
    dinov3 = config.layer_norm_eps == _EPSILON
    gated = config.activation == "swiglu"
    split = gated and config.mlp_dim % 8 == 0
    kind = "dinov3" if rotary.coordinates == "centred" else "mixed" if rotary.learned else "cat"
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
        "use_rot_pos_emb": True,
        "attn_type": "rope" if rotary.key_bias else "eva",
        "ref_feat_shape": None if rotary.reference is None else list(rotary.reference),
        "rope_type": kind,
        "rope_temperature": rotary.period,
        "rope_rotate_half": rotary.pairing == "halves",
        "rope_grid_indexing": "xy" if rotary.columns_first else "ij",
        "rope_grid_offset": rotary.offset,
        "rope_shift_coords": rotary.shift,
        "rope_jitter_coords": rotary.jitter,
        "rope_rescale_coords": rotary.rescale,
    }
    name = "vit_base_patch16_dinov3_qkvb" if dinov3 else "vit_base_patch16_rope_224"
    rules = [_rule(key, keyless=not rotary.key_bias, split=split) for key in tensors]
    return name, arguments, exported(tensors, rules)


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
