"""Command lines in words of other packages -> ours, by words.csv."""

import csv
import os
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from vit.errors import UserError
from vit.inference.runtimes import is_export
from vit.recipes import list_recipes
from vit.runs.records import is_run
from vit.runs.short_names import FLAGS, SHORT, WITHOUT_DOT
from vit.tables import rows

MODEL = "<RUN>"
"""Stands for a model in our words, which shows as RUN unless one is named."""
OF_FIT = ("fit", "validate", "test", "predict", "selftrain", "folds", "tune")
"""Commands with the options of `vit fit`, in which - and _ are the same."""
OURS = {*SHORT, *WITHOUT_DOT} - {*FLAGS}
"""Options of ours without a dot, which have a value."""
VIT = "vit"
"""Stands for the command in rows of words that are commands."""


class Word(NamedTuple):
    """Row of words.csv."""

    package: str
    theirs: str
    """As the page shows it, in Markdown."""
    commands: str
    """Commands in which it is understood; none of a row for the page alone."""
    word: str
    """Names of the option, with _ for - and | between them; a command may have two words."""
    value: str
    """Pattern of its values; "" is any."""
    ours: str
    """What to type, with {} for the value, or [{}] for several, and @ for the word itself; ^ stands
    before a first word. Empty: the word is left out."""
    example: str
    same: str
    """yes: the word with this value does here what it does there, and works as typed."""
    note: str

    @property
    def takes_value(self) -> bool:
        return "{}" in self.ours or bool(self.value)

    @property
    def several(self) -> bool:
        """Several words may be its value."""
        return "[{}]" in self.ours or "[ ,]" in self.value

    @property
    def plain_note(self) -> str:
        """The note without Markdown."""
        return re.sub(r"`| \(\[.*?\)\)", "", self.note)

    def meaning(self, value: str) -> str:
        """Our words for it with a value, as text."""
        return shlex.join("RUN" if word == MODEL else word for word in self.typed(value))

    def typed(self, value: str) -> list[str]:
        """Our words for it with a value."""
        parts = [MODEL if part == "RUN" else part for part in shlex.split(self.ours)]
        return [part.replace("{}", value) for part in parts]


@cache
def words() -> list[Word]:
    """All rows, in order."""
    with Path(__file__).with_name("words.csv").open(encoding="utf-8", newline="") as file:
        return [Word(**row) for row in csv.DictReader(file)]


@cache
def rows_of(command: str) -> dict[str, list[Word]]:
    """Word -> its rows in a command."""
    table: dict[str, list[Word]] = {}
    for row in words():
        for name in row.word.split("|") if command in row.commands.split() else ():
            table.setdefault(name, []).append(row._replace(ours=row.ours.replace("@", name)))
    return table


def in_our_words(typed: list[str]) -> list[str] | None:
    """The same command in our words; None if it has no words of others.

    Raises UserError with the line to type, if a word means something else there or has no equal
    here.
    """
    line = Line(typed)
    rest = line.command(typed)
    while rest:
        line.take(rest)
    named = line.first or line.has_run
    line.words = [word for word in line.words if word != MODEL or not named]
    ours = [*line.first, *line.words]
    options = [word.partition("=")[0].replace("-", "_") for word in ours if word.startswith("--")]
    for option, names in line.set_by.items():
        if options.count(option.replace("-", "_")) > 1:
            both = dict.fromkeys([*names, option])
            raise UserError(f"{' and '.join([*both][:2])} are one option; give one")
    if line.first and line.words and _is_model(line.words[0]):
        raise UserError(f"{line.first[0]} and {line.words[0]} are two models; give one")
    if line.notes:
        text = "; ".join(dict.fromkeys(line.notes))
        command = [VIT, *line.name, *("RUN" if word == MODEL else word for word in ours)]
        raise UserError(f"{text}; type: {shlex.join(command)}")
    return [*line.name, *ours] if line.changed and [*line.name, *ours] != typed else None


