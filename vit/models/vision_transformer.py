"""The Vision Transformer of "An Image is Worth 16x16 Words" (arXiv:2010.11929), equations 1 to 4.

Shapes: b batch, c channels, h w pixels, n tokens (prefix tokens first, then patches row by row),
d width, k classes. Parameter names are those of timm and DINOv2.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vit.errors import UserError
from vit.models.backbone import Backbone, run
from vit.models.config import ViTConfig
from vit.models.embedding import PatchEmbed, resize_grid, sincos2d
from vit.models.encoder import Block, Place, Rotation
from vit.models.initialization import lecun_normal_, zero_
from vit.models.pooling import AttentionPool
from vit.shapes import Float, Int


class VisionTransformer(Backbone):
    """Patches, encoder, head.

    `rope` computes the Rotation of a grid for tokens; it is None but for rotary positions. Those
    and variants need `build_model`.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_dim = d = config.width
        self.patch_size = config.patch_size
        self.layer_channels = [d] * config.depth
        self.layer_strides = [config.patch_size] * config.depth
        self.num_prefix_tokens = config.num_prefix_tokens
        self.has_class_token = config.class_token

        self.patch_embed = PatchEmbed(config)
        self.cls_token = _token(1, d) if config.class_token else None
        self.dist_token = _token(1, d) if config.distillation_token else None
        self.reg_token = _token(config.num_registers, d) if config.num_registers else None
        layers = self.build_layers(config)
        self.pos_drop = nn.Dropout(config.dropout)
        self.rope: nn.Module | None = None

        norm = partial(nn.LayerNorm, eps=config.layer_norm_eps)
        self.norm_pre = norm(d) if config.pre_norm else nn.Identity()
        self.blocks = nn.ModuleList(layers)
        self.norm = nn.Identity() if config.norm_after_pool else norm(d)
        self.build_head(norm)
        self.init_weights()

    def build_layers(self, config: ViTConfig) -> Sequence[nn.Module]:
        """Builds what `position_table` reads, and returns the layers: modules that map tokens
        `b n d` and their Place to tokens, and have `init_weights`."""
        kind, d = config.pos_embed, config.width
        self.pos_embed = _token(config.num_positions, d) if kind == "learned" else None
        self.fixed_positions: Tensor | None
        fixed = sincos2d(config.grid, d) if kind == "sincos2d" else None
        self.register_buffer("fixed_positions", fixed, persistent=False)
        return plain_layers(config)

    def build_head(self, norm: "partial[nn.LayerNorm]") -> None:
        config, d = self.config, self.config.width
        self.attn_pool = None
        if config.pool == "map":
            self.attn_pool = AttentionPool(
                d, config.num_heads, config.mlp_dim, norm(d), config.activation
            )
        self.fc_norm = norm(d) if config.norm_after_pool else nn.Identity()
        self.pre_logits = nn.Sequential()
        self.num_features = self.head_hidden_size = features = config.num_features
        if config.representation_size is not None:
            self.pre_logits.add_module("fc", nn.Linear(config.pooled_width, features))
            self.pre_logits.add_module("act", nn.Tanh())

        self.head = _head(features, config.num_classes)
        self.head_dist = _head(features, config.num_classes) if config.distillation_token else None

    @property
    def num_classes(self) -> int:
        """Outputs of the head; 0 without one."""
        return self.config.num_classes

    @property
    def head_layers(self) -> list[nn.Linear]:
        """The output layers: one, two if distilled, none if num_classes is 0."""
        return [layer for layer in (self.head, self.head_dist) if isinstance(layer, nn.Linear)]

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        """Logits, or the input `b d` of the head if num_classes is 0.

        Distilled: the mean of the two heads (DeiT, arXiv:2012.12877, section 4).
        """
        return self.forward_head(self.features(images))

    def forward_features(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b n d"]:
        """`features`, under timm's name."""
        return self.features(images)

    def forward_head(
        self, tokens: Float[Tensor, "b n d"], pre_logits: bool = False
    ) -> Float[Tensor, "b k"]:
        """Logits from `forward_features`' output; with `pre_logits` the head's input, `b d`."""
        if self.head_dist is not None and not pre_logits:
            return torch.stack(self._both_heads(tokens)).mean(0)
        x = self.pre_logits(self.pool(tokens))
        return x if pre_logits else self.head(x)

    def reset_classifier(self, num_classes: int) -> None:
        """Replaces each head with one of zeros; 0 outputs remove it. The tanh layer stays."""
        self.config = replace(self.config, num_classes=num_classes)
        weight = self.patch_embed.proj.weight
        for name in ("head", "head_dist"):
            if getattr(self, name) is not None:
                head = _head(self.num_features, num_classes).to(weight).train(self.training)
                setattr(self, name, head)

    def forward_distilled(
        self, images: Float[Tensor, "b c h w"]
    ) -> tuple[Float[Tensor, "b k"], Float[Tensor, "b k"]]:
        """Logits of the class token and of the distillation token, for separate losses."""
        if self.head_dist is None:
            raise UserError("this model has no distillation token; set distillation_token=true")
        return self._both_heads(self.features(images))

    def _both_heads(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        assert self.head_dist is not None
        return self.head(self.fc_norm(tokens[:, 0])), self.head_dist(self.fc_norm(tokens[:, 1]))

    def features(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b n d"]:
        """Tokens, prefix first, after the final LayerNorm (unless `norm_after_pool`)."""
        return self.encode(*self.embed(images))

    def embed(
        self, images: Float[Tensor, "b c h w"]
    ) -> tuple[Float[Tensor, "b n d"], tuple[int, int]]:
        """Patch embeddings without positions, row by row, and their grid (rows, columns)."""
        patches = self.patch_embed(images, self.activation_checkpointing)
        return patches.flatten(2).transpose(1, 2), (patches.shape[-2], patches.shape[-1])

    def encode(
        self,
        patches: Float[Tensor, "b n_patches d"],
        grid: tuple[int, int],
        keep: Int[Tensor, "b m"] | None = None,
        bias: Float[Tensor, "b 1 n n"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        """`features` from the output of `embed`, which may have been changed in between.

        `keep`: the patches of each image that enter, with their positions, and in this order
        (MAE, arXiv:2111.06377); None: all. Not for layers that add positions of their own.
        `bias`: added to the scores of every layer's attention, for tokens with the prefix first.
        """
        x = self._with_positions(patches, grid, keep)
        place = self._place(grid, x, keep)._replace(bias=bias)
        for block in self.blocks:
            x = run(block, self.activation_checkpointing, x, place)
        return self.norm(x)

    def _place(self, grid: tuple[int, int], x: Tensor, keep: Tensor | None = None) -> Place:
        if self.rope is None and (self.config.rotary, self.config.tower) != (None, None):
            raise UserError("rotary positions are added by build_model(config) of vit.models.zoo")
        rotation = None if self.rope is None else self.rope(grid, x)
        if rotation is not None and keep is not None:
            rotation = Rotation(rotation.cos[keep], rotation.sin[keep])
        return Place(*grid, self.num_prefix_tokens, rotation)

    def pool(self, tokens: Float[Tensor, "b n d"]) -> Float[Tensor, "b d_pooled"]:
        """The y of equation 4, by `config.pool`; distilled: the mean of two tokens, as in timm."""
        patches = tokens[:, self.num_prefix_tokens :]
        if self.attn_pool is not None:
            return self.attn_pool(patches)
        if self.config.pool == "gap":
            return self.fc_norm(patches.mean(1))
        if self.config.pool == "cls_gap":
            return torch.cat([tokens[:, 0], patches.mean(1)], dim=1)
        if self.config.distillation_token:
            return self.fc_norm(tokens[:, :2]).mean(1)
        return self.fc_norm(tokens[:, 0])

    def _outputs(
        self, images: Tensor, wanted: Sequence[int], end: int
    ) -> tuple[dict[int, Tensor], Tensor]:
        patches, grid = self.embed(images)
        x = self._with_positions(patches, grid)
        outputs: dict[int, Tensor] = {}
        place = self._place(grid, x)
        for i, block in enumerate(self.blocks[: end + 1]):
            x = run(block, self.activation_checkpointing, x, place)
            if i in wanted:
                outputs[i] = x
        return outputs, x

    def _normed(self, x: Tensor, layer: int) -> Tensor:
        return self.norm(x)

    def _parts(self, x: Tensor, layer: int, images: Tensor) -> tuple[Tensor, Tensor]:
        prefix, patches = x[:, : self.num_prefix_tokens], x[:, self.num_prefix_tokens :].mT
        grid = [side // self.layer_strides[layer] for side in images.shape[-2:]]
        return patches.reshape(*patches.shape[:2], *grid), prefix

    def _with_positions(
        self, x: Tensor, grid: tuple[int, int], keep: Tensor | None = None
    ) -> Tensor:
        """The rest of equation 1: prefix tokens, then patches `b n d` with positions."""
        prefix: list[Tensor] = [t for t in (self.cls_token, self.dist_token) if t is not None]
        positions = self.position_table(grid)
        if positions is not None:
            slots = positions.shape[1] - x.shape[1]
            x = x + positions[:, slots:].to(x.dtype)
            if slots:
                prefix = [torch.cat(prefix, dim=1) + positions[:, :slots]]
        if keep is not None:
            x = x.gather(1, keep[..., None].expand(-1, -1, x.shape[-1]))
        if self.reg_token is not None:
            prefix.append(self.reg_token)
        if prefix:
            b = x.shape[0]  # len(x) would fix the batch size of an exported graph
            x = torch.cat([t.to(x.dtype).expand(b, -1, -1) for t in prefix] + [x], dim=1)
        return self.norm_pre(self.pos_drop(x))

    def position_table(self, grid: tuple[int, int]) -> Tensor | None:
        """Positions of the patches of this grid, `1 n d`; a learned table has prefix slots."""
        config = self.config
        if self.fixed_positions is not None:
            if grid == config.grid:
                return self.fixed_positions
            return sincos2d(grid, config.width).to(self.fixed_positions)
        if self.pos_embed is None or grid == config.grid:
            return self.pos_embed
        slots, patches = self.pos_embed.tensor_split([config.num_position_slots], dim=1)
        return torch.cat([slots, resize_grid(patches, config.grid, grid, config.pos_resize)], dim=1)

    @torch.no_grad()
    def init_weights(self) -> None:
        """Follows vit_jax/models_vit.py; registers as in DINOv2, distillation token as in DeiT."""
        self.patch_embed.init_weights()
        for token, std in (
            (self.cls_token, 0.0),
            (self.dist_token, 0.02),
            (self.reg_token, 1e-6),
        ):
            if token is not None:
                nn.init.normal_(token, std=std)
        self.init_positions()
        parts: list[Any] = [*self.blocks, self.attn_pool]
        for part in parts:
            if part is not None:
                part.init_weights()
        for layer in self.pre_logits:
            if isinstance(layer, nn.Linear):
                lecun_normal_(layer)

    def init_positions(self) -> None:
        if self.pos_embed is not None:
            nn.init.normal_(self.pos_embed, std=0.02)


def plain_layers(config: ViTConfig) -> list[Block]:
    """The encoder's layers of the paper, as many as the model is deep."""
    return [
        Block(
            width=config.width,
            num_heads=config.num_heads,
            mlp_dim=config.mlp_dim,
            norm=partial(nn.LayerNorm, eps=config.layer_norm_eps),
            activation=config.activation,
            dropout=config.dropout,
            drop_path=rate,
            layer_scale=config.layer_scale,
        )
        for rate in _drop_path_rates(config)
    ]


def _head(features: int, num_classes: int) -> nn.Module:
    return zero_(nn.Linear(features, num_classes)) if num_classes else nn.Identity()


def _token(n: int, width: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(1, n, width))


def _drop_path_rates(config: ViTConfig) -> list[float]:
    """Drop probability per layer: linear from 0 (arXiv:1603.09382), or constant."""
    if config.drop_path_uniform:
        return [config.drop_path] * config.depth
    return [config.drop_path * i / max(config.depth - 1, 1) for i in range(config.depth)]
