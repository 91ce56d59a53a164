"""The allowed differences between a file and a model: head, positions, input channels."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vit.checkpoints.layout import ModelConfig, Recognised
from vit.checkpoints.report import LoadReport
from vit.errors import shorten, some_of
from vit.models.config import ResNetConfig, ViTConfig
from vit.models.embedding import resize_grid
from vit.models.fields import changed
from vit.models.zoo import config_from_dict

HEAD = ("head.", "head_dist.")
_FIRST_CONVOLUTION = (
    "patch_embed.backbone.stem.conv.weight",
    "patch_embed.backbone.conv.weight",
    "stem.conv.weight",
    "patch_embed.proj.weight",
)
IMAGENET_CLASSES = 1000
_REPORTED = frozenset(
    "num_classes image_size in_channels representation_size dropout drop_path".split()
)
"""Fields that have lines of their own, or no effect on an evaluation."""


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
    target = config_from_dict(changed(config.to_dict(), changes))
    _note_changes(report, config, target)
    if isinstance(target, ViTConfig) and isinstance(config, ViTConfig):
        _resize_positions(recognised, report, config, target)
        if target.norm_after_pool and not config.norm_after_pool:
            _renew_norm(recognised, report, target.width)
    if target.in_channels != config.in_channels:
        _adapt_channels(recognised, report, target.in_channels)
    return target


def _note_changes(report: LoadReport, config: ModelConfig, target: ModelConfig) -> None:
    """Notes fields by which the model computes other outputs than the file's own."""
    before, now = config.to_dict(), target.to_dict()
    names = [n for n in now if n not in _REPORTED and now[n] != before.get(n)]
    if names:
        pairs = (f"{n}={shorten(now[n])} (there {shorten(before.get(n))})" for n in names)
        report.notes.append(f"the model differs from the file's: {', '.join(pairs)}")


def _adapt_head(
    recognised: Recognised,
    report: LoadReport,
    num_classes: int,
    classes: Sequence[str] | None,
    wanted: dict[str, Any],
) -> None:
    old = recognised.config.num_classes
    rows = _rows(recognised.classes, classes, old, num_classes)
    if rows is not None:
        _move_rows(recognised, report, rows, classes)
        return
    gone = HEAD
    has_tanh_layer = getattr(recognised.config, "representation_size", None) is not None
    if has_tanh_layer and not wanted.get("representation_size"):
        gone, wanted["representation_size"] = (*HEAD, "pre_logits."), None
        report.left_out["pre_logits"] = "the tanh layer goes with the head (ViT, section 3.2)"
    for name in [name for name in recognised.tensors if name.startswith(gone)]:
        del recognised.tensors[name]
    recognised.classes = list(classes) if classes is not None else None
    if num_classes:
        report.reinitialised = ["head"]
        has = "others" if old == num_classes else old or "no head"
        report.head = f"zeros for {num_classes} classes, the file has {has}"
    elif old:
        report.left_out["head"] = "num_classes=0 asks for features"


def _rows(
    ours: Sequence[str] | None, wanted: Sequence[str] | None, old: int, new: int
) -> list[int | None] | None:
    """The row of the file's head for each wanted class, None for a class that it lacks; None in
    place of the list if it knows none of them.

    Without names the number decides, as it does for ImageNet's 1000, which have many names.
    """
    if old == new and (ours is None or wanted is None):
        return list(range(new))
    if ours is not None and wanted is not None and len(set(ours)) == len(ours):
        place = {name: row for row, name in enumerate(ours)}
        rows = [place.get(name) for name in wanted]
        named = [row for row in rows if row is not None]
        if len(named) == new or (named and not old == new == IMAGENET_CLASSES):
            return rows
    return list(range(new)) if old == new == IMAGENET_CLASSES else None


def _move_rows(
    recognised: Recognised,
    report: LoadReport,
    rows: list[int | None],
    classes: Sequence[str] | None,
) -> None:
    """Gives the head these rows; zeros for None."""
    ours, thresholds = recognised.classes, recognised.extra.get("thresholds")
    if rows == list(range(recognised.config.num_classes)):
        return
    assert ours is not None and classes is not None
    kept = [place for place, row in enumerate(rows) if row is not None]
    known = [row for row in rows if row is not None]

    def moved(old: Tensor) -> Tensor:
        new = old.new_zeros(len(rows), *old.shape[1:])
        new[kept] = old[known]
        return new

    for name, read in list(recognised.tensors.items()):
        if name.startswith(HEAD):
            recognised.tensors[name] = _then(read, moved)
    recognised.classes = list(classes)
    fresh = [name for name, row in zip(classes, rows, strict=True) if row is None]
    gone = [name for name in ours if name not in classes]
    if fresh:
        report.reinitialised, report.kept = ["head"], kept
    elif thresholds is not None:
        recognised.extra = {**recognised.extra, "thresholds": [thresholds[row] for row in known]}
    if fresh or gone:
        report.head = f"rows of {len(kept):,} classes kept by name" + "".join(
            f"; {what}: {some_of(map(repr, names))}"
            for what, names in (("new", fresh), ("gone", gone))
            if names
        )
    else:
        report.notes.append("head: its classes are brought into the order of the data's")


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


def _renew_norm(recognised: Recognised, report: LoadReport, width: int) -> None:
    """A fresh norm after the pooling, as in MAE's fine-tuning: the file's is of single tokens."""
    for part, values in (("weight", torch.ones(width)), ("bias", torch.zeros(width))):
        recognised.tensors.pop(f"norm.{part}", None)
        recognised.tensors[f"fc_norm.{part}"] = values.clone
    report.left_out["norm"] = "norm_after_pool=true asks for a fresh one after the pooling"


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
