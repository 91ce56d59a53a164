"""Checks of configurations: every field has a value of its type and in its range."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, TypeAlias, TypeGuard, get_args, get_origin, get_type_hints

from vit.errors import UserError, did_you_mean, shorten

JsonObject: TypeAlias = dict[str, Any]
"""An object of a JSON file, such as config.json: field -> plain value."""


def is_object(value: object) -> TypeGuard[JsonObject]:
    """True for an object of a JSON file."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[Sequence[object]]:
    """True for a list of a JSON file, or a tuple."""
    return isinstance(value, list | tuple)


def is_whole(value: object) -> TypeGuard[int]:
    """True for a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)  # True is also an int


def as_size(size: object) -> tuple[int, int]:
    """(height, width) from one side or both. UserError for anything else."""
    height, width = size if is_list(size) and len(size) == 2 else (size, size)
    if not is_whole(height) or not is_whole(width) or min(height, width) < 1:
        raise UserError(f"image_size={size!r} must be one side or (height, width), in pixels")
    return height, width


def as_depths(name: str, depths: object, least: int) -> tuple[int, ...]:
    """Blocks per stage. UserError for fewer stages than `least`, more than 4, or another value."""
    values = list(depths) if is_list(depths) else [depths]
    whole = tuple(value for value in values if is_whole(value) and value > 0)
    if not least <= len(values) <= 4 or len(whole) < len(values):
        raise UserError(f"{name}={values} must be {least} to 4 whole numbers above 0")
    return whole


def known_fields(kind: type, values: Mapping[str, object]) -> JsonObject:
    """Arguments for `kind` from JSON, with lists as tuples. UserError for unknown names."""
    names = [field.name for field in fields(kind)]
    values = {name: value for name, value in values.items() if name != "architecture"}
    for name in values:
        if name not in names:
            raise UserError(f"unknown model option {name!r}{did_you_mean(name, names)}")
    return {name: tuple(v) if is_list(v) else v for name, v in values.items()}


def changed(values: JsonObject, changes: Mapping[str, object]) -> JsonObject:
    """Fields of a configuration with changes; of `variant`, by kind."""
    result = {**values, **changes}
    old, new = values.get("variant"), changes.get("variant")
    if is_object(old) and is_object(new):
        result["variant"] = {**old, **new}
    return result


def check_whole(config: object, names: Sequence[str], least: int) -> None:
    """UserError for a field that is no whole number of at least `least`."""
    for name in names:
        value = getattr(config, name)
        if not is_whole(value) or value < least:
            raise UserError(f"{name}={value!r} must be a whole number of at least {least}")


def check_kinds(config: object) -> None:
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
