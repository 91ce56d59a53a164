"""The shipped recipes, and the file behind a recipe's name."""

from pathlib import Path

import vit
from vit.errors import UserError, did_you_mean

DEFAULT_RECIPE = "finetune"


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
