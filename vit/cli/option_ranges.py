"""What the options of a run may be, checked before any data is read or model is built.

The table has every number that the parser itself takes. Groups of options that are dataclasses of
this package (augmentation, schedule, loss, ...) check their own fields when they are built.
"""

import math
import types
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from datetime import timedelta
from typing import Any, Union, get_args, get_origin, get_type_hints

from jsonargparse import Namespace

from vit.data.options import CHANNELS
from vit.errors import NOT_NEGATIVE, POSITIVE, Range, UserError, check_range, shorten
from vit.training.masking import FRACTION

MAX_SEED = 2**32 - 1
"""The largest seed that Lightning and numpy take."""
MAX_DEVICES = 1024
"""Processes of one machine; more would be started until its memory ends."""

COUNT = Range(low=1)
LIMIT = Range(low=1, also=(-1,))
PART = Range(low=0, low_open=True, high=1)

RANGES: dict[str, Range] = {
    "seed_everything": Range(low=0, high=MAX_SEED),
    "trainer.devices": Range(low=1, high=MAX_DEVICES, also=(-1,)),
    "trainer.num_nodes": COUNT,
    "trainer.fast_dev_run": Range(low=0, unit="batches"),
    "trainer.max_epochs": LIMIT,
    "trainer.min_epochs": NOT_NEGATIVE,
    "trainer.max_steps": LIMIT,
    "trainer.min_steps": NOT_NEGATIVE,
    "trainer.max_time": POSITIVE,
    "trainer.limit_train_batches": COUNT,
    "trainer.limit_val_batches": NOT_NEGATIVE,
    "trainer.limit_test_batches": COUNT,
    "trainer.limit_predict_batches": COUNT,
    "trainer.overfit_batches": Range(low=0, high=0),
    "trainer.val_check_interval": POSITIVE,
    "trainer.check_val_every_n_epoch": COUNT,
    "trainer.num_sanity_val_steps": Range(low=0, also=(-1,)),
    "trainer.log_every_n_steps": NOT_NEGATIVE,
    "trainer.accumulate_grad_batches": COUNT,
    "trainer.gradient_clip_val": NOT_NEGATIVE,
    "trainer.reload_dataloaders_every_n_epochs": NOT_NEGATIVE,
    "data.channels": CHANNELS,
    "data.image_size": COUNT,
    "data.batch_size": COUNT,
    "data.global_batch": COUNT,
    "patience": COUNT,
    "save_every": Range(low=0, unit="seconds"),
    "model.fraction": FRACTION,
    "model.lora": COUNT,
}
"""Whole or real numbers for the options that take some; null leaves the Trainer's default."""

PARTS: dict[str, Range] = {
    "trainer.limit_train_batches": PART,
    "trainer.limit_val_batches": Range(low=0, high=1),
    "trainer.limit_test_batches": PART,
    "trainer.limit_predict_batches": PART,
    "trainer.val_check_interval": PART,
}
"""The same where the value is a real number: a share of the batches."""

CHOICES = {"trainer.precision"}
"""Options whose numbers are names."""

REMEDIES = {
    "trainer.overfit_batches": "it would draw other images in every epoch; use "
    "--trainer.limit_train_batches, or --data.root with a few images",
    "trainer.limit_test_batches": "a run without a final score is --final_split none",
    "seed_everything": "every run has a seed, so that it can be repeated",
}

# Option -> (the only values it may have, why).
FIXED: dict[str, tuple[tuple[Any, ...], str]] = {
    "trainer.enable_checkpointing": (
        (None, True),
        "a run is resumed and scored from its checkpoints",
    ),
    "trainer.default_root_dir": ((None,), "the place of a run is --run_dir"),
    "trainer.use_distributed_sampler": (
        (False, None),
        "the data is shared among processes by this package, every image once",
    ),
    "trainer.barebones": ((False,), "it would switch off metrics and checkpoints"),
    "trainer.model_registry": ((None,), "models are published by vit convert or push_to_hub"),
    "trainer.gradient_clip_algorithm": ((None, "norm", "value"), "choose norm or value"),
}

# Strategies that copy a started process; the command is started once for each process instead.
COPYING = ("ddp_spawn", "ddp_fork", "ddp_notebook", "xla")

PATHS = ("data.root", "data.data_dir", "model.pretrained", "run_dir", "ckpt_path")


def check_options(config: Namespace) -> None:
    """UserError, in one line, for the first value of a parsed configuration that cannot work."""
    for name, value in numbers(config):
        if isinstance(value, float) and not math.isfinite(value):
            option = name.replace(".init_args.", ".")  # as it is typed
            raise UserError(f"{option}={value} is not a finite number")
    for name, allowed in RANGES.items():
        _check_number(name, config.get(name), allowed)
    for name, (allowed, reason) in FIXED.items():
        if config.get(name) not in allowed:
            raise UserError(f"{name}={shorten(config.get(name))} cannot be used here: {reason}")
    for name in PATHS:
        if config.get(name) == "":
            raise UserError(f"{name} is empty; give a path, or leave the option out")
    strategy = config.get("trainer.strategy")
    if isinstance(strategy, str) and strategy.startswith(COPYING):
        raise UserError(
            f"trainer.strategy={strategy} cannot be used here: the started process cannot be "
            "copied; choose ddp"
        )


