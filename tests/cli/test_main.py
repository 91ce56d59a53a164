"""`vit` itself: help at once, one line for a mistake, exit statuses."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command import TINY, Vit
from vit.errors import UserError
from vit.extensions.recipes import cli_recipes as recipes
from vit.tables import rows
from vit.training.image_classifier import ImageClassifier
from vit.writing import cache_directory

HEAVY = """\
import sys
from vit.cli.main import main
try:
    main(sys.argv[1:])
finally:
    print(*sorted({'torch', 'lightning', 'numpy'} & set(sys.modules)), file=sys.stderr)
    print(*sorted(name for name in sys.modules if name.startswith("vit")), file=sys.stderr)
"""


@pytest.mark.parametrize("args", [["--help"], ["models"], ["fit", "--help"], ["compare", "--help"]])
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", HEAVY, *args], capture_output=True, text=True)
    heavy, modules = done.stderr.splitlines()
    assert (done.returncode, heavy) == (0, "")
    if args == ["--help"]:
        light = "cli cli.main cli.process console errors signals synonyms tables".split()
        assert modules.split() == ["vit", *(f"vit.{name}" for name in light)]


def test_the_options_in_the_help_exist() -> None:
    from vit.cli.fit import HELP
    from vit.runs.options import Options
    from vit.runs.short_names import SHORT
    from vit.tables import rows

    known = {
        option
        for action in Options(["-c", "quickstart", "--trainer.precision=32-true"]).parser._actions
        for option in action.option_strings
    }
    known |= {f"--{name}" for name in rows("short_names")}
    named = re.findall(r"--[a-z_-]+(?:\.[a-z_]+)*", HELP)
    long = {name: option.split()[0] for name, option in SHORT.items()}
    named = {f"--{long.get(name[2:].replace('-', '_'), name[2:])}" for name in named}
    assert len(named) > 20
    assert (
        named
        - {"--help-all", "--json", "--weights", "--model.loss.function"}
        - {"--model.optimizer.lr", "--model.schedule.cooldown_steps"}  # of their classes
        <= known
    )


def test_the_help_of_a_command_is_short_also_behind_options(vit: Vit) -> None:
    shown = vit("--help").out
    assert all(f"  {name} " in shown for name in rows("commands"))
    commands = [[name, "--help"] for name in rows("commands")]
    for args in (["fit", "-c", "quickstart", "--help"], ["test", "runs/x", "-h"], *commands):
        done = vit(*args)
        assert (done.status, done.err) == (0, "")
        assert done.out.startswith(f"usage: vit {args[0]}") and len(done.out.splitlines()) < 60


@pytest.mark.parametrize("error", [KeyError("step"), MemoryError(), OSError("no number")])
def test_an_unexpected_error_is_one_line_and_a_file(
    error: Exception, vit: Vit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> dict[str, Path]:
        raise error

    monkeypatch.setattr(recipes, "list_recipes", fail)
    done = vit("recipes")
    assert (done.status, done.out) == (1, "")
    [line] = done.err.splitlines()
    [file] = (cache_directory() / "errors").iterdir()
    what = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    start = "vit: unexpected error in vit.extensions.recipes.cli_recipes: "
    assert line == f"{start}{what}; the traceback is in {file}"
    assert file.read_text().startswith("Traceback (most recent call last):")
    assert "in fail" in file.read_text()


def test_a_run_that_fails_in_an_unexpected_way_can_be_started_again(
    vit: Vit, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a fault\nof two lines")

    args = ("fit", "-c", "cifar10", "--data.root", photos, *TINY, "--trainer.max_steps=1")
    with monkeypatch.context() as patched:
        patched.setattr(ImageClassifier, "training_step", fail)
        done = vit(*args, "--run_dir=run")
    assert done.status == 1
    assert "ZeroDivisionError: a fault of two lines; the traceback is" in done.err.splitlines()[-1]
    assert vit(*args, "--run_dir=run").status == 0


@pytest.mark.parametrize("link", ["cause", "context", "hidden"])
def test_a_mistake_inside_another_error_is_still_one_line(
    link: str, vit: Vit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(args: list[str]) -> int:
        outer, mistake = RuntimeError("wrapped"), UserError("size=3 is odd")
        outer.__cause__ = mistake if link == "cause" else None
        outer.__context__, outer.__suppress_context__ = mistake, link != "context"
        raise outer

    monkeypatch.setattr(recipes, "run", fail)
    if link == "hidden":
        assert vit("recipes").status == 1
    else:
        assert vit("recipes") == (2, "", "vit: size=3 is odd\n")


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_any_command_unless_the_parent_ignores_it(
    number: signal.Signals, status: int, ignored: bool, vit: Vit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(args: list[str]) -> int:
        signal.raise_signal(number)
        return 7

    monkeypatch.setattr(recipes, "run", stopped)
    before = signal.getsignal(number)
    try:
        if ignored:
            signal.signal(number, signal.SIG_IGN)
        handler = signal.getsignal(number)
        done = vit("recipes")
        assert done == ((7, "", "") if ignored else (status, "", "vit: stopped\n"))
        assert signal.getsignal(number) == handler
    finally:
        signal.signal(number, before)


def test_the_process_ends_with_the_status_and_all_of_its_output(
    deadline: Callable[[float], float],
) -> None:
    code = (
        "import atexit, concurrent.futures, sys\n"
        "from vit.cli import main; from vit.extensions.recipes import cli_recipes as recipes\n"
        "atexit.register(print, 'at exit')\n"
        "pool = concurrent.futures.ThreadPoolExecutor()\n"  # as OpenVINO leaves one
        "pool.submit(int)\n"
        "recipes.run = lambda args: print('x' * 100_000) or 5\n"
        "sys.argv = ['vit', 'recipes']; main.entry()"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=deadline(20))
    assert (done.returncode, done.stdout) == (5, "x" * 100_000 + "\nat exit\n")
    done = subprocess.run([sys.executable, "-m", "vit", "nonsense"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("vit: unknown command")


@pytest.mark.parametrize("command", ["--help", "recipes"])
def test_a_reader_that_has_gone_gets_no_traceback(command: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "vit", command],
        stdout=writer,
        stderr=subprocess.PIPE,
        env=environment,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_terminal_without_the_letters_gets_escapes(photos: Path) -> None:
    command = [sys.executable, "-m", "vit", "recipes", "mine.yaml"]
    (photos / "mine.yaml").write_text("# \u9ce5\n", encoding="utf-8")
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=photos,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "# \\u9ce5\n")


def test_models_shows_parameters(vit: Vit) -> None:
    rows = {row["name"]: row for row in json.loads(vit("models", "vit_?16", "--json").out)}
    assert rows["vit_b16"]["params"] == 86_567_656
    assert set(rows) == {"vit_s16", "vit_b16", "vit_l16"}
