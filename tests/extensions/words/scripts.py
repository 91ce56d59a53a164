"""The scripts of `vit completion`, made by shtab from the parsers of all commands.

python -m tests.extensions.words.scripts [--check]
"""

import argparse
import dataclasses
import re
import typing
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import jsonargparse
import shtab

from vit.cli import fit
from vit.extensions.words.cli_completion import SHELLS, script
from vit.runs.options import parser_of as parser_of_task
from vit.runs.options import task_of
from vit.runs.short_names import SHORT, WITHOUT_DOT
from vit.tables import lines, resolve, rows
from vit.writing import write_text

NAMES = {
    "run": "runs",
    "model": "runs weights",
    "pretrained": "weights runs",
    "models": "models",
    "recipe": "recipes",
    "none": "",
}
"""Ending of a shell's function -> kinds of names that it completes, beside files."""
BASH = """\
_vit_{0}_file() {{
  local name
  while IFS= read -r name; do
    [[ $name == "$1"* ]] && printf '%s\\n' "$name"
  done < <(vit completion {1} 2>/dev/null)
  compgen -f -- "$1"
}}
"""
"""No `compgen -W`: it executes a name such as $(command), and splits one with a blank."""
ZSH = """\
_vit_{0}() {{
  compadd -- ${{(f)"$(vit completion {1} 2>/dev/null)"}}
  _files
}}
"""
KINDS = {
    **dict.fromkeys(("run", "other", "runs", "run_dir", "resume", "ckpt_path"), "run"),
    **dict.fromkeys(("model", "teacher", "relative_to"), "model"),
    **dict.fromkeys(("pretrained", "model.pretrained", "names"), "pretrained"),
    **dict.fromkeys(("models", "arch", "model.name"), "models"),
    **dict.fromkeys(("recipe", "config"), "recipe"),
}
"""Name of an argument -> ending of the function."""
FILES = re.compile(r"DIR|FILE|FOLDER|ROOT|SOURCE|SHARDS|OUT|DST|X")
"""In the metavar of an argument that is a file or folder."""
PLAIN = ("images", "source", "data", "data.root", "out", "folder", "destination", "val")


def completer(name: str, metavar: str) -> dict[str, Any] | None:
    """What shtab calls for an argument; None for one that is no file and has no names."""
    if (kind := KINDS.get(name)) is None:
        return shtab.FILE if name in PLAIN or FILES.search(metavar) else None
    fish = f"(vit completion {NAMES[kind]}; __fish_complete_path (commandline -ct))"
    preamble = {"bash": BASH.format(kind, NAMES[kind]), "zsh": ZSH.format(kind, NAMES[kind])}
    functions = {"bash": f"_vit_{kind}_file", "zsh": f"_vit_{kind}", "fish": fish}
    return {**functions, "preamble": preamble}


class Parser(Exception):
    """A command has made its parser."""


def parser_of(row: str) -> argparse.ArgumentParser:
    """The parser of a command."""

    def stop(parser: argparse.ArgumentParser, *_: object) -> None:
        raise Parser(parser)

    with patch("argparse.ArgumentParser.parse_known_args", stop):
        try:
            resolve(row)(["RUN"])
        except Parser as caught:
            return caught.args[0]
    raise AssertionError(f"{row} has no parser")


def options_of_fit(*, all_of_them: bool) -> argparse.ArgumentParser:
    """The options of `vit fit`; or those of the data and the Trainer alone."""
    parser = argparse.ArgumentParser(add_help=all_of_them)
    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)
    made = parser_of_task(task_of("classification"))
    if all_of_them:
        texts = dict(re.findall(r"^  --([\w-]+) .*?  +(\w.*)", fit.HELP, re.MULTILINE))
        for name in (*SHORT, *sorted({*WITHOUT_DOT} - {"config", "help", "help_all", *NOT_OF_FIT})):
            text = texts.get(name.replace("_", "-"), texts.get(name, ""))
            is_flag = name in ("json", "print_config")
            action = {"action": "store_true"} if is_flag else {}
            parser.add_argument(f"--{name.replace('_', '-')}", help=text, **action)
        parser.add_argument("-c", "--config", help="a recipe: its name, or a file")
    begins = ("data.", "trainer.", "model.") if all_of_them else ("data.", "trainer.")
    for action in made._actions:
        name, hint, text = action.dest, getattr(action, "_typehint", None), action.help or ""
        if name.startswith(begins) and not text.startswith(("Show the help", "Path to a config")):
            ours = not name.startswith("trainer.")  # not Lightning's texts
            text = re.split(r"(?<=[.:]) |\n", text)[0].replace("%", "%%") if ours else ""
            parser.add_argument(f"--{name}", dest=name, help=text, choices=choices(hint))
            for field in fields(hint):
                parser.add_argument(f"--{name}.{field}")
    return parser


def fields(hint: object) -> list[str]:
    """Fields of the classes in a type; of an optimizer, those that most of torch's have."""
    classes = [kind for kind in typing.get_args(hint) if dataclasses.is_dataclass(kind)]
    common = ["lr", "weight_decay"] if "Optimizer" in str(hint) else []
    return common + [field.name for kind in classes for field in dataclasses.fields(kind)]


NOT_OF_FIT = ("model", "out", "split", "spreadsheet", "trainer", "with", *SHORT.values())


def choices(hint: object) -> list[str] | None:
    """The words of a type that has few: of a Literal, and of a bool."""
    words = {str(word) for part in parts(hint) for word in typing.get_args(part)}
    return sorted(words) or (["true", "false"] if bool in parts(hint) or hint is bool else None)


def parts(hint: object) -> list[object]:
    """The Literals of a type, and its bool."""
    members = typing.get_args(hint) if typing.get_origin(hint) is not typing.Literal else (hint,)
    kinds = (typing.get_origin(member) is typing.Literal for member in members)
    return [m for m, literal in zip(members, kinds, strict=True) if literal or m is bool]


def parser() -> argparse.ArgumentParser:
    """A parser of all commands, with what their arguments are completed by."""
    whole = argparse.ArgumentParser(prog="vit")
    commands = whole.add_subparsers()
    of_data = options_of_fit(all_of_them=False)
    for name, text in lines("commands").items():
        if name == "fit":
            parents = [options_of_fit(all_of_them=True)]
        else:
            more = name in ("validate", "test", "predict")
            parents = [parser_of(rows("commands")[name]), *[of_data] * more]
        options = {"parents": parents, "add_help": False, "description": text}
        made = commands.add_parser(name, help=text, **options)
        for action in arguments(made):
            completion = completer(action.dest, str(action.metavar or ""))
            if completion is not None and action.nargs != 0 and not action.choices:
                action.complete = completion  # type: ignore[attr-defined]
    return whole


def arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of a parser and of those of its words."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for other in action.choices.values():
                yield from arguments(other)
        else:
            yield action


def scripts() -> dict[str, str]:
    """Shell -> its script."""
    whole = parser()
    return {shell: shtab.complete(whole, shell).rstrip("\n") + "\n" for shell in SHELLS}


if __name__ == "__main__":
    for shell, text in scripts().items():
        write_text(script(shell), text)
