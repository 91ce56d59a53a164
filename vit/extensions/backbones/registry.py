"""Our models in timm's registry. timm is imported on use."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from vit.errors import UserError, needed
from vit.extensions.backbones.contract import TimmContract, as_timm, pretrained_cfg
from vit.extensions.formats.published import table
from vit.models.config import ResNetConfig
from vit.models.zoo import list_models, model_config
from vit.weights.pretrained import create_model

default_cfgs: dict[str, Any] = {}
"""Architecture -> its weights and their preprocessing, which timm reads in the module of an entry
point."""


def register_with_timm() -> list[str]:
    """Adds our models to timm's registry, for `timm.create_model` and packages that build on it.

    `timm.create_model("vit_s16.augreg_in21k", pretrained=True)` loads published weights as
    `vit.create_model` does. Returns the names of the models. UserError if timm is not installed.
    """
    models = needed("timm.models", "peers")
    cfgs: dict[str, dict[str, Any]] = {}
    for row in table().values():
        sizes = {"image_size": row.size, "num_classes": row.outputs}
        config = replace(model_config(row.architecture), **sizes)
        cfgs[row.name] = pretrained_cfg(config, row.preprocess()) | {"url": row.address}
    tagged = {name.partition(".")[0] for name in cfgs}
    untagged = [name for name in list_models() if name not in tagged]
    cfgs |= {name: pretrained_cfg(model_config(name), None) for name in untagged}
    default_cfgs.update(models.generate_default_cfgs(cfgs))
    for name in list_models():
        if not models.is_model(name):
            entry: Any = partial(_build, name)
            entry.__name__, entry.__module__ = name, __name__
            models.register_model(entry)
    return list_models()


def _build(
    name: str,
    pretrained: bool = False,
    pretrained_cfg: Any = None,
    pretrained_cfg_overlay: dict[str, Any] | None = None,
    cache_dir: object = None,
    pretrained_model_args: dict[str, Any] | None = None,
    *,
    features_only: bool = False,
    out_indices: int | Sequence[int] | None = None,
    feature_cls: str = "getter",
    **options: Any,
) -> nn.Module:
    """A model by timm's arguments. UserError for a value that our models cannot have.

    `pretrained_cfg`: a tag of published weights, which are cached where all others are, or the
    record of a model that timm has saved, which timm reads. `file` in the overlay is any file
    that `vit.create_model` reads. `options`: those of `_model`.
    """
    if feature_cls not in ("getter", "list"):
        raise UserError(f"feature_cls={feature_cls!r} is not one of getter, list")
    overlay = pretrained_cfg_overlay or {}
    tag = f"{name}.{pretrained_cfg}" if isinstance(pretrained_cfg, str) else True
    saved = bool(pretrained_cfg) and tag is True
    if saved and isinstance(pretrained_cfg, dict) and "input_size" in pretrained_cfg:
        options = {"img_size": tuple(pretrained_cfg["input_size"][-2:]), **options}
    weights = overlay.get("file", tag) if pretrained and not saved else None
    model = _model(name, weights, **options)
    count = 5 if isinstance(model.config, ResNetConfig) else 3
    return needed("timm.models", "peers").build_model_with_cfg(
        lambda **_: model,
        name,
        pretrained=pretrained and saved,
        pretrained_cfg=pretrained_cfg if saved else model.pretrained_cfg,
        pretrained_cfg_overlay=overlay,
        pretrained_model_args=pretrained_model_args,
        feature_cfg={"feature_cls": "getter", "out_indices": out_indices or count},
        features_only=features_only,
    )


def _model(
    name: str,
    weights: str | bool | None,
    *,
    num_classes: int | None = None,
    in_chans: int | None = None,
    img_size: int | tuple[int, int] | None = None,
    global_pool: str | None = None,
    drop_rate: float = 0.0,
    drop_path_rate: float | None = None,
    dynamic_img_size: bool = True,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> TimmContract:
    """The model. It takes images of any size, also without `dynamic_img_size`."""
    if drop_rate:
        raise UserError(f"drop_rate={drop_rate}: there is no dropout here before the head")
    fields: dict[str, Any] = {"num_classes": num_classes, "image_size": img_size}
    fields |= {"in_channels": in_chans, "drop_path": drop_path_rate}
    fields = {field: value for field, value in fields.items() if value is not None}
    model = as_timm(create_model(name, pretrained=weights, **fields)).to(device, dtype)
    model.choose_pool(global_pool)
    return model