class Line:
    """A command line in our words, as far as it is read."""

    def __init__(self, typed: list[str]) -> None:
        self.has_model = any(word.partition("=")[0] == "--model" for word in typed)
        # Else a pattern that a shell has expanded to several files would mean the last of them.
        self.has_data = any(
            re.match(r"(--)?data([-_.](root|dir|path|dataset))?(=|$)", w) for w in typed
        )
        self.has_run = False
        self.name: list[str] = []
        """The command."""
        self.first: list[str] = []
        self.words: list[str] = []
        self.notes: list[str] = []
        """What is not the same here."""
        self.changed = False
        self.set_by: dict[str, list[str]] = {}
        """Option of ours -> the words of theirs that stand for it."""

    def command(self, typed: list[str]) -> list[str]:
        """Reads the command, of one word or two; returns the rest."""
        for count in (2, 1):
            name, rest = " ".join(typed[:count]), typed[count:]
            named = [row for row in rows_of(VIT).get(name, ()) if rest or not row.takes_value]
            if named and not (count == 2 and os.path.exists(typed[1])):
                value = rest.pop(0) if named[0].takes_value else ""
                self._translate(named[:1], name, value, self.name)
                return rest
        self.name = typed[:1]
        return typed[1:]

    def take(self, rest: list[str]) -> None:
        """Reads the next word, with its value."""
        typed = rest.pop(0)
        if typed == "--":  # options for another command
            self.words += [typed, *rest]
            return rest.clear()
        name, equals, value = typed.partition("=")
        word, is_option = name.lstrip("-").replace("-", "_"), name.startswith("-")
        is_word = is_option or (bool(equals) and not os.path.exists(typed))
        named = rows_of(self.name[0]).get(word, []) if is_word else []
        if named and not equals and any(row.takes_value for row in named):
            value = " ".join(_values(rest, several=any(row.several for row in named)))
        chosen = _meant(named, value)
        without = _meant(named, "")
        is_flag = bool(chosen and without) and "{}" not in chosen[0].ours
        if value and not equals and (not chosen or (is_flag and os.path.exists(value))):
            rest[:0] = value.split(" ")  # the value of our option, or images behind a flag
            value, chosen = "", [] if word in OURS else without
        if chosen:
            self._translate(chosen, name, value, self.words)
        elif typed == "--pretrained" and self.has_model and not _has_value(rest):
            self.changed = True  # timm's flag beside --model NAME
        elif is_option and not equals:
            if self.name[0] not in OF_FIT and typed.startswith("--") and "_" in typed:
                typed, self.changed = typed.replace("_", "-"), True
            self.words += [typed, *(_values(rest) if word not in FLAGS else ())]
        elif is_word and not is_option and self.name[0] not in ("fit", "predict"):
            self.words.append(f"--{word.replace('_', '-')}={value}")
            self.changed = True
        elif is_option or self.name[0] not in ("fit", "predict"):
            self.words.append(typed)
        else:
            self._positional(typed, word, value if equals else None)

    def _translate(self, meant: list[Word], name: str, value: str, where: list[str]) -> None:
        """Adds our words for one of theirs; a note unless it is the same in all rows."""
        if "[{}]" in meant[0].ours:
            value = re.sub(r"[ ,]+", ",", value.strip("[]()"))
        if not all(row.same for row in meant):
            meanings = [*filter(None, dict.fromkeys(row.meaning(value) for row in meant))]
            answer = f"{name} is {' or '.join(meanings)} here" if meanings else f"leave {name} out"
            notes = [f"{row.package}: {row.plain_note}" for row in meant if len(meant) > 1]
            notes = notes or [meant[0].plain_note]
            more = f" ({'; '.join(notes)})" if any(notes) else ""
            self.notes.append(f"{answer}{more}")
        self.changed, ours = True, meant[0].typed(value)
        for option in (word for word in ours if word.startswith("--")):
            self.set_by.setdefault(option, []).append(name)
        if ours and ours[0] in rows("commands") and where is self.words:
            self.name = [ours.pop(0)]
        for word in ours:
            (self.first if word.startswith("^") else where).append(word.removeprefix("^"))

    def _positional(self, typed: str, name: str, value: str | None) -> None:
        """A word of `vit fit` that is no option: a value of ours, the images, or a recipe. Of `vit
        predict` the second one is for `vit classify`."""
        if self.name[0] == "predict":
            if self.has_run and os.path.exists(typed):
                self.name = ["classify"]
                self.notes.append("predict takes a run alone, and writes the answers to its data")
            added, self.has_run = [typed], True
        elif value is not None and name in {*SHORT, "run_dir", "patience"}:
            added = [f"--{name}", value]
        elif value is None and typed in list_recipes() and not os.path.exists(typed):
            added = ["-c", typed]
        elif value is None and typed.endswith((".yaml", ".yml")) and os.path.exists(typed):
            added = ["-c", typed]
        elif value is None and not self.has_data and os.path.exists(os.path.expanduser(typed)):
            added, self.has_data = ["--data", typed], True
        else:
            added = [typed]
        self.changed |= added != [typed]
        self.words += added


def _is_model(word: str) -> bool:
    """True for a run, a model directory or a file of weights."""
    path = Path(word).expanduser()
    is_file = is_export(path) or path.suffix in (".safetensors", ".ckpt", ".pt", ".pth", ".npz")
    return is_file or is_run(path) or (path / "config.json").is_file()


def _meant(named: list[Word], value: str) -> list[Word]:
    """The rows for a value; those with a pattern before those for any value."""
    fits = (row.value or (".+" if "{}" in row.ours else ".*") for row in named)
    chosen = [row for row, pattern in zip(named, fits, strict=True) if re.fullmatch(pattern, value)]
    return [row for row in chosen if row.value] or chosen


def _values(rest: list[str], *, several: bool = False) -> Iterator[str]:
    """Takes the value of an option from the words behind it, or all of several."""
    while _has_value(rest):
        yield rest.pop(0)
        if not several:
            return


def _has_value(rest: list[str]) -> bool:
    return bool(rest) and not re.match(r"--?[A-Za-z]|--$", rest[0])
