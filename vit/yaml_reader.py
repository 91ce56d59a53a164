"""Reader for all YAML: recipes, configurations of runs, and values on the command line.

A few lines of YAML can expand to terabytes (aliases of aliases) or exhaust the interpreter's stack
(deep nesting), and of a repeated key PyYAML silently uses the later one. The text is therefore
first scanned as a stream of events, in constant memory.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from vit.errors import UserError
from vit.reading import regular_file

MAX_DEPTH = 40
"""Levels of nesting; the shipped recipes have at most six."""
MAX_NODES = 100_000
"""Values after all aliases are expanded; the shipped recipes have fewer than a hundred."""
MAX_BYTES = 2**24
"""Size of a file."""

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass
class _Collection:
    """A mapping or sequence that is still open."""

    is_mapping: bool
    anchor: str | None
    nodes: int = 1
    children: int = 0
    keys: dict[str, int] = field(default_factory=dict)
    """Scalar keys, with their lines."""


def read_yaml(path: Path) -> Any:
    """Content of a file. UserError with file and line if it is not plain, bounded YAML."""
    regular_file(path, "a recipe")
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"{path} is larger than {MAX_BYTES >> 20} MiB: it is no recipe")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as YAML: {_one_line(error)}") from error
    return load_yaml(text, str(path))


def read_options(path: Path) -> dict[str, Any]:
    """Content of a recipe or config.yaml. UserError if it is not options by name."""
    options = read_yaml(path)
    if not isinstance(options, dict):
        raise UserError(
            f"{path} has no options; expected lines such as 'trainer: {{max_epochs: 9}}'"
        )
    return options


def load_yaml(text: str, source: str) -> Any:
    """Value of a text. UserError names `source` and the line of the error."""
    try:
        check_yaml(text, source)
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise UserError(f"{source}{line}: not valid YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # such as the date 2024-13-45
        if isinstance(error, UserError):
            raise
        raise UserError(f"{source} cannot be read as YAML: {_one_line(error)}") from error


def check_yaml(text: str, source: str) -> None:
    """Raises UserError for repeated keys, deep nesting, and more values than any recipe has.

    Raises yaml.YAMLError for invalid YAML.
    """
    sizes: dict[str, int] = {}
    names: dict[str, str] = {}  # anchored scalars, which may be keys
    stack: list[_Collection] = []
    for event in yaml.parse(text, Loader=_Loader):
        where = f"{source}, line {event.start_mark.line + 1}"
        if isinstance(event, yaml.CollectionStartEvent):
            if len(stack) == MAX_DEPTH:
                raise UserError(f"{where}: nested more than {MAX_DEPTH} levels deep")
            is_mapping = isinstance(event, yaml.MappingStartEvent)
            stack.append(_Collection(is_mapping, event.anchor))
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            done = stack.pop()
            nodes, anchor = done.nodes, done.anchor
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise UserError(f"{where}: *{event.anchor} stands for nothing that is complete")
            nodes, anchor = sizes[event.anchor], None
            if stack and event.anchor in names:
                _check_key(stack[-1], names[event.anchor], event.start_mark.line + 1, where)
        elif isinstance(event, yaml.ScalarEvent):
            nodes, anchor = 1, event.anchor
            if anchor is not None:
                names[anchor] = event.value
            if stack:
                _check_key(stack[-1], event.value, event.start_mark.line + 1, where)
        else:
            continue
        if anchor is not None:
            sizes[anchor] = nodes
        if stack:
            stack[-1].nodes += nodes
            stack[-1].children += 1
            nodes = stack[-1].nodes
        if nodes > MAX_NODES:
            raise UserError(f"{where}: stands for more than {MAX_NODES:,} values")


def _check_key(parent: _Collection, key: str, line: int, where: str) -> None:
    """Raises UserError if the mapping already has `key`; ignores values."""
    if not parent.is_mapping or parent.children % 2:
        return
    if key in parent.keys and key != "<<":
        raise UserError(
            f"{where}: {key!r} is given twice, first in line {parent.keys[key]}; keep one of them"
        )
    parent.keys[key] = line


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
