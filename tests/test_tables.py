"""The rows of what is added to the core, ours and those of installed packages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vit.tables import HELP, TABLES, resolve

ROWS = [(table, name) for table, names in TABLES.items() for name in names]
MAIN = "import sys; from vit.cli.main import main; sys.exit(main(sys.argv[1:]))"
BLOCKED = """\
import sys
from importlib.abc import MetaPathFinder

class Blocked(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "MODULE":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
from vit.cli.main import main
status = main(sys.argv[1:])
print(*sorted({"torch", "lightning", "numpy"} & set(sys.modules)))
sys.exit(status)
"""


@pytest.mark.parametrize(("table", "name"), ROWS, ids=[".".join(row) for row in ROWS])
def test_every_row_names_something(table: str, name: str) -> None:
    assert callable(resolve(TABLES[table][name]))


@pytest.mark.parametrize("table", HELP)
def test_every_row_has_its_line_in_the_help(table: str) -> None:
    assert [*HELP[table]] == [*TABLES[table]]


def run(place: Path, *args: str, code: str = MAIN) -> tuple[int, str, str]:
    """Status, output and errors of `vit`, where `place` is searched for packages first."""
    path = os.pathsep.join(filter(None, (str(place), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, done.stderr


def install(place: Path, row: str, name: str = "greeting", summary: str = "greets") -> None:
    """Writes a package whose module has a command, and whose dist-info has the row."""
    (place / f"{name}.py").write_text("def run(args):\n    print('hello', *args)\n    return 3\n")
    about = place / f"{name}-1.0.dist-info"
    about.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0"]
    lines += [f"Summary: {summary}"] if summary else []
    (about / "METADATA").write_text("\n".join([*lines, ""]))
    (about / "entry_points.txt").write_text(f"[vit.extensions]\n{row}\n")


@pytest.mark.parametrize("summary", ["greets whom you name", ""])
def test_an_installed_package_adds_a_command(summary: str, tmp_path: Path) -> None:
    install(tmp_path, "commands.greet = greeting:run", summary=summary)
    assert run(tmp_path, "greet", "you") == (3, "hello you\n", "")
    _, shown, _ = run(tmp_path, "--help")
    assert f"  greet      {summary}".rstrip() in shown.splitlines()
    status, _, error = run(tmp_path, "gret")
    assert status == 2 and "did you mean 'greet'" in error


@pytest.mark.parametrize(("name", "packages"), [("fit", ["one"]), ("greet", ["one", "two"])])
def test_a_name_twice_is_refused(name: str, packages: list[str], tmp_path: Path) -> None:
    for package in packages:
        install(tmp_path, f"commands.{name} = {package}:run", package)
    status, _, error = run(tmp_path, "recipes")
    assert (status, error) == (
        2,
        f"vit: {packages[-1]}:run of an installed package adds {name!r} to the commands of vit, "
        "which have it already; uninstall one of the two\n",
    )


@pytest.mark.parametrize("module", ["vit.cli.trust", "greeting"])
def test_a_missing_module_is_one_line_without_torch(module: str, tmp_path: Path) -> None:
    install(tmp_path, "commands.greet = greeting:run")
    command = "greet" if module == "greeting" else module.rpartition(".")[2]
    status, heavy, error = run(tmp_path, command, code=BLOCKED.replace("MODULE", module))
    assert (status, heavy) == (2, "\n")
    assert error == (
        f"vit: {module}:run is not installed: there is no {module}; install its package again\n"
    )


def test_a_library_that_a_row_needs_is_not_taken_for_its_module(tmp_path: Path) -> None:
    install(tmp_path, "commands.greet = greeting:run")
    (tmp_path / "greeting.py").write_text("import there_is_none\n")
    status, _, error = run(tmp_path, "greet")
    assert status == 1 and "ModuleNotFoundError: No module named 'there_is_none'" in error
