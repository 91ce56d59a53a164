"""The allowed differences between a file and a model: head, positions, input channels."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vit.checkpoints.layout import ModelConfig, Recognised
from vit.checkpoints.report import LoadReport
from vit.models.config import ResNetConfig, ViTConfig
from vit.models.embedding import resize_grid
from vit.models.zoo import config_from_dict

HEAD = ("head.", "head_dist.")
_FIRST_CONVOLUTION = (
    "patch_embed.backbone.stem.conv.weight",
    "patch_embed.backbone.conv.weight",
    "stem.conv.weight",
    "patch_embed.proj.weight",
)
IMAGENET_CLASSES = 1000


def adapt(
    recognised: Recognised,
    report: LoadReport,
    *,
    num_classes: int | None,
    image_size: int | tuple[int, int] | None,
    classes: Sequence[str] | None,
    overrides: dict[str, Any],
) -> ModelConfig:
    """The configuration of the model to build; changes `recognised.tensors` to fit it."""
    config = recognised.config
    changes = dict(overrides)
    if image_size is not None:
        changes["image_size"] = image_size
    if num_classes is None and classes is not None:
        num_classes = len(classes)
    if num_classes is not None:
        changes["num_classes"] = num_classes
        _adapt_head(recognised, report, num_classes, classes, changes)
    target = config_from_dict({**config.to_dict(), **changes})
    if isinstance(target, ViTConfig) and isinstance(config, ViTConfig):
        _resize_positions(recognised, report, config, target)
    if target.in_channels != config.in_channels:
        _adapt_channels(recognised, report, target.in_channels)
    return target


def _adapt_head(
    recognised: Recognised,
    report: LoadReport,
    num_classes: int,
    classes: Sequence[str] | None,
    wanted: dict[str, Any],
) -> None:
    old = recognised.config.num_classes
    if old == num_classes:
        order = _order(recognised.classes, classes, num_classes)
        if order is not None:
            if order != list(range(num_classes)):
                _permute_head(recognised, order)
                report.notes.append("head: its classes are brought into the order of the data's")
            return
        reason = "zeros, as the file's classes are others"
    else:
        reason = f"zeros for {num_classes} classes, " + (
            f"the file has {old}" if old else "the file has no head"
        )
    gone = [name for name in recognised.tensors if name.startswith((*HEAD, "pre_logits."))]
    if isinstance(recognised.config, ViTConfig) and wanted.get("representation_size"):
        gone = [name for name in gone if not name.startswith("pre_logits.")]
    elif isinstance(recognised.config, ViTConfig):
        wanted["representation_size"] = None
        if any(name.startswith("pre_logits.") for name in gone):
            report.left_out["pre_logits"] = "the tanh layer goes with the head (ViT, section 3.2)"
    for name in gone:
        del recognised.tensors[name]
    recognised.classes = list(classes) if classes is not None else None
    if num_classes:
        report.reinitialised = ["head"]
        report.head = reason
    elif any(name.startswith(HEAD) for name in gone):
        report.left_out["head"] = "num_classes=0 asks for features"


def _order(
    ours: Sequence[str] | None, wanted: Sequence[str] | None, num_classes: int
) -> list[int] | None:
    """Rows of the file's head in the wanted order; None if the classes are other ones.

    Without names the number decides, as it does for ImageNet's 1000, which have many names.
    """
    if ours is None or wanted is None:
        return list(range(num_classes))
    if sorted(ours) == sorted(wanted) and len(set(ours)) == len(ours):
        return [list(ours).index(name) for name in wanted]
    return list(range(len(ours))) if len(ours) == IMAGENET_CLASSES else None


def _permute_head(recognised: Recognised, order: list[int]) -> None:
    for name, read in list(recognised.tensors.items()):
        if name.startswith(HEAD):
            recognised.tensors[name] = _then(read, lambda rows: rows[torch.tensor(order)])
    assert recognised.classes is not None
    recognised.classes = [recognised.classes[i] for i in order]
    thresholds = recognised.extra.get("thresholds")
    if thresholds is not None:
        recognised.extra = {**recognised.extra, "thresholds": [thresholds[i] for i in order]}


def _resize_positions(
    recognised: Recognised, report: LoadReport, config: ViTConfig, target: ViTConfig
) -> None:
    if config.grid == target.grid or "pos_embed" not in recognised.tensors:
        return
    slots = config.num_position_slots

    def resized(table: Tensor) -> Tensor:
        patches = resize_grid(table[:, slots:], config.grid, target.grid, target.pos_resize)
        return torch.cat([table[:, :slots], patches], dim=1)

    recognised.tensors["pos_embed"] = _then(recognised.tensors["pos_embed"], resized)
    old, new = ("x".join(map(str, grid)) for grid in (config.grid, target.grid))
    report.resized.append(f"positions from {old} to {new} patches ({target.pos_resize})")


def _adapt_channels(recognised: Recognised, report: LoadReport, channels: int) -> None:
    """One channel: the sum of the filters; more: the filters in turn, scaled to the same total.

    Source: timm, adapt_input_conv.
    """
    old = recognised.config.in_channels

    def adapted(weight: Tensor) -> Tensor:
        if channels == 1:
            return weight.sum(1, keepdim=True)
        turns = torch.arange(channels) % old
        return weight[:, turns] * (old / channels)

    name = next(name for name in _FIRST_CONVOLUTION if name in recognised.tensors)
    recognised.tensors[name] = _then(recognised.tensors[name], adapted)
    report.resized.append(f"input filters from {old} to {channels} channels")


def _then(read: Callable[[], Tensor], change: Callable[[Tensor], Tensor]) -> Callable[[], Tensor]:
    return lambda: change(read())


def same_architecture(a: ModelConfig, b: ModelConfig) -> list[str]:
    """'width=384 instead of 768' for each size in which two configurations differ."""
    if type(a) is not type(b):
        kinds = {ViTConfig: "Vision Transformer", ResNetConfig: "ResNet"}
        return [f"a {kinds[type(a)]} instead of a {kinds[type(b)]}"]
    names = ["depths", "width_factor"]
    if isinstance(a, ViTConfig):
        names = ["patch_size", "width", "depth", "mlp_dim", "num_heads", "stem_depths"]
    pairs = [(name, getattr(a, name), getattr(b, name)) for name in names]
    return [f"{name}={x} instead of {y}" for name, x, y in pairs if x != y]
