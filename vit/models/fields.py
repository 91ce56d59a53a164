"""Checks of configurations: every field has a value of its type and in its range."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from vit.errors import UserError, did_you_mean, shorten


def as_size(size: int | Sequence[int]) -> tuple[int, int]:
    """(height, width) from one side or both. UserError for anything else."""
    sides = tuple(size) if isinstance(size, Sequence) else (size, size)
    if len(sides) != 2 or not all(_is_whole(n) and n > 0 for n in sides):
        raise UserError(f"image_size={size!r} must be one side or (height, width), in pixels")
    return sides[0], sides[1]


def as_depths(name: str, depths: Sequence[int], least: int) -> tuple[int, ...]:
    """Blocks per stage. UserError for fewer stages than `least`, more than 4, or another value."""
    values = tuple(depths) if isinstance(depths, Sequence) else (depths,)
    if not least <= len(values) <= 4 or not all(_is_whole(n) and n > 0 for n in values):
        raise UserError(f"{name}={list(values)} must be {least} to 4 whole numbers above 0")
    return values


def known_fields(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """Arguments for `kind` from JSON, with lists as tuples. UserError for unknown names."""
    names = [field.name for field in fields(kind)]
    values = {name: value for name, value in values.items() if name != "architecture"}
    for name in values:
        if name not in names:
            raise UserError(f"unknown model option {name!r}{did_you_mean(name, names)}")
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}


def changed(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a configuration with changes; of `variant`, by kind."""
    result = {**values, **changes}
    old, new = values.get("variant"), changes.get("variant")
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        result["variant"] = {**old, **new}
    return result


def check_sizes(config: Any, positive: Sequence[str], not_negative: Sequence[str]) -> None:
    """Normalises image_size. UserError names a field that is no whole number in its range."""
    object.__setattr__(config, "image_size", as_size(config.image_size))
    for name in (*positive, *not_negative):
        value, least = getattr(config, name), 1 if name in positive else 0
        if not _is_whole(value) or value < least:
            raise UserError(f"{name}={value!r} must be a whole number of at least {least}")


def check_kinds(config: Any) -> None:
    """UserError for a value that is no choice, truth value or number where one must be."""
    for name, hint in get_type_hints(type(config)).items():
        value = getattr(config, name)
        if get_origin(hint) is Literal and value not in get_args(hint):
            choices = ", ".join(map(repr, get_args(hint)))
            if name == "pos_embed":
                choices += "; others are variants: variant={'positions': 'relative'}"
            raise UserError(f"{name}={shorten(repr(value))} is not one of {choices}")
        if hint is bool and not isinstance(value, bool):
            raise UserError(f"{name}={value!r} must be true or false")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if float in (hint, *get_args(hint)) and not (
            (is_number and abs(value) < 1e38) or (value is None and hint is not float)
        ):
            raise UserError(f"{name}={value!r} must be a finite number")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)  # True is also an int
