"""Every numeric option has a range, whoever adds it."""

import math
from dataclasses import MISSING, fields
from typing import Any, get_args, get_type_hints

import pytest
from jsonargparse import Namespace

from tests.training.recipe_reading import builder
from vit.cli.lightning_cli import TASKS
from vit.cli.option_ranges import CHOICES, PARTS, RANGES, check_options, dataclass_of, numbers
from vit.data.module import ImageData
from vit.data.preprocess import InputFormat
from vit.errors import UserError


def takes_numbers(hint: Any) -> bool:
    """Whether a type is a number, or holds one somewhere."""
    if hint in (int, float):
        return True
    return any(takes_numbers(argument) for argument in get_args(hint))


def numeric_options() -> list[str]:
    """The parser's own options that take a number; not those inside dataclasses of this package."""
    inside = [f"data.{name}." for name in ("augment", "inputs", "sampling", "splits", "loading")]
    return [
        action.dest
        for action in builder().parser._actions
        if takes_numbers(getattr(action, "_typehint", None))
        and not action.dest.startswith(tuple(inside))
    ]


def test_every_number_of_the_parser_has_a_range() -> None:
    options = numeric_options()
    assert "trainer.max_epochs" in options and "seed_everything" in options
    assert [name for name in options if name not in {*RANGES, *CHOICES}] == []


def test_every_range_is_of_an_option() -> None:
    known = {*numeric_options(), "model.fraction", "trainer.max_time"}
    assert {*RANGES} - known == set()
    assert {*PARTS} <= {*RANGES}


def groups() -> list[type]:
    """The dataclasses that the data and both tasks take as options, those inside them included."""
    waiting: list[Any] = [ImageData, *TASKS.values()]
    kinds: list[type] = []
    for owner in waiting:
        for hint in get_type_hints(owner.__init__).values():
            kind = dataclass_of(hint)
            if kind is not None and kind not in kinds and kind.__name__ != "Labels":
                kinds.append(kind)
                waiting.append(kind)
    return kinds


FLOATS = [
    (kind, field.name)
    for kind in groups()
    for field in fields(kind)  # pyright: ignore[reportArgumentType]
    if float in (hint := get_type_hints(kind)[field.name], *get_args(hint))
]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("kind", "name"), FLOATS)
def test_a_constructor_takes_no_number_without_end(kind: Any, name: str, value: float) -> None:
    several = {"crop_area": (0.5, value), "drops": (0.5, value), "mean": (value,) * 3}
    arguments = {name: several.get(name, value)}
    if name == "drops":
        arguments["decay"] = "steps"
    with pytest.raises(UserError, match=name):
        built = kind(**arguments)
        if isinstance(built, InputFormat):  # which leaves the check to what it stands for
            built.preprocess((8, 8))


def test_the_groups_of_options_are_all_seen() -> None:
    names = {kind.__name__ for kind in groups()}
    assert names >= {"TrainTransform", "InputFormat", "Sampling", "Schedule", "Loss", "Mixing"}
    assert "Distillation" in names
    assert all(
        field.default is not MISSING
        for kind in groups()
        for field in fields(kind)  # pyright: ignore[reportArgumentType]
    )


INTEGERS = [
    (kind, field.name)
    for kind in groups()
    for field in fields(kind)  # pyright: ignore[reportArgumentType]
    if int in (hint := get_type_hints(kind)[field.name], *get_args(hint))
]


@pytest.mark.parametrize(("kind", "name"), INTEGERS)
def test_a_constructor_takes_no_negative_count(kind: Any, name: str) -> None:
    with pytest.raises(UserError, match=name):
        kind(**{name: -1})


def test_numbers_are_found_at_any_depth() -> None:
    config = Namespace(a=1, b=Namespace(c=[2.5, {"d": True, "e": 3}]), f=None)
    assert list(numbers(config)) == [("a", 1), ("b.c", 2.5), ("b.c.e", 3)]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_without_end_is_named_as_it_is_typed(value: float) -> None:
    config = Namespace(model=Namespace(optimizer=Namespace(init_args=Namespace(lr=value))))
    with pytest.raises(UserError, match=rf"^model\.optimizer\.lr={value} is not a finite number"):
        check_options(config)
