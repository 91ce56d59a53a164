"""Our models by timm's contract: its attributes, and its methods that ours lack. Needs no timm."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from vit.console import note
from vit.errors import UserError
from vit.extensions.formats.preprocessing import to_timm, unrecorded
from vit.models.backbone import Backbone, layer_indices
from vit.models.config import ResNetConfig
from vit.models.resnet import ResNet
from vit.models.vision_transformer import VisionTransformer
from vit.models.zoo import ZOO, Model, ModelConfig
from vit.shapes import Float

_POOLS = {"cls": "token", "gap": "avg"}
"""`ViTConfig.pool` -> timm's global_pool, where it has another name."""

_CHOSEN = {"image_size", "in_channels", "num_classes", "dropout", "drop_path", "drop_path_uniform"}
"""Fields of a configuration that are no part of its architecture."""


class TimmContract(Backbone):
    """First base of the classes of `as_timm`; the second one is the model's class.

    `pretrained_cfg` and `default_cfg`, the same dictionary, have the fields of timm's.
    `global_pool` is "" if the head reads each token, or each position of a map.
    """

    config: ModelConfig
    pretrained_cfg: dict[str, Any]
    default_cfg: dict[str, Any]
    global_pool: str

    def __reduce__(self) -> tuple[Any, ...]:
        return _empty, (type(self).__bases__[1],), self.__dict__

    @property
    def in_chans(self) -> int:
        """Channels of the images."""
        return self.config.in_channels

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """Channels, stride and module of each layer of `forward_intermediates`."""
        layers = "stages" if isinstance(self.config, ResNetConfig) else "blocks"
        stem = ["stem.conv" for _ in self.stem_features]
        names = stem + [f"{layers}.{i}" for i in range(len(self.layer_channels))]
        rows = zip(super().feature_info, names, strict=True)
        return [{**row, "module": name} for row, name in rows]

    def choose_pool(self, global_pool: str | None) -> None:
        """Sets `global_pool`; None changes nothing. UserError for a pooling that the model does
        not have."""
        pool = _pool(self.config)
        if global_pool not in (None, "", pool):
            raise UserError(
                f"global_pool={global_pool!r} is not one of '', {pool!r} for this model"
            )
        self.global_pool = self.global_pool if global_pool is None else global_pool

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replaces each head with one of zeros; 0 outputs remove it. UserError: `choose_pool`."""
        plain: Any = super()
        self.choose_pool(global_pool)
        plain.reset_classifier(num_classes)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Tensor:
        """`forward_head` of `forward_features`: logits, or with global_pool="" one per position."""
        plain: Any = self
        return self.forward_head(plain.forward_features(images))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits from the output of `forward_features`; with `pre_logits` the head's input."""
        plain: Any = super()
        if self.global_pool:
            return plain.forward_head(x, pre_logits=pre_logits)
        if isinstance(self, VisionTransformer):
            x = self.pre_logits(self.fc_norm(x))
        heads = [] if pre_logits else self.head_layers
        return torch.stack([head(x) for head in heads]).mean(0) if heads else x

    def prune_intermediate_layers(
        self, indices: int | Sequence[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Removes what no output at `indices` of `feature_info` needs, so that each parameter that
        is left gets a gradient. Returns the indices, counted from the front."""
        wanted, plain = layer_indices(indices, len(self.feature_info)), cast(Any, self)
        layers = plain.stages if isinstance(self.config, ResNetConfig) else plain.blocks
        del layers[max(wanted) + 1 - len(self.stem_features) :]
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0, "")
        return wanted

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Patterns of parameter names by depth, for timm's learning rates that decay by layer."""
        stem = r"^(?:cls_token|dist_token|reg_token|pos_embed|patch_embed|stem)"
        fine = isinstance(self.config, ResNetConfig) and not coarse
        layer = r"^stages\.(\d+)\.blocks\.(\d+)" if fine else r"^(?:blocks|stages)\.(\d+)"
        return {"stem": stem, "blocks": [(layer, None), (r"^norm", (99999,))]}

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Resamples the position table for another image size, in place; a BiT has none."""
        if isinstance(self, VisionTransformer):
            set_input_size(self, img_size)


def as_timm(model: Model) -> TimmContract:
    """The model itself, which gains timm's attributes and methods (`TimmContract`) by a change of
    its class. Parameters and their names stay. It works in place: `reset_classifier` and a
    `global_pool` of "" also change what a `Classifier` of this model computes.

    UserError for another module.
    """
    if not isinstance(model, VisionTransformer | ResNet):
        raise UserError(f"as_timm takes a model of this package, not {type(model).__name__}")
    if isinstance(model, TimmContract):
        return model
    model.__class__ = _contracted(type(model))
    if model.preprocess == {}:
        note("the weights do not record how images are prepared: default_cfg has [-1, 1]")
    contract = cast(TimmContract, model)
    fields = {"architecture": _name(model.config), **pretrained_cfg(model.config, model.preprocess)}
    contract.pretrained_cfg = contract.default_cfg = fields
    contract.global_pool = _pool(model.config)
    return contract


def pretrained_cfg(config: ModelConfig, preprocess: Mapping[str, Any] | None) -> dict[str, Any]:
    """Fields of timm's class of that name. `preprocess`: `Preprocess.to_dict()`, None or {} for
    the default."""
    steps = preprocess or unrecorded(config).to_dict()
    fields = to_timm(dict(steps)) | {
        "input_size": (config.in_channels, *config.size),
        "num_classes": config.num_classes,
    }
    if isinstance(config, ResNetConfig):
        stride = 2 ** (len(config.depths) + 1)
        pool_size = tuple(side // stride for side in config.size)
        return fields | {"pool_size": pool_size, "first_conv": "stem.conv", "classifier": "head.fc"}
    stem = "backbone.stem.conv" if config.stem_depths else "backbone.conv"
    return fields | {
        "first_conv": f"patch_embed.{'proj' if config.stem_depths is None else stem}",
        "classifier": ("head", "head_dist") if config.distillation_token else "head",
        # timm's callers choose other sizes that are multiples of 32.
        "fixed_input_size": 32 % config.patch_size != 0,
    }


@torch.no_grad()
def set_input_size(model: VisionTransformer, size: int | tuple[int, int]) -> None:
    """Resamples a model's position table for another image size, in place."""
    config = replace(model.config, image_size=size)
    positions = model.position_table(config.grid)
    if model.fixed_positions is not None:
        model.fixed_positions = positions
    elif model.pos_embed is not None and positions is not None:
        model.pos_embed = nn.Parameter(positions, model.pos_embed.requires_grad)
    model.config = config


def _name(config: ModelConfig) -> str:
    """The name of the architecture, by which timm builds a model that it has saved; "" for one
    without a name."""
    same = _architecture(config)
    return next((name for name, row in ZOO.items() if _architecture(row.config) == same), "")


def _architecture(config: ModelConfig) -> dict[str, Any]:
    return {field: value for field, value in config.to_dict().items() if field not in _CHOSEN}


def _pool(config: ModelConfig) -> str:
    return "avg" if isinstance(config, ResNetConfig) else _POOLS.get(config.pool, config.pool)


@cache
def _contracted(base: type[nn.Module]) -> Any:
    return type(f"Timm{base.__name__}", (TimmContract, base), {})


def _empty(base: type[nn.Module]) -> Any:
    """An instance without attributes, for pickle and copy."""
    kind = _contracted(base)
    return kind.__new__(kind)
