"""`vit` itself: help at once, one line for a mistake, exit statuses."""

import resource
import subprocess
import sys

import pytest

from tests.cli.conftest import Vit


def cpu_seconds(*args: str) -> float:
    """User and system time of a whole process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "vit", *args], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("args", [["--help"], ["models"], ["recipes"], ["fit", "--help"]])
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    code = (
        "import sys; from vit.cli.main import main; main(sys.argv[1:]);"
        "sys.exit(str({'torch', 'lightning', 'numpy'} & set(sys.modules)) if"
        " {'torch', 'lightning', 'numpy'} & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_lists_every_command(vit: Vit) -> None:
    from vit.cli.main import COMMANDS

    shown = vit("--help").out
    assert all(f"  {name} " in shown for name in COMMANDS)


def test_an_unknown_command_names_the_nearest(vit: Vit) -> None:
    done = vit("clasify")
    assert done == (2, "", "vit: unknown command 'clasify'; did you mean 'classify'?\n")


@pytest.mark.parametrize("command", ["fit", "validate", "test", "predict", "classify", "convert"])
def test_every_command_has_help(vit: Vit, command: str) -> None:
    done = vit(command, "--help")
    assert done.status == 0
    assert f"usage: vit {command}" in done.out


def test_models_shows_parameters(vit: Vit) -> None:
    import json

    rows = {row["name"]: row for row in json.loads(vit("models", "vit_?16", "--json").out)}
    assert rows["vit_b16"]["params"] == 86_567_656
    assert set(rows) == {"vit_s16", "vit_b16", "vit_l16"}
