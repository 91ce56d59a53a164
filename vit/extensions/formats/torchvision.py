"""torchvision's vit_b_16 ... vit_h_14, SWAG's weights included.

Source: torchvision 0.29, models/vision_transformer.py. Its files carry no description.
"""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor
from typing_extensions import override

from vit.errors import UserError
from vit.extensions.formats.exporting import (
    ANY,
    Export,
    NativeInfo,
    Writable,
    arithmetic_notes,
    check_expressed,
)
from vit.extensions.formats.facts import count_layers, grid_of, heads_of_width
from vit.extensions.formats.layout import Rule, bound, exported, layer
from vit.extensions.formats.preprocessing import of_imagenet
from vit.models.config import ViTConfig
from vit.models.zoo import ModelConfig
from vit.weights.formats import Recognised
from vit.weights.sealed import write_torch
from vit.weights.weight_file import WeightFile

_LAYER = "encoder.layers.encoder_layer_"


class Torchvision(Writable):
    """Row of the table `formats`."""

    suffix = ".pth"

    @override
    def matches(self, file: WeightFile) -> bool:
        return "conv_proj.weight" in file.shapes and "encoder.pos_embedding" in file.shapes

    @override
    def recognise(self, file: WeightFile) -> Recognised:
        shapes = file.shapes
        # Files of before torchvision 0.13 name the two layers.
        old = f"{_LAYER}0.mlp.linear_1.weight" in shapes
        mlp = ("mlp.linear_1", "mlp.linear_2") if old else ("mlp.0", "mlp.3")
        depth = count_layers(shapes, _LAYER)
        tensors, used = bound(file, _rules(depth, mlp))
        width, in_channels, patch_size, _ = shapes["conv_proj.weight"]
        entries = shapes["encoder.pos_embedding"][1]
        grid, _ = grid_of(entries, [1], file.hints.get("image_size"), patch_size)
        notes = ["the file does not say how images are prepared: read as torchvision's models"]
        head, pre_logits = shapes.get("heads.head.weight"), shapes.get("heads.pre_logits.weight")
        config = ViTConfig(
            image_size=(grid[0] * patch_size, grid[1] * patch_size),
            patch_size=patch_size,
            in_channels=in_channels,
            num_classes=head[0] if head else 0,
            width=width,
            depth=depth,
            mlp_dim=shapes[f"{_LAYER}0.{mlp[0]}.weight"][0],
            num_heads=file.hints.get("num_heads") or heads_of_width(file, width, notes),
            pos_resize="bicubic_corners",
            representation_size=pre_logits[0] if pre_logits else None,
            activation="gelu",
            layer_norm_eps=1e-6,
        )
        # Larger ones and H/14 are SWAG's, resized bicubically.
        swag = config.size > (224, 224) or patch_size == 14
        filter_ = "bicubic" if swag else "bilinear"
        fraction = 1.0 if swag else 224 / (242 if (width, patch_size) == (1024, 16) else 256)
        return Recognised(
            format="torchvision",
            config=config,
            tensors=tensors,
            used=used,
            preprocess=of_imagenet(config.size, interpolation=filter_, crop_fraction=fraction),
            notes=notes,
        )

    @override
    def write(self, config: ModelConfig, state: Mapping[str, Tensor], info: NativeInfo) -> Export:
        """A state dict. UserError where torchvision has no such model."""
        if not isinstance(config, ViTConfig):
            raise UserError("torchvision has no BiT; try --to timm")
        check_expressed(
            "torchvision's ViT",
            config,
            "try --to timm",
            image_size=[(config.size[0],) * 2],
            activation=("gelu", "gelu_tanh"),
            representation_size=ANY,
        )
        tensors = exported(state, _rules(config.depth, ("mlp.0", "mlp.3")))

        def save(target: Path) -> list[Path]:
            write_torch(target, tensors)
            return [target]

        notes = arithmetic_notes("torchvision", config, activation="gelu", layer_norm_eps=1e-6)
        return Export(save=save, notes=notes)


def _rules(depth: int, mlp: tuple[str, str]) -> list[Rule]:
    rules = [
        Rule("cls_token", ("class_token",)),
        Rule("pos_embed", ("encoder.pos_embedding",)),
        *layer("patch_embed.proj", "conv_proj"),
        *layer("norm", "encoder.ln"),
        *layer("pre_logits.fc", "heads.pre_logits"),
        *layer("head", "heads.head"),
    ]
    names = {
        "norm1": "ln_1",
        "attn.proj": "self_attention.out_proj",
        "norm2": "ln_2",
        "mlp.fc1": mlp[0],
        "mlp.fc2": mlp[1],
    }
    for i in range(depth):
        for ours, theirs in names.items():
            rules += layer(f"blocks.{i}.{ours}", f"{_LAYER}{i}.{theirs}")
        for part in ("weight", "bias"):
            qkv = f"{_LAYER}{i}.self_attention.in_proj_{part}"
            rules.append(Rule(f"blocks.{i}.attn.qkv.{part}", (qkv,)))
    return rules
