"""Readers of recipes, configurations and typed options: PyYAML's, with keys as they are typed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from vit.errors import UserError, check_types

TEXT, MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """Plain values; keys are text, and one that is given twice is an error."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        names: set[str] = set()
        for key, _ in node.value:
            name = str(key.value)
            if name in names and name != "<<":
                problem = f"{name!r} is given twice; keep one of them"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            names.add(name)
            if isinstance(key, yaml.ScalarNode) and key.tag != MERGE:
                key.tag = TEXT
        return super().construct_mapping(node, deep)


def read_options(path: Path) -> dict[str, Any]:
    """Content of a recipe or config.yaml. UserError if it is not a mapping of options."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as YAML: {error}") from error
    options = load_yaml(text, str(path))
    if not isinstance(options, dict):
        raise UserError(f"{path} has no options, such as 'trainer: {{max_epochs: 9}}'")
    sections = ("data", "model", "trainer")  # text is a file of its own
    check_types(path, options, **dict.fromkeys(sections, dict | str | None))
    if isinstance(model := options.get("model"), dict):
        check_types(f"{path}: model", model, architecture=dict | None)
    return options


def read_recipe(path: Path) -> dict[str, Any]:
    """Options of a recipe, without the sections in files of their own, which the parser reads."""
    options, sections = read_options(path), ("data", "model", "trainer")
    return {k: v for k, v in options.items() if not (k in sections and isinstance(v, str))}


def load_yaml(text: str, source: str) -> Any:
    """Value of a text. UserError names `source` and the line of the error."""
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # such as the date 2024-13-45
        marked = isinstance(error, yaml.MarkedYAMLError)
        line = f", line {error.problem_mark.line + 1}" if marked and error.problem_mark else ""
        problem = error.problem if marked else error
        raise UserError(f"{source}{line}: not valid YAML: {problem}") from error


def quoted_keys(text: str) -> str:
    """The YAML text with plain keys in quotes, so that any reader takes them as they are typed:
    0, 1.50, null, no and 2024-01-01 are names of classes, too. YAMLError for other text."""
    keys = [key for key in _keys(yaml.compose(text, Loader=yaml.SafeLoader)) if key.tag != MERGE]
    # 1e-3 is text to PyYAML, and a number to other readers.
    numbers = tuple("+-.0123456789")
    other = {
        key.start_mark.index: key
        for key in keys
        if key.tag != TEXT or key.value.startswith(numbers)
    }
    for start, key in sorted(other.items(), reverse=True):
        if text[start : key.end_mark.index] == key.value:
            text = f"{text[:start]}'{key.value}'{text[key.end_mark.index :]}"
    return text


def _keys(node: Any) -> Iterator[yaml.Node]:
    """Keys of all mappings at and below a node."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key
            yield from _keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            yield from _keys(each)
