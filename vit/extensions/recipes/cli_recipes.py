"""`vit recipes`: the list of shipped recipes, or the text of one or of a launch file."""

import json
from pathlib import Path

from vit.cli.arguments import OneLineParser
from vit.recipes import find_recipe, list_recipes, recipe_folder


def title(path: Path) -> str:
    """The first line of the recipe's header."""
    return path.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("#").strip()


def run(args: list[str]) -> int:
    """Lists the recipes, or prints one."""
    parser = OneLineParser(
        prog="vit recipes", description="Lists the shipped recipes, or prints one of them."
    )
    parser.add_argument("name", nargs="?", help="the recipe to print, as a start for your own")
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    options = parser.parse_args(args)
    if options.name:
        file = recipe_folder() / options.name  # of launch/
        path = file if file.is_file() else find_recipe(options.name)
        print(path.read_text(encoding="utf-8"), end="")
        return 0
    rows = [{"name": name, "title": title(path)} for name, path in list_recipes().items()]
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        width = max(len(row["name"]) for row in rows)
        print("\n".join(f"{row['name']:{width}}  {row['title']}" for row in rows))
        print("\nvit fit -c NAME trains with a recipe; vit recipes NAME prints it.")
        print("For several machines: vit recipes launch/torchrun.sh, launch/fit.sbatch (SLURM),")
        print("launch/job.yml (Kubernetes).")
    return 0
