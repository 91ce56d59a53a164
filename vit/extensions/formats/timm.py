"""timm's ViT, DeiT, DeiT-III, DINOv2, DINOv3, CLIP, hybrids and BiT, read and written.

`timm.create_model("local-dir:PATH", pretrained=True)` loads what is written.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from vit.errors import UserError
from vit.extensions.formats import timm_reading as reading
from vit.extensions.formats import timm_towers
from vit.extensions.formats.descriptions import check_descriptions
from vit.extensions.formats.exporting import (
    ANY,
    Export,
    NativeInfo,
    Writable,
    arithmetic_notes,
    carried,
    check_expressed,
    directory,
)
from vit.extensions.formats.layout import Rule, exported
from vit.extensions.formats.preprocessing import rounding_note, to_timm
from vit.extensions.formats.refusals import FAMILIES, refused
from vit.extensions.formats.rotary import Rotary
from vit.extensions.formats.timm_families import architecture_of
from vit.models.config import ResNetConfig, ViTConfig
from vit.models.embedding import sincos2d
from vit.models.zoo import ModelConfig
from vit.weights.formats import Recognised
from vit.weights.weight_file import WeightFile

_HYBRIDS = {tuple(depths): name for name, depths in FAMILIES["hybrids"].items()}
_RESNETS = {(tuple(depths), width): name for name, (depths, width) in FAMILIES["resnets"].items()}
_DINOV3 = "vit_base_patch16_dinov3_qkvb"
_EXPRESSED = (
    "norm_after_pool class_token distillation_token num_registers pos_embed pos_embed_class_slot "
    "layer_scale activation pre_norm"
)
"""Fields of which timm's ViT has every value."""
_CLIP = "vit_base_patch16_clip_224"
"""The entry whose norms have an epsilon of 1e-5."""


class Timm(Writable):
    """Row of the table `formats`."""

    @override
    def matches(self, file: WeightFile) -> bool:
        return reading.matches(file)

    @override
    def recognise(self, file: WeightFile) -> Recognised:
        check_descriptions(file)
        return reading.recognise(file)

    @override
    def write(self, config: ModelConfig, state: Mapping[str, Tensor], info: NativeInfo) -> Export:
        return write(config, state, info)

    @override
    def refuse(self, file: WeightFile) -> UserError | None:
        """The error for any architecture that config.json names."""
        check_descriptions(file)
        architecture = architecture_of(file)
        return None if architecture is None else refused("timm", architecture)


def write(config: ModelConfig, state: Mapping[str, Tensor], info: NativeInfo) -> Export:
    """A directory with config.json. UserError where no entry of timm is the same model."""
    tensors = {name: tensor.contiguous() for name, tensor in state.items()}
    notes = arithmetic_notes("timm", config, ws_mode="timm", layer_norm_eps=1e-6)
    if isinstance(config, ResNetConfig):
        architecture = _RESNETS.get((config.depths, config.width_factor))
        if architecture is None:
            sizes = f"depths {list(config.depths)} and width factor {config.width_factor}"
            raise UserError(f"timm has no BiT with {sizes}; try --to google")
        arguments: dict[str, Any] = {"in_chans": config.in_channels}
        pool, num_features = "avg", config.stage_channels[-1]
    else:
        architecture = _architecture(config)
        arguments = _arguments(config, architecture)
        notes = [] if architecture in (_CLIP, _DINOV3) or config.tower is not None else notes
        pool, num_features = arguments["global_pool"], config.width
        if config.pool == "cls_gap":
            notes = [*notes, "timm gives the class token; this model adds the patches' mean"]
        tensors = _tensors(config, tensors, split=arguments.get("swiglu_align_to", 0) > 0)
        if config.pos_embed == "sincos2d":
            tensors["pos_embed"] = sincos2d(config.grid, config.width)
            notes.append("the fixed positions are written as a table of learned ones")
    cfg = {} if info.preprocess is None else to_timm(info.preprocess)
    if info.preprocess is not None:
        notes += rounding_note("timm", info.preprocess, "even")
    cfg |= {"input_size": [config.in_channels, *config.size], "num_classes": config.num_classes}
    cfg["fixed_input_size"] = isinstance(config, ViTConfig)
    labels = {} if info.classes is None else {"label_names": info.classes}
    values = {
        "architecture": architecture,
        "num_classes": config.num_classes,
        "num_features": num_features,
        "global_pool": pool,
        "model_args": arguments,
        "pretrained_cfg": cfg | labels,
        **labels,
        **carried(info.extra),
    }
    if info.extra.get("projection"):
        values["projection"] = True  # not timm's: what the outputs are
    return Export(save=directory(tensors, {"config.json": values}), notes=notes)


def _tensors(config: ViTConfig, tensors: dict[str, Tensor], *, split: bool) -> dict[str, Tensor]:
    """A ViT's under timm's names. `split`: the gate and the value of a DINOv3's MLP are apart."""
    if config.rotary is not None:
        rotary = Rotary.of(config.rotary)
        tensors = exported(tensors, [_of_dinov3(name, rotary, split) for name in tensors])
    if config.tower is not None:
        parts = timm_towers.parts(config.tower)
        spelled = [(name, _spelled(name), config.num_heads) for name in tensors]
        tensors = exported(tensors, [timm_towers.rule(*names, **parts) for names in spelled])
    slots = config.num_position_slots if config.pos_embed == "learned" else 0
    if config.num_registers and slots:
        table = tensors["pos_embed"]  # timm's has entries for all tokens in front or for none
        gap = table.new_zeros(1, config.num_registers, config.width)
        tensors["pos_embed"] = torch.cat([table[:, :slots], gap, table[:, slots:]], dim=1)
    return tensors


