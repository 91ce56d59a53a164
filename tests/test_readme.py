"""README: its map matches the tree, its commands exist."""

import re
from pathlib import Path

from tests.test_rules import ONE_PAGE, PACKAGE

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_map_is_the_tree() -> None:
    [block] = [block for block in README.split("```") if block.startswith("\nvit/")]
    folders = re.findall(r"^(\w+)/", block, re.MULTILINE)
    assert len(folders) == 5 and all((ROOT / folder).is_dir() for folder in folders)
    rooms = {path.relative_to(PACKAGE).parts[0] for path in PACKAGE.glob("*/**/*.py")}
    assert set(re.findall(r"^  (\w+)/", block, re.MULTILINE)) == rooms
    modules = re.search(r"\*\.py +([\w\s]+):", block)
    assert modules is not None and set(modules[1].split()) == ONE_PAGE


def test_every_recipe_in_it_exists() -> None:
    from vit.recipes import list_recipes

    used = set(re.findall(r"vit fit -c ([a-z0-9_/]+)(?![\w./])", README))
    assert used
    assert used <= set(list_recipes())


def test_the_tested_commands_are_there_word_for_word() -> None:
    assert "pip install -e . && vit fit -c quickstart" in README
    assert "pip install -e '.[test]' && pytest" in README
