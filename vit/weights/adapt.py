"""The allowed differences between a file and a model: head, positions, input channels."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from vit.errors import UserError, shorten, some_of
from vit.models.config import ResNetConfig, ViTConfig
from vit.models.embedding import resize_grid
from vit.models.fields import changed
from vit.models.zoo import ModelConfig, config_from_dict
from vit.weights.formats import Recognised
from vit.weights.names import class_names, head_rows

HEAD = ("head.", "head_dist.")
_FIRST_CONVOLUTION = (
    "patch_embed.backbone.stem.conv.weight",
    "patch_embed.backbone.conv.weight",
    "stem.conv.weight",
    "patch_embed.proj.weight",
)
HeadRows = Literal["fit", "keep", "score"]
"""Source of the head's rows. fit: rows of the same class names; the others start at zero. keep: as
many as the file has, by number. score: all of the file's, by name, or by number where names are
missing; none is new."""
_REPORTED = frozenset(
    "num_classes image_size in_channels representation_size dropout drop_path".split()
)
"""Fields that have lines of their own, or no effect on an evaluation."""


def adapt(
    file: Recognised,
    *,
    num_classes: int | None,
    image_size: int | tuple[int, int] | None,
    classes: Sequence[str] | None,
    head: HeadRows,
    overrides: Mapping[str, object],
) -> ModelConfig:
    """The configuration of the model to build; changes `file` to fit it."""
    config = file.config
    changes: dict[str, object] = dict(overrides)
    if image_size is not None:
        changes["image_size"] = image_size
    if num_classes is None and classes is not None:
        num_classes = len(classes)
    if num_classes is not None:
        changes["num_classes"] = num_classes
        _adapt_head(file, num_classes, classes, head, changes)
    else:
        outputs = config.num_classes
        file.head = f"{outputs:,} outputs, as in the file" if outputs else "the file has none"
    target = config_from_dict(changed(config.to_dict(), changes))
    _note_changes(file, config, target)
    if isinstance(target, ViTConfig) and isinstance(config, ViTConfig):
        _resize_positions(file, config, target)
        if target.norm_after_pool and not config.norm_after_pool:
            _renew_norm(file, target.width)
    if target.in_channels != config.in_channels:
        _adapt_channels(file, target.in_channels)
    return target


def _note_changes(file: Recognised, config: ModelConfig, target: ModelConfig) -> None:
    """Notes fields by which the model computes other outputs than the file's own."""
    before, now = config.to_dict(), target.to_dict()
    names = [n for n in now if n not in _REPORTED and now[n] != before.get(n)]
    if names:
        pairs = (f"{n}={shorten(now[n])} (there {shorten(before.get(n))})" for n in names)
        file.notes.append(f"the model differs from the file's: {', '.join(pairs)}")


def _adapt_head(
    file: Recognised,
    num_classes: int,
    classes: Sequence[str] | None,
    head: HeadRows,
    wanted: dict[str, object],
) -> None:
    config, old = file.config, file.config.num_classes
    rows, how = _rows(file.classes, classes, old, num_classes, head)
    if head != "fit" and num_classes and (rows is None or None in rows):
        has = "others" if old == num_classes else f"{old:,}" if old else "no head"
        raise UserError(
            f"{file.source} knows other classes: {num_classes:,} are asked for, it has {has}; "
            f"{'head=keep' if head == 'keep' else 'scoring'} makes no new rows"
        )
    if rows:
        _move_rows(file, rows, classes, how)
        return
    gone = HEAD
    has_tanh_layer = isinstance(config, ViTConfig) and config.representation_size is not None
    if has_tanh_layer and not wanted.get("representation_size"):
        gone, wanted["representation_size"] = (*HEAD, "pre_logits."), None
        file.left_out["pre_logits"] = "the tanh layer goes with the head (ViT, section 3.2)"
    for name in [name for name in file.tensors if name.startswith(gone)]:
        del file.tensors[name]
    unnamed = file.classes is None
    file.classes = list(classes) if classes is not None else None
    if num_classes:
        file.reinitialised = ["head"]
        has = f"has {old or 'no head'}"
        if old == num_classes:
            has = "does not name its classes" if unnamed else "has others"
        file.head = f"zeros for {num_classes} classes, the file {has}"
    elif old:
        file.left_out["head"] = "num_classes=0 asks for features"
    else:
        file.head = "the file has none"


