"""`vit recipes`, and where a recipe's name leads."""

import json
from pathlib import Path

import vit
from vit.cli.messages import OneLineParser
from vit.errors import UserError, did_you_mean


def recipe_folder() -> Path:
    """The shipped recipes: inside the installed package, or beside it in a checkout."""
    package = Path(vit.__file__).parent
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def list_recipes() -> dict[str, Path]:
    """Name to file, such as 'imagenet1k/vit_b16'."""
    folder = recipe_folder()
    found = sorted(folder.rglob("*.yaml"))
    return {str(path.relative_to(folder).with_suffix("")): path for path in found}


def find_recipe(name: str) -> Path:
    """A path as it stands, else the shipped recipe of that name. UserError lists the nearest."""
    path = Path(name).expanduser()
    if path.is_file():
        return path
    recipes = list_recipes()
    if name not in recipes:
        hint = did_you_mean(name, recipes) or "; `vit recipes` lists them"
        raise UserError(f"no recipe or file named {name!r}{hint}")
    return recipes[name]


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
