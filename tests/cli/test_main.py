"""`vit` itself: help at once, one line for a mistake, exit statuses."""

import os
import resource
import subprocess
import sys
from pathlib import Path

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


def test_the_options_in_the_help_exist() -> None:
    import re

    from vit.cli.fit import HELP
    from vit.cli.lightning_cli import TrainingCLI

    known = {
        option
        for action in TrainingCLI(["-c", "quickstart"]).parser._actions
        for option in action.option_strings
    }
    named = set(re.findall(r"--[a-z_]+(?:\.[a-z_]+)*", HELP)) - {
        "--help-all",
        "--model.optimizer.lr",
    }
    assert len(named) > 12
    assert named <= known


def test_help_stays_short_behind_other_options(vit: Vit) -> None:
    for args in (["fit", "-c", "quickstart", "--help"], ["test", "runs/x", "-h"]):
        done = vit(*args)
        assert (done.status, done.err) == (0, "")
        assert done.out.startswith(f"usage: vit {args[0]}") and len(done.out.splitlines()) < 40


def test_a_full_disk_is_one_line_and_no_mistake_of_the_users(
    vit: Vit, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vit.cli import recipes

    def full(args: list[str]) -> int:
        raise OSError(28, "No space left on device", "runs/x/last.ckpt")

    monkeypatch.setattr(recipes, "run", full)
    assert vit("recipes") == (1, "", "vit: No space left on device: runs/x/last.ckpt\n")


def test_a_terminal_without_the_letters_gets_escapes(photos: Path) -> None:
    command = [sys.executable, "-m", "vit", "recipes", "mine.yaml"]
    (photos / "mine.yaml").write_text("# \u9ce5\n", encoding="utf-8")
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=photos,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "# \\u9ce5\n")


def test_models_shows_parameters(vit: Vit) -> None:
    import json

    rows = {row["name"]: row for row in json.loads(vit("models", "vit_?16", "--json").out)}
    assert rows["vit_b16"]["params"] == 86_567_656
    assert set(rows) == {"vit_s16", "vit_b16", "vit_l16"}
