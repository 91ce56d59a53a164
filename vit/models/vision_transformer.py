"""The Vision Transformer of "An Image is Worth 16x16 Words" (arXiv:2010.11929), equations 1 to 4.

Shapes: b batch, c channels, h w pixels, n tokens (prefix tokens first, then patches row by row),
d width, k classes. Parameter names are timm's and DINOv2's, so that their files load unrenamed.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vit.errors import UserError, did_you_mean
from vit.models.embedding import PatchEmbed, PosResize, resize_grid, sincos2d
from vit.models.encoder import Activation, Block
from vit.shapes import Float


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """Architecture of a Vision Transformer. Defaults are the paper's ViT-B/16 at 224 pixels."""

    image_size: int | tuple[int, int] = 224
    """Pixels, one side or (height, width), for which the position table is made."""
    patch_size: int = 16
    """Side of a square patch in pixels."""
    in_channels: int = 3
    """Channels of the input images."""
    num_classes: int = 1000
    """Outputs of the head; 0 builds a backbone whose forward gives pooled features."""
    width: int = 768
    """Token size, D in the paper."""
    depth: int = 12
    """Number of encoder layers, L in the paper."""
    mlp_dim: int = 3072
    """Hidden size of the MLP in each layer."""
    num_heads: int = 12
    """Attention heads; must divide width."""
    pool: Literal["cls", "gap"] = "cls"
    """Image representation: the class token, or the mean over the patch tokens."""
    class_token: bool = True
    """Whether a learned class token is prepended."""
    num_registers: int = 0
    """Learned register tokens between class token and patches (arXiv:2309.16588)."""
    pos_embed: Literal["learned", "sincos2d", "none"] = "learned"
    """Positions: a learned table, fixed 2-D sine and cosine, or none."""
    pos_embed_class_slot: bool = True
    """Whether the learned table has an entry for the class token (the paper: yes; DeiT-III: no)."""
    pos_resize: PosResize = "bilinear_corners"
    """Rule by which the table is resampled to another grid; the paper's code by default."""
    representation_size: int | None = None
    """Size of the tanh layer before the head, used for pre-training (section 3.1), or None."""
    dropout: float = 0.0
    """Probability in [0, 1) after every dense layer but qkv, and after the positions (B.1)."""
    drop_path: float = 0.0
    """Probability in [0, 1) of skipping the last layer's branches; grows linearly from 0."""
    layer_scale: float | None = None
    """Initial value of LayerScale's factors, or None for no LayerScale."""
    activation: Activation = "gelu_tanh"
    """GELU by its tanh approximation, as the official code computes it, or exactly ("gelu")."""
    layer_norm_eps: float = 1e-6
    """Epsilon of every LayerNorm."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", _as_size(self.image_size))
        if self.width % self.num_heads:
            nearest = self.width - self.width % self.num_heads
            raise UserError(
                f"width={self.width} is not a multiple of num_heads={self.num_heads}; "
                f"choose width={nearest or self.num_heads} or another num_heads"
            )
        height, width = self.size
        if height % self.patch_size or width % self.patch_size:
            raise UserError(
                f"image_size={height}x{width} is not a multiple of patch_size={self.patch_size}; "
                f"choose {height - height % self.patch_size or self.patch_size} or another patch_size"
            )
        if self.pool == "cls" and not self.class_token:
            raise UserError("pool='cls' needs class_token=true; choose pool='gap'")
        for name in ("dropout", "drop_path"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} is not a probability in [0, 1)")

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in pixels of the images the position table is made for."""
        return _as_size(self.image_size)

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of patches of the position table."""
        return self.size[0] // self.patch_size, self.size[1] // self.patch_size

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**asdict(self), "image_size": list(self.size)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "ViTConfig":
        """The inverse of `to_dict`. UserError names a field that does not exist."""
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise UserError(f"unknown model option {name!r}{did_you_mean(name, known)}")
        return cls(**values)


def _as_size(size: int | Sequence[int]) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    return height, width


class VisionTransformer(nn.Module):
    """Patches, encoder, head. Weights start as the official code's (vit_jax/models_vit.py)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_size = config.patch_size
        self.num_features = config.width
        self.num_prefix_tokens = int(config.class_token) + config.num_registers
        # Recomputes each layer in the backward pass: about 1/depth of the memory, 4/3 of the work.
        self.activation_checkpointing = False
        d = config.width
        norm = partial(nn.LayerNorm, eps=config.layer_norm_eps)

        self.patch_embed = PatchEmbed(config.in_channels, config.patch_size, d)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, d)) if config.class_token else None
        self.reg_token = (
            nn.Parameter(torch.zeros(1, config.num_registers, d)) if config.num_registers else None
        )
        self.pos_embed = None
        if config.pos_embed == "learned":
            self.pos_embed = nn.Parameter(
                torch.zeros(1, self._pos_slots + math.prod(config.grid), d)
            )
        if config.pos_embed == "sincos2d":
            self.register_buffer("fixed_positions", sincos2d(config.grid, d), persistent=False)
        self.pos_drop = nn.Dropout(config.dropout)
        rates = [config.drop_path * i / max(config.depth - 1, 1) for i in range(config.depth)]
        self.blocks = nn.ModuleList(
            Block(
                width=d,
                num_heads=config.num_heads,
                mlp_dim=config.mlp_dim,
                norm=norm,
                activation=config.activation,
                dropout=config.dropout,
                drop_path=rate,
                layer_scale=config.layer_scale,
            )
            for rate in rates
        )
        self.norm = norm(d)
        hidden = config.representation_size
        self.pre_logits = nn.Sequential() if hidden is None else nn.Sequential(nn.Linear(d, hidden))
        if hidden is not None:
            self.pre_logits.append(nn.Tanh())
        self.head = (
            nn.Linear(hidden or d, config.num_classes) if config.num_classes else nn.Identity()
        )
        self.init_weights()

    @property
    def _pos_slots(self) -> int:
        return int(self.config.class_token and self.config.pos_embed_class_slot)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        """Logits; pooled features `b d` when num_classes is 0."""
        return self.head(self.pre_logits(self.pool(self.features(images))))

    def features(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b n d"]:
        """All tokens after the final LayerNorm: class token, registers, patches row by row."""
        x, _ = self._embed(images)
        for block in self.blocks:
            x = self._run(block, x)
        return self.norm(x)

    def pool(self, tokens: Float[Tensor, "b n d"]) -> Float[Tensor, "b d"]:
        """The image representation y of equation 4: class token, or mean of the patch tokens."""
        if self.config.pool == "cls":
            return tokens[:, 0]
        return tokens[:, self.num_prefix_tokens :].mean(1)

    def intermediate_layers(
        self,
        images: Float[Tensor, "b c h w"],
        layers: int | Sequence[int] = 1,
        *,
        reshape: bool = True,
        norm: bool = True,
        return_cls: bool = False,
    ) -> list[Any]:
        """Patch tokens after some layers, as DINOv2's get_intermediate_layers gives them.

        `layers`: the last so many, or indices from 0 (negative ones count from the end).
        Each entry is `b d h w` (rows and columns of patches), or `b n d` without `reshape`;
        with `return_cls` a pair of that and the class token `b d`. `norm` applies the final LayerNorm.
        """
        wanted = self._layer_indices(layers)
        if return_cls and self.cls_token is None:
            raise UserError("return_cls=True, but this model has no class token")
        x, grid = self._embed(images)
        outputs = {}
        for i, block in enumerate(self.blocks[: max(wanted) + 1]):
            x = self._run(block, x)
            if i in wanted:
                tokens = self.norm(x) if norm else x
                patches = tokens[:, self.num_prefix_tokens :]
                if reshape:
                    patches = patches.transpose(1, 2).unflatten(2, grid)
                outputs[i] = (patches, tokens[:, 0]) if return_cls else patches
        return [outputs[i] for i in wanted]

    def _layer_indices(self, layers: int | Sequence[int]) -> list[int]:
        depth = self.config.depth
        asked = list(range(depth - layers, depth)) if isinstance(layers, int) else list(layers)
        if not asked or min(asked) < -depth or max(asked) >= depth:
            raise UserError(f"layers={layers} is outside the {depth} layers of this model")
        return [i % depth for i in asked]

    def _run(self, block: nn.Module, x: Tensor) -> Tensor:
        if self.activation_checkpointing and self.training and torch.is_grad_enabled():
            return checkpoint(block, x, use_reentrant=False)  # pyright: ignore[reportReturnType]
        return block(x)

    def _embed(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Equation 1: tokens with positions `b n d`, and the grid of patches."""
        if images.shape[1] != self.config.in_channels:
            raise UserError(
                f"images have {images.shape[1]} channels, this model takes "
                f"{self.config.in_channels} (images are b c h w)"
            )
        patches = self.patch_embed(images)
        grid = (patches.shape[-2], patches.shape[-1])
        x = patches.flatten(2).transpose(1, 2)  # b n d
        positions = self._positions(grid, x)
        slots = self._pos_slots if self.config.pos_embed == "learned" else 0
        if positions is not None:
            x = x + positions[:, slots:]
        if self.cls_token is not None:
            cls = self.cls_token.to(x.dtype)
            if positions is not None and slots:
                cls = cls + positions[:, :slots]
            prefix = [cls] if self.reg_token is None else [cls, self.reg_token.to(x.dtype)]
            x = torch.cat([t.expand(len(x), -1, -1) for t in prefix] + [x], dim=1)
        elif self.reg_token is not None:
            x = torch.cat([self.reg_token.to(x.dtype).expand(len(x), -1, -1), x], dim=1)
        return self.pos_drop(x), grid

    def _positions(self, grid: tuple[int, int], like: Tensor) -> Tensor | None:
        if self.config.pos_embed == "sincos2d":
            same = grid == self.config.grid
            return (self.fixed_positions if same else sincos2d(grid, self.config.width)).to(like)
        if self.pos_embed is None:
            return None
        table, slots = self.pos_embed, self._pos_slots
        if grid != self.config.grid:
            rule = self.config.pos_resize
            resized = resize_grid(table[:, slots:], self.config.grid, grid, rule)
            table = torch.cat([table[:, :slots], resized], dim=1)
        return table.to(like.dtype)

    @torch.no_grad()
    def init_weights(self) -> None:
        """vit_jax/models_vit.py: Xavier uniform, MLP biases N(0, 1e-6), positions N(0, 0.02).

        Class token and head start at zero; the patch projection and the tanh layer as Flax's default,
        LeCun normal truncated at two deviations.
        """
        lecun_normal_(self.patch_embed.proj)
        for token in (self.reg_token, self.pos_embed):
            if token is not None:
                nn.init.normal_(token, std=0.02)
        for block in self.blocks:
            assert isinstance(block, Block)
            # Queries, keys and values are separate matrices there: fans are d x d, not 3d x d.
            for matrix in (*block.attn.qkv.weight.chunk(3), block.attn.proj.weight):
                nn.init.xavier_uniform_(matrix)
            nn.init.zeros_(block.attn.qkv.bias)
            nn.init.zeros_(block.attn.proj.bias)
            for layer in (block.mlp.fc1, block.mlp.fc2):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.normal_(layer.bias, std=1e-6)
        for layer in self.pre_logits:
            if isinstance(layer, nn.Linear):
                lecun_normal_(layer)
        if isinstance(self.head, nn.Linear):
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)


def lecun_normal_(layer: nn.Linear | nn.Conv2d) -> None:
    """Flax's default kernel: variance 1 / fan_in from a normal cut at two deviations; zero bias."""
    fan_in = layer.weight[0].numel()
    std = fan_in**-0.5 / 0.87962566103423978  # the deviation of a unit normal cut at +-2
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
