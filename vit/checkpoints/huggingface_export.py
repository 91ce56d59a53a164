"""Our ViTs as files that Hugging Face's transformers loads: ViT, DeiT, DINOv2, and with registers.

Written under the hub's key names, as transformers 5 itself still saves them.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vit.checkpoints.huggingface import swiglu_rules, teacher_rules, vit_rules
from vit.checkpoints.layout import exported
from vit.errors import UserError
from vit.models.config import ViTConfig

_ARCHITECTURES = {
    "vit": ("ViTModel", "ViTForImageClassification"),
    "deit": ("DeiTModel", "DeiTForImageClassificationWithTeacher"),
    "dinov2": ("Dinov2Model", "Dinov2ForImageClassification"),
    "dinov2_with_registers": (
        "Dinov2WithRegistersModel",
        "Dinov2WithRegistersForImageClassification",
    ),
}


def write(
    config: ViTConfig, state: Mapping[str, Tensor], classes: list[str] | None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors under the hub's names, and config.json; UserError where no model is the same."""
    kind = _kind(config)
    dinov2 = kind.startswith("dinov2")
    prefix = f"{kind}." if config.num_classes else ""
    stem = f"{prefix}encoder.layer."
    rules = vit_rules(prefix, stem, config.depth, dinov2=dinov2, v5=False, separate_gate=False)
    if config.activation == "swiglu":
        rules = [rule for rule in rules if ".mlp." not in rule.ours]
        rules += swiglu_rules(config.depth, stem)
    if kind == "deit" and config.num_classes:
        rules = [r for r in rules if not r.theirs[0].startswith("classifier.")] + teacher_rules()
    tensors = exported(state, rules)
    if dinov2 and config.num_classes:
        head = tensors["classifier.weight"]
        tensors["classifier.weight"] = _over_both_halves(head, config.pool)
    if dinov2:  # the library expects it; it plays no part outside pre-training
        tensors[f"{prefix}embeddings.mask_token"] = state["cls_token"].new_zeros(1, config.width)
    return tensors, _config(config, kind, classes)


def _over_both_halves(head: Tensor, pool: str) -> Tensor:
    """A head `k d` on the class token or on the patches' mean, as `k 2d` on both side by side.

    DINOv2's classifiers of the library see both; zeros for the half that is not used change no
    logit.
    """
    if pool == "cls_gap":
        return head
    zeros = torch.zeros_like(head)
    return torch.cat([head, zeros] if pool == "cls" else [zeros, head], dim=1)


def _kind(config: ViTConfig) -> str:
    """Which of the library's models computes the same; UserError where none does."""
    if config.layer_scale is not None:
        kind = "dinov2_with_registers" if config.num_registers else "dinov2"
        pools = ("cls", "gap", "cls_gap")
    else:
        kind, pools = ("deit" if config.distillation_token else "vit"), ("cls",)
    height, width = config.size
    problems = {
        f"pool={config.pool!r}": config.pool not in pools,
        "class_token=false": not config.class_token,
        "registers": bool(config.num_registers) and kind != "dinov2_with_registers",
        "a ResNet stem": config.stem_depths is not None,
        f"pos_embed={config.pos_embed!r}": config.pos_embed != "learned",
        "position table without a class slot": not config.pos_embed_class_slot,
        "norm_after_pool": config.norm_after_pool,
        "swiglu": config.activation == "swiglu" and not kind.startswith("dinov2"),
        # ViTModel has a tanh layer, ViTForImageClassification has none.
        "tanh layer before the head": config.representation_size is not None
        and (config.num_classes > 0 or kind != "vit"),
        f"images of {height}x{width}": height != width,
    }
    found = [name for name, present in problems.items() if present]
    if found:
        raise UserError(f"Hugging Face's {kind} has no {', '.join(found)}; try --to timm")
    return kind


def labels(num_classes: int, classes: list[str] | None) -> dict[str, Any]:
    """id2label and label2id, with transformers' placeholders where there are no names."""
    if not num_classes:
        return {}
    names = classes or [f"LABEL_{i}" for i in range(num_classes)]
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }


def _config(config: ViTConfig, kind: str, classes: list[str] | None) -> dict[str, Any]:
    values: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[kind][config.num_classes > 0]],
        "model_type": kind,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "hidden_act": "gelu_pytorch_tanh" if config.activation == "gelu_tanh" else "gelu",
        "layer_norm_eps": config.layer_norm_eps,
        "image_size": config.size[0],
        "patch_size": config.patch_size,
        "num_channels": config.in_channels,
        "qkv_bias": True,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": 0.0,
        **labels(config.num_classes, classes),
    }
    if kind.startswith("dinov2"):
        swiglu = config.activation == "swiglu"
        values |= {
            "mlp_ratio": _mlp_ratio(config),
            "use_swiglu_ffn": swiglu,
            "layerscale_value": config.layer_scale,
            "drop_path_rate": config.drop_path,
        }
        if config.num_registers:
            values["num_register_tokens"] = config.num_registers
        return values
    values["intermediate_size"] = config.mlp_dim
    values["pooler_output_size"] = config.representation_size or config.width
    return values


def _mlp_ratio(config: ViTConfig) -> int:
    """The whole number from which the library derives this MLP; UserError where there is none.

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
