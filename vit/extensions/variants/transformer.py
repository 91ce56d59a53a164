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
from vit.models.backbone import layer_indices
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

    def _build_layers(self, config: ViTConfig) -> Sequence[nn.Module]:
        parts, self.positions = chosen_parts(config), None
        if "positions" not in parts:
            layers: Any = super()._build_layers(config)
        else:
            part, name, options = parts["positions"]
            layers, self.pos_embed = plain_layers(config), None
            self.register_buffer("fixed_positions", None, persistent=False)
            self.positions, in_layers = part.build(options, config, layers)
            if in_layers and len(parts) > 1:
                raise UserError(
                    f"variant.positions, {name}: these are in the layers, which variant."
                    f"{', variant.'.join(sorted(parts.keys() - {'positions'}))} changes: choose "
                    "positions at the stem"
                )
        for kind in CHANGES:
            if kind in parts:
                part, _, options = parts[kind]
                part.build(options, config, layers)
        return layers

    def position_table(self, grid: Grid) -> Float[Tensor, "1 n d"] | None:
        return super().position_table(grid) if self.positions is None else self.positions(grid)

    def _init_positions(self) -> None:
        super()._init_positions()
        if self.positions is not None:
            self.positions.init_weights()

    def no_weight_decay(self) -> set[str]:
        """Also tables of embeddings and biases, whose names end so."""
        tables = {name for name, _ in self.named_parameters() if name.endswith("_table")}
        return super().no_weight_decay() | tables

    def auxiliary_loss(self) -> Tensor | float:
        """Sum of the penalties of the last forward pass, once."""
        experts = (module for module in self.modules() if isinstance(module, Experts))
        return sum((vars(module).pop("penalty", 0.0) for module in experts), 0.0)

    def intermediate_layers(
        self,
        images: Float[Tensor, "b c h w"],
        layers: int | Sequence[int] = 1,
        *,
        reshape: bool = True,
        norm: bool = True,
        return_cls: bool = False,
    ) -> list[Any]:
        kinds: dict[str, bool] = {"norm": norm, "return_cls": return_cls}
        entries = super().intermediate_layers(images, layers, reshape=False, **kinds)
        indices = layer_indices(layers, self.config.depth)
        return self._maps(entries, indices, images) if reshape else entries

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        kind = "NLC" if output_fmt == "NCHW" else output_fmt
        options = (return_prefix_tokens, norm, stop_early, kind, intermediates_only)
        result = super().forward_intermediates(x, indices, *options)
        if output_fmt != "NCHW":
            return result
        depth = self.config.depth
        layers = sorted(set(layer_indices(depth if indices is None else indices, depth)))
        if intermediates_only:
            return self._maps(result, layers, x)
        return result[0], self._maps(result[1], layers, x)

    def _maps(self, entries: list[Any], layers: Sequence[int], images: Tensor) -> list[Any]:
        """Patches `b n d`, alone or the first of a pair, as maps `b d gh gw` of each layer's grid,
        which a funnel makes smaller."""
        maps = []
        for entry, layer in zip(entries, layers, strict=True):
            patches, *others = entry if isinstance(entry, tuple) else (entry,)
            grid = [side // self.layer_strides[layer] for side in images.shape[-2:]]
            patches = patches.transpose(1, 2).unflatten(2, grid)
            maps.append((patches, *others) if others else patches)
        return maps
