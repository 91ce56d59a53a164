"""The Vision Transformer with parts that are not the paper's.

Shapes: b batch, n patches, d width, gh gw the grid of a layer.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from vit.errors import UserError
from vit.extensions.variants.additive import Tables
from vit.extensions.variants.experts import Experts
from vit.extensions.variants.options import Grid
from vit.extensions.variants.stacks import Smaller
from vit.extensions.variants.table import CHANGES, chosen_parts, completed
from vit.models.config import ViTConfig
from vit.models.vision_transformer import VisionTransformer, plain_layers
from vit.shapes import Float


def build(config: ViTConfig, model: VisionTransformer | None) -> VisionTransformer:
    """The model with fresh weights; its row comes first, so no other one has built it.

    UserError for an unknown kind, part or option, and for parts that do not go together.
    """
    assert model is None
    return VariantTransformer(config)


class VariantTransformer(VisionTransformer):
    """A model by `config.variant`, to which all options of its parts are added."""

    positions: Tables | None
    """What the stem adds, in place of `config.pos_embed`."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(completed(config))
        strides = (block.stride if isinstance(block, Smaller) else 1 for block in self.blocks)
        self.layer_strides = [config.patch_size * stride for stride in strides]

    def build_layers(self, config: ViTConfig) -> Sequence[nn.Module]:
        parts, self.positions = chosen_parts(config), None
        if "stem" in parts:
            part, _, options = parts["stem"]
            self.patch_embed = part.build(options, config)
        if "positions" not in parts:
            layers: Any = super().build_layers(config)
        else:
            part, name, options = parts["positions"]
            layers, self.pos_embed = plain_layers(config), None
            self.register_buffer("fixed_positions", None, persistent=False)
            self.positions, in_layers = part.build(options, config, layers)
            changes = parts.keys() & CHANGES
            if in_layers and changes:
                raise UserError(
                    f"variant.positions, {name}: these are in the layers, which variant."
                    f"{', variant.'.join(sorted(changes))} changes: choose "
                    "positions at the stem"
                )
        for kind in CHANGES:
            if kind in parts:
                part, _, options = parts[kind]
                part.build(options, config, layers)
        return layers

    def position_table(self, grid: Grid) -> Float[Tensor, "1 n d"] | None:
        return super().position_table(grid) if self.positions is None else self.positions(grid)

    def init_positions(self) -> None:
        super().init_positions()
        if self.positions is not None:
            self.positions.init_weights()

    def no_weight_decay(self) -> set[str]:
        """The parameters of a ViT, and tables of embeddings and biases (`_table`)."""
        tables = {name for name, _ in self.named_parameters() if name.endswith("_table")}
        return super().no_weight_decay() | tables

    def auxiliary_loss(self) -> Tensor | float:
        """Sum of the penalties of the last forward pass, once."""
        experts = (module for module in self.modules() if isinstance(module, Experts))
        return sum((vars(module).pop("penalty", 0.0) for module in experts), 0.0)
