"""`vit recipes`: the list of shipped recipes, or the text of one."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vit.cli.messages import OneLineParser
from vit.errors import UserError, did_you_mean, shorten
from vit.recipes import find_recipe, list_recipes
from vit.yaml_reader import read_options

SECTIONS = {"trainer": "max_epochs: 9", "data": "batch_size: 64", "model": "name: vit_ti16"}
"""Sections of a recipe that hold options by name, with an example of one."""


def config_arguments(args: list[str]) -> Iterator[tuple[int, str]]:
    """Position in `args` and value of each -c or --config."""
    for i, arg in enumerate(args):
        if arg in ("-c", "--config") and i + 1 < len(args):
            yield i + 1, args[i + 1]
        elif arg.startswith("--config="):
            yield i, arg.removeprefix("--config=")


def resolve_recipes(args: list[str]) -> list[str]:
    """The arguments with recipe names behind -c replaced by their paths.

    Raises UserError, with file and line, for a recipe that is not YAML with options by section.
    """
    resolved = list(args)
    for i, name in config_arguments(args):
        path = find_recipe(name)
        check_sections(read_options(path), str(path))
        resolved[i] = str(path) if args[i] == name else f"--config={path}"
    return resolved


def check_sections(options: Mapping[str, Any], source: str) -> None:
    """UserError where a section of a recipe is neither a mapping nor the name of a file."""
    for name in SECTIONS:
        section = options.get(name)
        if section is not None and not isinstance(section, dict | str):
            raise UserError(
                f"{source}: {name}: {shorten(section)} holds no options; expected lines such as "
                f"'{name}: {{{SECTIONS[name]}}}'"
            )


def task_of(args: list[str], tasks: Iterable[str]) -> str:
    """The task that the recipes and options name; it decides which options there are.

    `args` as `resolve_recipes` returns them. UserError for a task that is not among `tasks`.
    """
    task: Any = "classification"
    configs = dict(config_arguments(args))
    for i, arg in enumerate(args):
        option, _, value = arg.partition("=")
        if option == "--task":
            task = value or (args[i + 1] if i + 1 < len(args) else "")
        elif i in configs:
            task = read_options(Path(configs[i])).get("task", task)
    if not isinstance(task, str) or task not in tasks:
        hint = did_you_mean(str(task), tasks) or f"; choose {' or '.join(tasks)}"
        raise UserError(f"unknown task {shorten(task)!r}{hint}")
    return task


def recipe_options(args: list[str]) -> list[dict[str, Any]]:
    """The content of each recipe in the arguments, which are as `resolve_recipes` returns them."""
    return [read_options(Path(config)) for _, config in config_arguments(args)]


def title(path: Path) -> str:
    """The first line of the recipe's header."""
    return path.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("#").strip()


def run(args: list[str]) -> int:
    """Lists the recipes, or prints one."""
    parser = OneLineParser(
        prog="vit recipes", description="Lists the shipped recipes; with a name, prints that one."
    )
    parser.add_argument("name", nargs="?", help="a recipe to print, to start your own from")
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    options = parser.parse_args(args)
    if options.name:
        print(find_recipe(options.name).read_text(encoding="utf-8"), end="")
        return 0
    rows = [{"name": name, "title": title(path)} for name, path in list_recipes().items()]
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        width = max(len(row["name"]) for row in rows)
        print("\n".join(f"{row['name']:{width}}  {row['title']}" for row in rows))
        print("\nvit fit -c NAME trains by one; vit recipes NAME prints it.")
    return 0
