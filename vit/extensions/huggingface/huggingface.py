"""Hugging Face's ViT, DeiT, DINOv2, DINOv3 and BiT, CLIP and SigLIP, both ways.

Written under the key names of the hub.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from vit.errors import UserError
from vit.extensions.formats.descriptions import check_descriptions
from vit.extensions.formats.exporting import (
    ANY,
    Export,
    NativeInfo,
    Writable,
    carried,
    check_expressed,
    directory,
)
from vit.extensions.formats.layout import exported
from vit.extensions.formats.preprocessing import HUGGING_FACE, rounding_note, to_huggingface
from vit.extensions.formats.rotary import Rotary
from vit.extensions.huggingface import bit, reading, towers
from vit.extensions.huggingface.labels import THRESHOLDS, labels
from vit.models.config import ResNetConfig, ViTConfig
from vit.models.zoo import ModelConfig
from vit.weights.formats import Recognised
from vit.weights.weight_file import WeightFile

_KINDS = (reading, bit, towers)
_HIDDEN_ACT = {"gelu_tanh": "gelu_pytorch_tanh", "quick_gelu": "quick_gelu"}


class HuggingFace(Writable):
    """Row of the table `formats`."""

    @override
    def matches(self, file: WeightFile) -> bool:
        return any(kind.matches(file) for kind in _KINDS)

    @override
    def recognise(self, file: WeightFile) -> Recognised:
        check_descriptions(file)
        if (error := reading.refusal(file)) is not None:
            raise error
        return next(kind for kind in _KINDS if kind.matches(file)).recognise(file)

    @override
    def write(self, config: ModelConfig, state: Mapping[str, Tensor], info: NativeInfo) -> Export:
        """A directory for `from_pretrained`. UserError where the library has no such model."""
        if isinstance(config, ResNetConfig):
            tensors, values, notes = bit.write(config, state, info.classes)
        elif towers.is_tower(config):
            tensors, values, notes = towers.write(config, state, info.classes)
        else:
            tensors, values, notes = _written(config, state, info.classes)
        if info.extra.get("regression"):
            values["problem_type"] = "regression"
        if info.extra.get("multilabel"):
            values["problem_type"] = "multi_label_classification"
            if info.extra.get("thresholds") is not None:
                values[THRESHOLDS] = info.extra["thresholds"]
        files = {"config.json": values | carried(info.extra)}
        if info.preprocess is not None:
            files["preprocessor_config.json"] = to_huggingface(
                info.preprocess, values["model_type"]
            )
            notes += rounding_note("transformers", info.preprocess, "floor")
        return Export(save=directory(tensors, files), notes=notes, multilabel=True)

    @override
    def refuse(self, file: WeightFile) -> UserError | None:
        """The error for a family that config.json names, or a tensor that no model of ours has."""
        check_descriptions(file)
        return reading.refusal(file)


def _written(
    config: ViTConfig, state: Mapping[str, Tensor], classes: list[str] | None
) -> tuple[dict[str, Tensor], dict[str, Any], list[str]]:
    """Tensors, config.json, and notes. UserError if the library has no such model."""
    kind = _kind(config)
    dinov2, dinov3 = kind.startswith("dinov2"), kind == "dinov3_vit"
    prefix = f"{kind}." if config.num_classes else ""
    spelling = "dinov3" if dinov3 else "dinov2" if dinov2 else "vit"
    if config.activation == "swiglu":
        spelling += ", gated"
    rules = reading.vit_rules(
        prefix,
        "layer." if dinov3 else f"{prefix}encoder.layer.",
        config.depth,
        [reading.SPELLINGS[spelling]],
        dinov3=dinov3,
        keyless=dinov3 and not Rotary.of(config.rotary).key_bias,
    )
    if kind == "deit" and config.num_classes:
        rules = [
            r for r in rules if not r.theirs[0].startswith("classifier.")
        ] + reading.teacher_rules()
    tensors = exported(state, rules)
    if dinov2 and config.num_classes:
        head = tensors["classifier.weight"]
        tensors["classifier.weight"] = _over_both_halves(head, config.pool)
    embeddings, none = f"{prefix}embeddings.", state["cls_token"].new_zeros(1, 0, config.width)
    if dinov2:  # the library expects it; it plays no part outside pre-training
        tensors[f"{embeddings}mask_token"] = none.new_zeros(1, config.width)
    if dinov3:
        tensors[f"{embeddings}mask_token"] = none.new_zeros(1, 1, config.width)
        tensors.setdefault(f"{embeddings}register_tokens", none)
    values, notes = _config(config, kind, classes), []
    if not config.num_classes and config.pool != "cls":
        notes.append(
            f"{values['architectures'][0]} gives the class token as pooler_output, this model "
            f"gives pool={config.pool!r}; the tokens are the same"
        )
    return tensors, values, notes


def _over_both_halves(head: Tensor, pool: str) -> Tensor:
    """A head `k d` on the class token or on the patches' mean, as DINOv2's `k 2d` on both."""
    if pool == "cls_gap":
        return head
    zeros = torch.zeros_like(head)
    return torch.cat([head, zeros] if pool == "cls" else [zeros, head], dim=1)


def _kind(config: ViTConfig) -> str:
    """The `model_type` that computes the same. UserError where none does."""
    expressed: dict[str, Any] = {
        "image_size": [(config.size[0],) * 2],
        "activation": ("gelu", "gelu_tanh", "quick_gelu"),
    }
    if config.layer_scale is not None or config.rotary is not None:
        kind = "dinov2_with_registers" if config.num_registers else "dinov2"
        expressed |= {
            "layer_scale": ANY,
            "num_registers": ANY,
            "pool": ("cls", "gap", "cls_gap"),
            "activation": ANY,
        }
    else:
        kind = "deit" if config.distillation_token else "vit"
        expressed["distillation_token"] = ANY
        if kind == "vit" and not config.num_classes:  # with a head the library has no tanh layer
            expressed["representation_size"] = ANY
    if config.rotary is not None:
        kind = "dinov3_vit"
        expressed |= {"rotary": ANY, "pos_embed": ("none",), "image_size": ANY}
        if config.layer_scale is None or config.num_classes:
            part = "model without LayerScale" if config.layer_scale is None else "classifier"
            raise UserError(f"Hugging Face's dinov3_vit has no {part}; try --to timm")
    check_expressed(f"Hugging Face's {kind}", config, "try --to timm", **expressed)
    return kind


def _config(config: ViTConfig, kind: str, classes: list[str] | None) -> dict[str, Any]:
    square = config.size[0] == config.size[1]
    values: dict[str, Any] = {
        "architectures": [HUGGING_FACE["architectures"][kind][config.num_classes > 0]],
        "model_type": kind,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "hidden_act": _HIDDEN_ACT.get(config.activation, "gelu"),
        "layer_norm_eps": config.layer_norm_eps,
        "image_size": config.size[0] if square else list(config.size),
        "patch_size": config.patch_size,
        "num_channels": config.in_channels,
        **labels(config.num_classes, classes),
    }
    if kind == "dinov3_vit":
        return values | _values_of_dinov3(config)
    values |= {
        "qkv_bias": True,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": 0.0,
    }
    if kind.startswith("dinov2"):
        values |= {
            "mlp_ratio": _mlp_ratio(config),
            "use_swiglu_ffn": config.activation == "swiglu",
            "layerscale_value": config.layer_scale,
            "drop_path_rate": config.drop_path,
        }
        if config.num_registers:
            values["num_register_tokens"] = config.num_registers
        return values
    values["intermediate_size"] = config.mlp_dim
    values["pooler_output_size"] = config.representation_size or config.width
    return values


def _values_of_dinov3(config: ViTConfig) -> dict[str, Any]:
    rotary, gated = Rotary.of(config.rotary), config.activation == "swiglu"
    return {
        **({"hidden_act": "silu"} if gated else {}),
        "use_gated_mlp": gated,
        "intermediate_size": config.mlp_dim,
        "num_register_tokens": config.num_registers,
        "query_bias": True,
        "key_bias": rotary.key_bias,
        "value_bias": True,
        "proj_bias": True,
        "mlp_bias": True,
        "layerscale_value": config.layer_scale,
        "drop_path_rate": config.drop_path,
        "rope_theta": rotary.period,
        "pos_embed_shift": rotary.shift,
        "pos_embed_jitter": rotary.jitter,
        "pos_embed_rescale": rotary.rescale,
    }


def _mlp_ratio(config: ViTConfig) -> int:
    """The whole number from which the library derives `mlp_dim`. UserError without one.

    A gated layer is two thirds as wide, rounded up to a multiple of 8.
    """
    for ratio in range(1, 17):
        hidden = config.width * ratio
        if config.activation == "swiglu":
            hidden = (int(hidden * 2 / 3) + 7) // 8 * 8
        if hidden == config.mlp_dim:
            return ratio
    raise UserError(
        f"Hugging Face's DINOv2 takes whole MLP ratios; mlp_dim={config.mlp_dim} at "
        f"width={config.width} is none; try --to timm"
    )
