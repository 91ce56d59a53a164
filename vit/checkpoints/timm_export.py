"""Directories that timm loads: `timm.create_model("local-dir:PATH", pretrained=True)`.

timm builds a model from the name of an architecture and arguments; both are in config.json.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vit.checkpoints.preprocessing import to_timm
from vit.errors import UserError
from vit.models.config import ResNetConfig, ViTConfig
from vit.models.embedding import sincos2d

_HYBRIDS: dict[tuple[int, ...], str] = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
_RESNETS: dict[tuple[tuple[int, ...], int], str] = {
    ((3, 4, 6, 3), 1): "resnetv2_50x1_bit",
    ((3, 4, 6, 3), 3): "resnetv2_50x3_bit",
    ((3, 4, 23, 3), 1): "resnetv2_101x1_bit",
    ((3, 4, 23, 3), 3): "resnetv2_101x3_bit",
    ((3, 8, 36, 3), 2): "resnetv2_152x2_bit",
    ((3, 8, 36, 3), 4): "resnetv2_152x4_bit",
}


def write(
    config: ViTConfig | ResNetConfig,
    state: Mapping[str, Tensor],
    classes: list[str] | None,
    preprocess: dict[str, Any] | None,
) -> tuple[dict[str, Tensor], dict[str, Any], list[str]]:
    """Tensors, config.json, and what timm would compute differently."""
    tensors = {name: tensor.contiguous() for name, tensor in state.items()}
    if isinstance(config, ResNetConfig):
        architecture = _RESNETS.get((config.depths, config.width_factor))
        if architecture is None:
            raise UserError(
                f"timm has no BiT with depths {list(config.depths)} and width factor "
                f"{config.width_factor}; try --to google"
            )
        arguments: dict[str, Any] = {"in_chans": config.in_channels}
        pool, notes = "avg", []
    else:
        architecture, arguments = _architecture(config), _arguments(config)
        pool, notes = arguments["global_pool"], []
        if config.layer_norm_eps != 1e-6:
            notes.append(f"timm's epsilon is 1e-6, this model's {config.layer_norm_eps:g}")
        if config.num_registers and config.pos_embed == "learned" and config.pos_embed_class_slot:
            table = tensors["pos_embed"]  # timm's has entries for all tokens in front or for none
            gap = table.new_zeros(1, config.num_registers, config.width)
            tensors["pos_embed"] = torch.cat([table[:, :1], gap, table[:, 1:]], dim=1)
        if config.pos_embed == "sincos2d":
            tensors["pos_embed"] = sincos2d(config.grid, config.width)
            notes.append("the fixed positions are written as a table of learned ones")
    has_convolutions = isinstance(config, ResNetConfig) or config.stem_depths is not None
    if has_convolutions and config.ws_mode != "timm":
        notes.append("weight standardisation has another epsilon in timm")
    size = [config.in_channels, *config.size]
    cfg = {
        "input_size": size,
        "num_classes": config.num_classes,
        "fixed_input_size": isinstance(config, ViTConfig),
    }
    if preprocess is not None:
        cfg |= to_timm(preprocess, config.in_channels) | {"input_size": size}
    if classes is not None:
        cfg["label_names"] = classes
    values = {
        "architecture": architecture,
        "num_classes": config.num_classes,
        "num_features": config.width
        if isinstance(config, ViTConfig)
        else tensors["norm.weight"].numel(),
        "global_pool": pool,
        "model_args": arguments,
        "pretrained_cfg": cfg,
    }
    if classes is not None:
        values["label_names"] = classes
    return tensors, values, notes


def _architecture(config: ViTConfig) -> str:
    """A timm entry whose code, with our arguments, is this model."""
    problems = {
        f"pool={config.pool!r}": config.pool == "cls_gap" and config.num_classes > 0,
        "tanh layer before the head": config.representation_size is not None,
        "this ResNet stem": config.stem_depths is not None and config.stem_depths not in _HYBRIDS,
        "distillation with registers": config.distillation_token and config.num_registers > 0,
        "distillation without a class slot": config.distillation_token
        and not config.pos_embed_class_slot,
        "norm_after_pool with distillation": config.distillation_token and config.norm_after_pool,
    }
    found = [name for name, present in problems.items() if present]
    if found:
        raise UserError(f"timm's ViT has no {', '.join(found)}; keep it --to native")
    if config.distillation_token:
        return "deit_base_distilled_patch16_224"
    if config.stem_depths is not None:
        return _HYBRIDS[config.stem_depths]
    return "vit_giant_patch14_dinov2" if config.activation == "swiglu" else "vit_base_patch16_224"


def _arguments(config: ViTConfig) -> dict[str, Any]:
    hidden = config.mlp_dim * (2 if config.activation == "swiglu" else 1)
    ratio = hidden / config.width
    if int(config.width * ratio) != hidden:  # timm rounds down
        ratio = (hidden + 0.5) / config.width
    pool = {"cls": "token", "gap": "avg", "map": "map", "cls_gap": "token"}[config.pool]
    arguments: dict[str, Any] = {
        "img_size": list(config.size),
        "in_chans": config.in_channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.num_heads,
        "mlp_ratio": ratio,
        "global_pool": pool,
        "class_token": config.class_token,
        "init_values": config.layer_scale,
    }
    if config.stem_depths is None:
        arguments["patch_size"] = config.patch_size
    if config.activation == "gelu_tanh":
        arguments["act_layer"] = "gelu_tanh"
    if config.distillation_token:
        return arguments
    return arguments | {
        "fc_norm": config.norm_after_pool,
        "reg_tokens": config.num_registers,
        "pos_embed": "none" if config.pos_embed == "none" else "learn",
        "no_embed_class": not (config.class_token and config.pos_embed_class_slot),
    }