def _rows(
    names: Sequence[str] | None,
    wanted: Sequence[str] | None,
    old: int,
    new: int,
    head: HeadRows,
) -> tuple[list[int | None] | None, str]:
    """The row of the file's head for each of the model's classes, None for one that it lacks, and
    "by name" or "by number"; None in place of the list if it has none of them.

    A file without names is known to have ImageNet's if all of `wanted` are among them.
    """
    if wanted is not None and head != "keep":
        counts = Counter(names or ())
        places = {name: row for row, name in enumerate(names or ()) if counts[name] == 1}
        rows = [places.get(name) for name in wanted]
        if None in rows:  # the same classes may have other names there
            rows = head_rows(names, old, wanted) or rows
        if any(row is not None for row in rows):
            return rows, "by name"
        if head == "fit" or names is not None:
            return None, ""
    return (list(range(new)) if old == new else None), "by number"


def _move_rows(
    file: Recognised,
    rows: list[int | None],
    classes: Sequence[str] | None,
    how: str,
) -> None:
    """Gives the head these rows; zeros for None."""
    old, names = file.config.num_classes, file.classes
    places = [place for place, row in enumerate(rows) if row is not None]
    known = [row for row in rows if row is not None]
    file.head = f"rows of {len(places):,} classes kept {how}"
    if classes is not None:
        file.classes = list(classes)
    if rows == list(range(old)):
        return

    def moved(old: Tensor) -> Tensor:
        new = old.new_zeros(len(rows), *old.shape[1:])
        new[places] = old[known]
        return new

    for name, read in list(file.tensors.items()):
        if name.startswith(HEAD):
            file.tensors[name] = _then(read, moved)
    assert classes is not None
    fresh = [name for name, row in zip(classes, rows, strict=True) if row is None]
    names = names or class_names(old) or []
    gone = [names[row] for row in sorted({*range(old)} - {*known})]
    thresholds = file.extra.get("thresholds")
    if fresh:
        file.reinitialised, file.known_rows = ["head"], places
    elif thresholds is not None:
        file.extra = {**file.extra, "thresholds": [thresholds[row] for row in known]}
    for what, of_them in (("new", fresh), ("gone", gone)):
        if of_them:
            file.head += f"; {what}: {some_of(map(repr, of_them))}"
    if not fresh and not gone:
        file.head += ", in the order of the data's"


def _resize_positions(file: Recognised, config: ViTConfig, target: ViTConfig) -> None:
    if config.grid == target.grid or "pos_embed" not in file.tensors:
        return
    slots = config.num_position_slots

    def resized(table: Tensor) -> Tensor:
        patches = resize_grid(table[:, slots:], config.grid, target.grid, target.pos_resize)
        return torch.cat([table[:, :slots], patches], dim=1)

    file.tensors["pos_embed"] = _then(file.tensors["pos_embed"], resized)
    old, new = ("x".join(map(str, grid)) for grid in (config.grid, target.grid))
    file.resized.append(f"positions from {old} to {new} patches ({target.pos_resize})")


def _renew_norm(file: Recognised, width: int) -> None:
    """A fresh norm after the pooling, as in MAE's fine-tuning: the file's is of single tokens."""
    for part, values in (("weight", torch.ones(width)), ("bias", torch.zeros(width))):
        file.tensors.pop(f"norm.{part}", None)
        file.tensors[f"fc_norm.{part}"] = values.clone
    file.left_out["norm"] = "norm_after_pool=true asks for a fresh one after the pooling"


def _adapt_channels(file: Recognised, channels: int) -> None:
    """Sums the filters for one channel; takes them in turn for more, scaled to the same total.

    Source: timm, adapt_input_conv.
    """
    old = file.config.in_channels

    def adapted(weight: Tensor) -> Tensor:
        turns = torch.arange(channels) % old
        return weight.sum(1, keepdim=True) if channels == 1 else weight[:, turns] * (old / channels)

    names = [name for name in _FIRST_CONVOLUTION if name in file.tensors]
    if not names:
        raise UserError(f"{file.source} takes images of {old} channels, and cannot take {channels}")
    file.tensors[names[0]] = _then(file.tensors[names[0]], adapted)
    file.resized.append(f"input filters from {old} to {channels} channels")


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
