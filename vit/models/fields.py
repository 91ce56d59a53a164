"""Checks of configurations: every field has a value of its type and in its range."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from vit.errors import UserError, did_you_mean


def as_size(size: int | Sequence[int], name: str = "image_size") -> tuple[int, int]:
    """(height, width) from one side or both. UserError for anything else."""
    sides = tuple(size) if isinstance(size, Sequence) else (size, size)
    if len(sides) != 2 or not all(is_whole(n) and n > 0 for n in sides):
        kinds = {"image_size": "(height, width), in pixels", "reference": "(rows, columns)"}
        raise UserError(f"{name}={size!r} must be one side or {kinds[name]}")
    return sides[0], sides[1]


def as_depths(name: str, depths: Sequence[int], least: int) -> tuple[int, ...]:
    """Blocks per stage. UserError for fewer stages than `least`, more than 4, or another value."""
    values = tuple(depths) if isinstance(depths, Sequence) else (depths,)
    if not least <= len(values) <= 4 or not all(is_whole(n) and n > 0 for n in values):
        raise UserError(f"{name}={list(values)} must be {least} to 4 whole numbers above 0")
    return values


def known_fields(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """Arguments for `kind` from JSON, with lists as tuples. UserError for unknown names."""
    known = [field.name for field in fields(kind)]
    values = {name: value for name, value in values.items() if name != "architecture"}
    for name in values:
        if name not in known:
            raise UserError(f"unknown model option {name!r}{did_you_mean(name, known)}")
    check_choices(kind, values)
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}


def check_choices(kind: type, values: Mapping[str, Any]) -> None:
    """UserError for a value that is none of its field's choices."""
    hints = get_type_hints(kind)
    for name, value in values.items():
        if get_origin(hints[name]) is Literal and value not in get_args(hints[name]):
            choices = ", ".join(map(repr, get_args(hints[name])))
            raise UserError(f"{name}={value!r} is not one of {choices}")


def check_fields(config: Any, positive: Sequence[str], not_negative: Sequence[str]) -> None:
    """Normalises image_size. UserError names a value outside its range."""
    object.__setattr__(config, "image_size", as_size(config.image_size))
    check_choices(type(config), vars(config))
    for name in (*positive, *not_negative):
        value, least = getattr(config, name), 1 if name in positive else 0
        if not is_whole(value) or value < least:
            raise UserError(f"{name}={value!r} must be a whole number of at least {least}")
    check_kinds(config)


def check_kinds(config: Any) -> None:
    """UserError for a value that is no choice, truth value or number where one must be."""
    check_choices(type(config), vars(config))
    for name, hint in get_type_hints(type(config)).items():
        value = getattr(config, name)
        if hint is bool and not isinstance(value, bool):
            raise UserError(f"{name}={value!r} must be true or false")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if float in (hint, *get_args(hint)) and not (
            (is_number and abs(value) < 1e38) or (value is None and hint is not float)
        ):
            raise UserError(f"{name}={value!r} must be a finite number")


def is_whole(value: Any) -> bool:
    """Whether the value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)  # True is also an int