def _architecture(config: ViTConfig) -> str:
    """A timm entry whose code, with our arguments, is this model. UserError without one."""
    distilled, rotary = config.distillation_token, config.rotary is not None
    headless = ("cls_gap",) if config.num_classes == 0 else ()
    project = "timm's ViT"
    expressed: dict[str, Any] = {
        **dict.fromkeys(_EXPRESSED.split(), ANY),
        "pool": ("cls", "gap", "map", *headless),
        "stem_depths": (None, *_HYBRIDS),
    }
    if distilled:
        project = "timm's distilled ViT"
        expressed |= {"num_registers": (0,), "pos_embed_class_slot": (True,), "pre_norm": (False,)}
        expressed["activation"] = ("gelu", "gelu_tanh", "quick_gelu")
        expressed["norm_after_pool"] = (False,)
    if rotary:
        project = "timm's DINOv3"
        expressed |= {"rotary": ANY, "pool": ("cls", "gap", *headless), "stem_depths": (None,)}
        expressed |= {"distillation_token": (False,), "activation": ("gelu", "swiglu")}
        expressed |= {"pre_norm": (False,), "layer_norm_eps": (1e-5,)}
    if config.tower is not None:
        project, entry, values = timm_towers.entry_of(config.tower)
        check_expressed(project, config, "keep it --to native", **expressed | values)
        return entry
    check_expressed(project, config, "keep it --to native", **expressed)
    if rotary:
        return _DINOV3
    if distilled:
        return "deit_base_distilled_patch16_224"
    if config.stem_depths is not None:
        return _HYBRIDS[config.stem_depths]
    if config.activation == "swiglu":
        return "vit_giant_patch14_dinov2"
    return _CLIP if config.layer_norm_eps == 1e-5 else "vit_base_patch16_224"


def _arguments(config: ViTConfig, architecture: str) -> dict[str, Any]:
    # timm's ViT takes the joint width of gate and value, its Eva that of each.
    is_plain = config.rotary is None and config.tower is None
    hidden = config.mlp_hidden_width if is_plain else config.mlp_dim
    ratio = hidden / config.width
    if int(config.width * ratio) != hidden:  # timm rounds down
        ratio = (hidden + 0.5) / config.width
    arguments: dict[str, Any] = {
        "img_size": list(config.size),
        "in_chans": config.in_channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.num_heads,
        "mlp_ratio": ratio,
        "global_pool": {"gap": "avg", "map": "map"}.get(config.pool, "token"),
        "class_token": config.class_token,
        "init_values": config.layer_scale,
    }
    if config.stem_depths is None:
        arguments["patch_size"] = config.patch_size
    if config.activation in ("gelu_tanh", "quick_gelu") or architecture == _CLIP:
        arguments["act_layer"] = config.activation
    if config.distillation_token:
        return arguments
    if config.tower is not None:
        return arguments | timm_towers.arguments(config, config.tower)
    arguments["no_embed_class"] = not config.num_position_slots or config.pos_embed == "sincos2d"
    if config.rotary is not None:
        return arguments | _arguments_of_dinov3(config, Rotary.of(config.rotary))
    return arguments | {
        "fc_norm": config.norm_after_pool,
        "reg_tokens": config.num_registers,
        "pre_norm": config.pre_norm,
        "pos_embed": "none" if config.pos_embed == "none" else "learn",
    }


def _arguments_of_dinov3(config: ViTConfig, rotary: Rotary) -> dict[str, Any]:
    gated = config.activation == "swiglu"
    return {
        "swiglu_mlp": gated,
        "swiglu_align_to": 8 if gated and config.mlp_dim % 8 == 0 else 0,
        "num_reg_tokens": config.num_registers,
        "qkv_bias": True,
        "use_fc_norm": config.norm_after_pool,
        "use_post_transformer_norm": not config.norm_after_pool,
        "use_abs_pos_emb": config.pos_embed != "none",
        **FAMILIES["rotary_form"],
        "attn_type": "rope" if rotary.key_bias else "eva",
        "rope_temperature": rotary.period,
        "rope_shift_coords": rotary.shift,
        "rope_jitter_coords": rotary.jitter,
        "rope_rescale_coords": rotary.rescale,
    }


def _of_dinov3(ours: str, rotary: Rotary, split: bool) -> Rule:
    """Rule for one of our tensors in a model with rotary positions."""
    rule = timm_towers.joined(ours, keyless=not rotary.key_bias, split=split)
    return rule or Rule(ours, (_spelled(ours),))


def _spelled(ours: str) -> str:
    """Our name as timm's Eva, of which DINOv3 and Perception Encoder are, spells it."""
    return re.sub(r"\.ls([12])\.gamma$", r".gamma_\1", ours)
