"""Rows of licences, in `inherited` of a model and in `extra` of its config.json, which go into all
that is made of it."""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from vit.console import note
from vit.errors import MESSAGE, UserError, printable, shorten
from vit.extensions.formats.published import Published, warned
from vit.extensions.licences.page import UNSAID, WEIGHTS, Row, as_row, of_page
from vit.models.fields import JsonObject, is_list, is_object
from vit.models.zoo import Model
from vit.weights.names import NamedWeights
from vit.weights.native import Native
from vit.weights.weight_file import WeightFile

KEY = "licences"
"""Field of the rows."""
TEACHER = "teacher's "
"""Beginning of the parts that a model has learned from."""
_MOST = 1000
"""Rows of a description."""


def inherited(file: WeightFile, row: NamedWeights | None, recorded: object) -> JsonObject:
    """Row of the table `inherited`: the licences of a file, each printed once by a process.

    Those that its description has recorded, that of a published name, and that on the page beside
    it; UNSAID for another project's file whose page has none. UserError for a description of
    another form.
    """
    rows = _checked(recorded or [], file.path)
    if isinstance(row, Published):
        rows = joined(rows, [as_row(WEIGHTS, row.name, row.licence, row.licence_page)])
    stated = of_page(file.path.parent, WEIGHTS)
    if rows or Native().matches(file):
        stated = [each for each in stated if each["licence"] != UNSAID]
    say_once(rows := joined(rows, stated))
    return {KEY: rows} if rows else {}


def inherit(model: Model, made_of: Mapping[str, Any], part: str = "") -> None:
    """Adds the licences in `inherited` of what a model is made of; `part` is TEACHER or nothing."""
    ours: Any = model.inherited.get(KEY, [])
    others = made_of.get(KEY, [])
    others = ({**row, "part": part + row["part"].removeprefix(part)} for row in others)
    if rows := joined(ours, others):
        model.inherited = {**model.inherited, KEY: rows}


def joined(rows: Iterable[Row], others: Iterable[Row]) -> list[Row]:
    """The rows of both, each once."""
    both: list[Row] = []
    for row in (*rows, *others):
        both += [] if row in both else [row]
    return both


def say_once(rows: Iterable[Row]) -> None:
    """Prints a line for each row that this process has not printed yet."""
    for row in rows:
        words = [warned(row["licence"]), *filter(None, [row.get("link")])]
        _note_once(f"licence of the {row['part']} {row['source']}: {', '.join(words)}")


@cache
def _note_once(text: str) -> None:
    note(printable(shorten(text, MESSAGE)))


def _checked(values: object, path: Path) -> list[Row]:
    """The rows of a description. UserError for another value."""
    rows: Any = values
    if is_list(values) and len(values) <= _MOST and all(map(_is_row, values)):
        return [*rows]
    form = f"at most {_MOST:,} rows of part, source and licence"
    raise UserError(f"{path}: {KEY}={shorten(values)} are not {form}")


def _is_row(value: object) -> bool:
    if not is_object(value) or not {"part", "source", "licence"} <= value.keys():
        return False
    return all(isinstance(text, str) for text in value.values())