def numbers(config: Any, name: str = "") -> Iterator[tuple[str, int | float]]:
    """Dotted name and value of every number in a parsed configuration."""
    if isinstance(config, int | float) and not isinstance(config, bool):
        yield name, config
    elif isinstance(config, Namespace | Mapping):
        items = vars(config) if isinstance(config, Namespace) else config
        for key, value in items.items():
            yield from numbers(value, f"{name}.{key}" if name else str(key))
    elif isinstance(config, list | tuple):
        for value in config:
            yield from numbers(value, name)


def _check_number(name: str, value: Any, allowed: Range) -> None:
    """UserError where an option of `RANGES` is outside its range."""
    if name == "trainer.devices":
        _check_devices(value)
        return
    if name == "seed_everything" and isinstance(value, bool):
        raise UserError(f"{name}={value} is not a number: {REMEDIES[name]}")
    if name in ("trainer.max_time", "trainer.val_check_interval") and _is_time(value):
        _check_time(name, value)
        return
    if isinstance(value, list | tuple):  # such as height and width
        for number in value:
            _check_number(name, number, allowed)
        return
    if value is None or isinstance(value, bool | str):
        return  # null, a switch such as fast_dev_run=true, or a text that the Trainer reads
    if isinstance(value, float) and name in PARTS:
        allowed = PARTS[name]
    try:
        check_range(name, value, allowed)
    except UserError as error:
        remedy = f": {REMEDIES[name]}" if name in REMEDIES else ""
        raise UserError(f"{error}{remedy}") from None


def _is_time(value: Any) -> bool:
    return isinstance(value, str | timedelta | dict | Namespace)


def _check_time(name: str, value: Any) -> None:
    """UserError where a duration (DD:HH:MM:SS, or a mapping such as {hours: 2}) is not above 0."""
    wrong = UserError(
        f"{name}={shorten(value)!r} is not a time above 0, such as 00:01:30:00 (days, hours, "
        "minutes, seconds)"
    )
    try:
        if isinstance(value, str):
            days, hours, minutes, seconds = (int(part) for part in value.strip().split(":"))
            parts = {"days": days, "hours": hours, "minutes": minutes, "seconds": seconds}
            if min(parts.values()) < 0:
                raise wrong
            value = timedelta(**parts)
        elif isinstance(value, dict | Namespace):
            value = timedelta(**(value if isinstance(value, dict) else vars(value)))
    except (ValueError, TypeError, OverflowError):
        raise wrong from None
    if value <= timedelta(0):
        raise wrong


def _check_devices(value: Any) -> None:
    """UserError unless devices are a count, -1, "auto", or distinct indices."""
    text = str(value).strip()
    if value is None or text == "auto":
        return
    wrong = UserError(
        f"trainer.devices={text!r} is not a number of devices (1 to {MAX_DEVICES}), -1 for all, "
        "auto, or their indices such as 0,1"
    )
    several = isinstance(value, list | tuple) or "," in text
    try:
        parts = [int(part) for part in text.strip("[]()").split(",") if part.strip()]
    except ValueError:
        raise wrong from None
    if several:
        if not parts or min(parts) < 0 or len(set(parts)) < len(parts):
            raise wrong
    elif len(parts) != 1 or not RANGES["trainer.devices"].holds(parts[0]):
        raise wrong


def check_constructors(group: Any, owner: type) -> None:
    """Builds the dataclasses among the arguments of `owner`, whose constructors check them.

    `group`: the parsed arguments. Raises their UserError.
    """
    hints = get_type_hints(owner.__init__)
    for name, value in vars(group).items():
        kind = dataclass_of(hints.get(name))
        if kind is not None and isinstance(value, Namespace):
            _built(kind, value)


def _built(kind: type, values: Namespace) -> Any:
    hints = get_type_hints(kind)
    arguments = {}
    for name, value in vars(values).items():
        if value is None and type(None) not in get_args(hints.get(name)):
            raise UserError(f"{name} is null; give a value, or leave the option out")
        inner = dataclass_of(hints.get(name))
        if inner is not None and isinstance(value, Namespace):
            value = _built(inner, value)
        arguments[name] = value
    return kind(**arguments)


def dataclass_of(hint: Any) -> type | None:
    """The dataclass that a type hint names, also as one of several types; None without one."""
    if isinstance(hint, type) and is_dataclass(hint):
        return hint
    if get_origin(hint) in (Union, types.UnionType):
        return next((kind for kind in map(dataclass_of, get_args(hint)) if kind is not None), None)
    return None
