"""Reader of recipes and configurations: PyYAML's, in which a repeated key is an error."""

from pathlib import Path
from typing import Any

import yaml

from vit.errors import UserError


class _Loader(yaml.SafeLoader):
    """Plain values; a key that is given twice is an error."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        names: set[str] = set()
        for key, _ in node.value:
            name = str(key.value)
            if name in names and name != "<<":
                problem = f"{name!r} is given twice; keep one of them"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            names.add(name)
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
    for name in ("data", "model", "trainer"):
        if not isinstance(options.get(name) or {}, dict | str):  # str: a file of its own
            raise UserError(f"{path}: {name}: {options[name]!r} holds no options")
    return options


def load_yaml(text: str, source: str) -> Any:
    """Value of a text. UserError names `source` and the line of the error."""
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # such as the date 2024-13-45
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", error)
        raise UserError(f"{source}{line}: not valid YAML: {problem}") from error
