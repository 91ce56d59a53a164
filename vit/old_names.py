"""Translates names of earlier versions in recipes, command lines and config.yaml of runs."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit.errors import UserError
from vit.ranges import shown

ANY = object()


@dataclass(frozen=True)
class Removed:
    """A removed option."""

    default: Any
    """The default, which every old config.yaml has; it is dropped. ANY drops whatever it is."""
    remedy: str
    """The error message for another value."""


_FROM_DATA = Removed(None, "it follows from the data and cannot be set")

OLD_NAMES: dict[str, str | Removed] = {
    "vit.training.atomic_io.AtomicCheckpointIO": "vit.training.saving.AtomicCheckpointIO",
    "vit.training.checkpoints.BestCheckpoint": "vit.training.saving.BestCheckpoint",
    "vit.training.checkpoints.LastCheckpoint": "vit.training.saving.LastCheckpoint",
    "vit.training.hyperrule.BiTHyperRule": "vit.training.callbacks.BiTHyperRule",
    "vit.training.lamb.LAMB": "vit.training.optimizers.LAMB",
    "vit.training.linear_probe.LinearProbeFirst": "vit.training.callbacks.LinearProbeFirst",
    "vit.training.muon.MuonWithAdamW": "vit.training.optimizers.MuonWithAdamW",
    "vit.training.progress.RunProgress": "vit.training.callbacks.RunProgress",
    "vit.training.sgdw.SGDW": "vit.training.optimizers.SGDW",
    "vit.training.stopping.StopTogether": "vit.training.callbacks.StopTogether",
    "data.val_fraction": "data.splits.val_fraction",
    "data.test_fraction": "data.splits.test_fraction",
    "data.seed": "data.splits.seed",
    "data.num_workers": "data.loading.num_workers",
    "data.cache": "data.loading.cache",
    "data.on_error": "data.loading.on_error",
    # A run's checkpoints have it too.
    "float32_route": Removed(ANY, "set --routes"),
    "data.classes": Removed(
        None, "`vit test RUN --data.root FOLDER` reads other images by the classes of a run"
    ),
    "model.layer_decay": "model.learning.layer_decay",
    "model.freeze_backbone": "model.learning.freeze_backbone",
    "model.num_classes": _FROM_DATA,
    "model.image_size": Removed(
        None, "it follows from the data and cannot be set; set data.image_size"
    ),
    "model.labels": _FROM_DATA,
    "model.preprocess": _FROM_DATA,
    "data.labelled": Removed(None, "whether labels are read follows from --task"),
    "vit.training.callbacks.LinearProbeFirst.max_images": Removed(
        10_000, "a head is fitted to at most 10,000 training images; leave the option out"
    ),
}
"""Old name -> current name. A name is the path of a class (vit.room.Class), an argument of a class
with its current path (vit.room.Class.argument), or an option (data.batch_size) with those below
it."""

SECTIONS = ("data", "model", "trainer")
"""Groups of options that may be in a separate file."""


def current_options(options: Any, where: str = "", folder: Path = Path()) -> Any:
    """A copy of a recipe or config.yaml with current names.

    `folder`: base of relative paths to files of sections. Raises UserError, starting with `where`,
    for a removed option with another value than its default, and for an option with both names.
    """
    if not isinstance(options, dict):
        return options
    copy = dict(_renamed(options, "", where))
    for name in SECTIONS:
        content = copy.get(name)
        if isinstance(content, str) and isinstance(content := _content(content, folder), dict):
            if (now := current_options({name: content}, where)) != {name: content}:
                copy |= now
    for old, new in OLD_NAMES.items():
        if isinstance(new, str) and not _is_class(old):
            _move(copy, old, new, where)
    return copy


def current_arguments(args: Iterable[str]) -> list[str]:
    """Arguments of `vit fit` and related commands with current names. UserError as above."""
    current: list[str] = []
    classes: dict[str, str] = {}  # option -> the last class given for it, whose arguments follow
    pending = list(args)
    while pending:
        pair = [pending.pop(0)]
        option, equals, value = pair[0].partition("=")
        if re.match(rf"--({'|'.join(SECTIONS)})\b", option):
            if not equals and pending and not pending[0].startswith("--"):
                pair.append(value := pending.pop(0))
            if len(pair) == 2 or equals:
                renamed = _current_argument(option, value, classes)
                pair = pair if renamed is None else renamed
        current += pair
    return current


def _current_argument(option: str, text: str, classes: dict[str, str]) -> list[str] | None:
    """An option and its value with current names; None if unchanged."""
    name = option[2:].removesuffix("+")
    *groups, last = name.split(".")
    value: Any = _content(text, Path())
    for owner in (classes.get(".".join(groups)), classes.get(".".join(groups[:-1]))):
        removed = OLD_NAMES.get(f"{owner}.{last}")
        if isinstance(removed, Removed):
            _check_removed(name, value, removed)
            return []
    nested = value
    for part in (last, *reversed(groups)):
        nested = {part: nested}
    now = current_options(nested)
    if isinstance(value, str):
        classes[name] = str(OLD_NAMES.get(text, text))
    if now == nested:
        return None
    path = []
    while isinstance(now, dict) and len(now) == 1:
        ((part, now),) = now.items()
        path.append(part)
    if now == {}:
        return []
    plus = "+" if option.endswith("+") else ""
    return [f"--{'.'.join(path)}{plus}={now if isinstance(now, str) else as_yaml(now).strip()}"]


def as_yaml(options: Any) -> str:
    """Options as the text of a recipe."""
    import yaml  # too heavy for commands that do not need it

    text = yaml.safe_dump(options, allow_unicode=True, sort_keys=False, width=2**20)
    return text.removesuffix("...\n")


def _content(text: str, folder: Path) -> Any:
    """The mapping or list in a text, or in the file of that name; otherwise the text."""
    from vit.yaml_reader import load_yaml, read_yaml

    if not any(mark in text for mark in "{[\n"):
        path = folder / Path(text).expanduser()
        return read_yaml(path) if path.suffix in (".yaml", ".yml") and path.is_file() else text
    try:
        value = load_yaml(text, "an option")
    except UserError:
        return text  # the option parser reports the error
    return value if isinstance(value, dict | list) else text


def _is_class(name: str) -> bool:
    return name.startswith("vit.")


def _renamed(value: Any, name: str, where: str) -> Any:
    """A copy with current class paths and without removed options."""
    if isinstance(value, str):
        new = OLD_NAMES.get(value) if _is_class(value) else None
        return new if isinstance(new, str) else value
    if isinstance(value, list):
        return [_renamed(item, name, where) for item in value]
    if not isinstance(value, dict):
        return value
    return dict(_kept(value, name, where))


def _kept(options: dict[Any, Any], name: str, where: str) -> Iterator[tuple[Any, Any]]:
    owner = options.get("class_path")
    if isinstance(owner, str):
        owner = _renamed(owner, "", where)
    for key, value in options.items():
        below = f"{name}.{key}" if name else str(key)
        if key == "init_args" and owner is not None:
            below = str(owner)
        removed = OLD_NAMES.get(below)
        if isinstance(removed, Removed):
            _check_removed(below, value, removed, where)
        else:
            yield key, _renamed(value, below, where)


def _check_removed(name: str, value: Any, removed: Removed, where: str = "") -> None:
    """Raises UserError if a removed option has another value than its default."""
    if isinstance(value, str):
        from vit.yaml_reader import load_yaml

        value = load_yaml(value, name)
    if removed.default not in (ANY, value):
        option = ".".join(name.split(".")[-2:])
        raise UserError(
            f"{where}{option}={shown(value)} is an option of earlier versions: {removed.remedy}"
        )


def _move(options: dict[str, Any], old: str, new: str, where: str) -> None:
    """Moves an option to its current place."""
    *groups, key = old.split(".")
    parent: Any = options
    for group in groups:
        parent = parent.get(group) if isinstance(parent, dict) else None
    if not isinstance(parent, dict) or key not in parent:
        return
    value = parent.pop(key)
    *groups, last = new.split(".")
    for group in groups:
        if options.get(group) is None:
            options[group] = {}
        options = options[group]
        if not isinstance(options, dict):
            raise UserError(f"{where}{old} is now {new}, and {group} holds no options")
    if last in options:
        raise UserError(f"{where}{old} is now {new}, and both are given; keep the latter")
    options[last] = value
