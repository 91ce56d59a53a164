"""Perception Encoder (arXiv:2504.13181) and EVA-02 (arXiv:2303.11331): rotary positions beside
learned ones, and norms at other places than a ViT's.

Sources: timm 1.0.31, models/eva.py and layers/pos_embed_sincos.py; facebookresearch/
perception_models, core/vision_encoder/{pe,rope}.py.
Shapes: b batch, n tokens, gh gw the grid of patches, e channels per head, d width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from vit.errors import NOT_NEGATIVE, POSITIVE, UserError, check_range
from vit.extensions.formats.rotary import KeylessBias
from vit.extensions.towers.layers import NormedAttention, NormedMlp, PostNormBlock
from vit.models.config import ViTConfig
from vit.models.encoder import Block, Rotation
from vit.models.fields import as_size, check_kinds, check_whole, known_fields
from vit.models.pooling import AttentionPool
from vit.models.vision_transformer import VisionTransformer
from vit.shapes import Float


@dataclass(frozen=True, kw_only=True)
class Tower:
    """Parts of such a tower beside the fields of a ViT. Defaults are PE-Core's."""

    reference: tuple[int, int] | None = None
    """(rows, columns) of the grid at which a patch is one step from the next; the coordinates of
    another grid are scaled to it. None: the model's own grid."""
    offset: float = 1.0
    """Coordinate of the first row and column: 1 with a class token, 0 without."""
    period: float | None = 10_000.0
    """The longest period over the shortest one; the others are a geometric series between them.
    None: there are no rotary positions."""
    order: Literal["xy", "yx"] = "xy"
    """Axis by which the first half of the pairs of channels turns: columns (xy) or rows (yx)."""
    pool_heads: int = 8
    """Heads of the attention pooling, which sees the class token, too."""
    pool_mlp_dim: int | None = None
    """Hidden size of the pooling's MLP. None: four times the width."""
    final_norm: bool = True
    """A norm follows the last block. The spatial and the lang models have none."""
    key_bias: bool = True
    """The keys have biases; without (EVA), those in `qkv.bias` are not used and not trained."""
    inner_norm: bool = False
    """A norm precedes the last matrix of attention (EVA-02-CLIP)."""
    mlp_norm: bool = False
    """A norm precedes the last matrix of each gated MLP (EVA-02 from B on)."""
    post_norm: bool = False
    """The norms follow attention and MLP, within the branch (EVA-02-CLIP E)."""

    def __post_init__(self) -> None:
        check_kinds(self)
        check_range("offset", self.offset, NOT_NEGATIVE)
        if self.period is not None:
            check_range("period", self.period, POSITIVE)
        check_whole(self, ["pool_heads"], 1)
        if self.pool_mlp_dim is not None:
            check_whole(self, ["pool_mlp_dim"], 1)
        if self.reference is not None:
            object.__setattr__(self, "reference", as_size(self.reference))

    @classmethod
    def of(cls, config: ViTConfig) -> "Tower":
        """The options of a configuration, complete. UserError for one that does not fit it."""
        values: object = config.tower
        if not isinstance(values, Mapping):
            raise UserError(f"tower={values!r} must be an object such as {{}}, PE-Core's, or null")
        try:
            tower = cls(**known_fields(cls, dict(values)))
        except UserError as error:
            raise UserError(f"tower: {error}") from None
        if config.pool == "map" and config.width % tower.pool_heads:
            raise UserError(
                f"tower: width={config.width} is not a multiple of pool_heads={tower.pool_heads}"
            )
        return replace(
            tower,
            reference=tower.reference or config.grid,
            pool_mlp_dim=tower.pool_mlp_dim or 4 * config.width,
        )


def build(config: ViTConfig, model: VisionTransformer | None) -> VisionTransformer:
    """The model with fresh weights. UserError for fields that no tower has."""
    if model is not None or config.rotary is not None:
        other = "rotary" if config.rotary is not None else "variant"
        raise UserError(f"tower does not go with {other}: a tower has positions of its own")
    tower = Tower.of(config)
    if config.head_size % 4 and tower.period is not None:
        raise UserError(
            f"a tower turns pairs of channels along two axes, so the head size must be a multiple "
            f"of 4; width={config.width} with num_heads={config.num_heads} makes it "
            f"{config.head_size}"
        )
    if config.distillation_token or config.representation_size:
        raise UserError("tower goes neither with distillation_token nor with representation_size")
    if tower.mlp_norm and config.activation != "swiglu":
        raise UserError(
            f"tower: mlp_norm=true needs activation='swiglu', not {config.activation!r}"
        )
    return ImageTower(config)


class ImageTower(VisionTransformer):
    """A model by `config.tower`, to which all options are added."""

    def __init__(self, config: ViTConfig) -> None:
        tower = Tower.of(config)
        values = {**asdict(tower), "reference": list(tower.reference or ())}
        super().__init__(replace(config, tower=values))
        self.rope = TowerRotation(tower, config.head_size)

    def build_layers(self, config: ViTConfig) -> Sequence[nn.Module]:
        tower, layers = Tower.of(config), super().build_layers(config)
        norm = partial(nn.LayerNorm, eps=config.layer_norm_eps)
        for layer in layers:
            assert isinstance(layer, Block)
            if not tower.key_bias:
                layer.attn.qkv.__class__ = KeylessBias
            if tower.inner_norm:
                layer.attn.__class__, layer.attn.norm = NormedAttention, norm(config.width)
            if tower.mlp_norm:
                layer.mlp.__class__, layer.mlp.norm = NormedMlp, norm(config.mlp_dim)
            if tower.post_norm:
                layer.__class__ = PostNormBlock
        return layers

    def build_head(self, norm: "partial[nn.LayerNorm]") -> None:
        super().build_head(norm)
        config, tower, d = self.config, Tower.of(self.config), self.config.width
        if not tower.final_norm:
            self.norm = nn.Identity()
        if self.attn_pool is not None:
            mlp_dim = tower.pool_mlp_dim or 4 * d
            self.attn_pool = AttentionPool(d, tower.pool_heads, mlp_dim, norm(d), config.activation)

    def pool(self, tokens: Float[Tensor, "b n d"]) -> Float[Tensor, "b d_pooled"]:
        """The pooled tokens; the attention pooling sees all of them."""
        return super().pool(tokens) if self.attn_pool is None else self.attn_pool(tokens)


class TowerRotation(nn.Module):
    """The rotation for any grid, computed per forward pass."""

    def __init__(self, tower: Tower, head_size: int) -> None:
        super().__init__()
        self.tower, self.head_size = tower, head_size

    def forward(self, grid: tuple[int, int], like: Tensor) -> Rotation | None:
        """Rotation for (rows, columns) of patches, on the device of `like`, in float32 at least;
        None without a period."""
        if self.tower.period is None:
            return None
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        count, options = self.head_size // 4, {"dtype": torch.float32, "device": like.device}
        bands = (1.0 / self.tower.period ** (torch.arange(count, **options) / count)).to(dtype)
        axes = [
            (torch.arange(side, **options) + self.tower.offset) / side * reference
            for side, reference in zip(grid, self.tower.reference or grid, strict=True)
        ]
        rows, columns = torch.meshgrid(*axes, indexing="ij")
        places = (columns, rows) if self.tower.order == "xy" else (rows, columns)
        angles = [place.flatten().to(dtype)[:, None, None] * bands for place in places]
        phase = torch.cat(angles, dim=-1)  # n 1 e/2
        return Rotation(*(torch.cat([wave, wave], -1) for wave in (phase.cos(), phase.sin())))
