"""A process in which extensions are blocked, each in turn and all at once; prints what happened.

    python -m tests.blocked JSON

JSON: {"whole": names that are blocked at once, "words": {name: [words of a command]}}. The folder
has photos/, an architecture in recipe.yaml, and a model in model/.
"""

import io
import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from vit.cli.main import main
from vit.tables import TABLES


def extension_of(module: str) -> str:
    """The extension of a dotted name, or ""."""
    return module.split(".")[2] if module.startswith("vit.extensions.") else ""


class Blocked(MetaPathFinder):
    """Finds no module of the extensions `names`."""

    names: frozenset[str] = frozenset()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        if extension_of(fullname) in self.names:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)

    def block(self, names: Iterable[str]) -> None:
        """Blocks these alone, and forgets what of them was imported."""
        self.names = frozenset(names)
        for module in [name for name in sys.modules if extension_of(name) in self.names]:
            del sys.modules[module]


def run(*words: str) -> dict[str, Any]:
    """Status, output and errors of a command, and whether torch is imported after it."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        try:
            status = main([*words])
        except SystemExit as stop:
            status = stop.code
    heavy = "torch" in sys.modules
    return {"status": status, "out": out.getvalue(), "err": err.getvalue(), "torch": heavy}


def without_extensions() -> dict[str, Any]:
    """A fit with random weights, its resume, `vit test` and `vit.load`, without the extensions."""
    fit = ("fit", "-c", "recipe.yaml", "--data", "photos", "--run_dir", "run", "--steps")
    done = {"fit": run(*fit, "2"), "resume": run(*fit, "3"), "test": run("test", "run", "--json")}
    import vit

    [answer] = vit.load("run").predict(next(Path("photos").rglob("*.jpg")), top=1)
    return done | {"answer": answer.classes[0]}


def every(names: list[str], words: dict[str, list[list[str]]]) -> dict[str, Any]:
    """Commands of each extension, what the core does without `names`, and words of each."""
    blocked, commands = Blocked(), {}
    sys.meta_path.insert(0, blocked)
    for command, row in TABLES["commands"].items():
        if name := extension_of(row):
            blocked.block([name])
            commands[command] = run(command)
    blocked.block(names)
    core = without_extensions()  # before the core is imported with the others
    refused: dict[str, Any] = {}
    for name, commands_of in words.items():
        blocked.block([name])
        for line in commands_of:
            refused[" ".join(line)] = run(*line)
    return {"commands": commands, "core": core, "words": refused}


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(every(asked["whole"], asked["words"])))
