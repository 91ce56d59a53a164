"""The shipped recipes, and YAML of recipes, configurations and options: keys and dates stay text,
1e-3 is a number."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

import vit
from vit.errors import UserError, check_types, did_you_mean

DEFAULT_RECIPE = "finetune"
TEXT, MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"


def recipe_folder() -> Path:
    """The folder of shipped recipes: in the installed package, or next to it in a checkout."""
    package = Path(vit.__file__).parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def list_recipes() -> dict[str, Path]:
    """Name, such as 'imagenet1k/vit_b16', -> file of each recipe."""
    folder = recipe_folder()
    paths = sorted(folder.rglob("*.yaml"))
    return {str(path.relative_to(folder).with_suffix("")): path for path in paths}


def find_recipe(name: str) -> Path:
    """The file at a path, or the shipped recipe of that name. UserError if there is neither."""
    path = Path(name).expanduser()
    if path.is_file():
        return path
    recipes = list_recipes()
    if name not in recipes:
        hint = did_you_mean(name, recipes) or "; `vit recipes` lists them"
        raise UserError(f"no recipe or file named {name!r}{hint}")
    return recipes[name]


class _Loader(yaml.SafeLoader):
    """Loader of plain values, whose keys are text; a duplicate key is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
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


_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_yaml_str)
_NUMBER = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+0123456789"))


def read_options(path: Path) -> dict[str, Any]:
    """Reads a recipe or config.yaml. UserError if it is not a mapping of options."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as YAML: {error}") from error
    options = load_yaml(text, str(path))
    if not isinstance(options, dict):
        raise UserError(f"{path} has no options, such as 'trainer: {{max_epochs: 9}}'")
    check_types(path, options, **dict.fromkeys(("data", "model", "trainer"), dict | None))
    check_types(f"{path}: model", options.get("model") or {}, architecture=dict | None)
    return options


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (dotted name, value) of every option in nested mappings."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def load_yaml(text: str, source: str) -> Any:
    """The value of a text. UserError names `source` and the line."""
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # such as the date 2024-13-45
        marked = isinstance(error, yaml.MarkedYAMLError)
        line = f", line {error.problem_mark.line + 1}" if marked and error.problem_mark else ""
        problem = error.problem if marked else error
        raise UserError(f"{source}{line}: not valid YAML: {problem}") from error
