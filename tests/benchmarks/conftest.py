"""Small pictures for benchmarks that train, and `vit` in this process where they start it."""

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks.lib import harness
from benchmarks.parity import goldens
from tests.training.conftest import training_photos
from vit.cli.main import main

__all__ = ["training_photos"]
Pictures = Callable[[Iterable[str]], Path]


@pytest.fixture
def noise(tmp_path: Path) -> Pictures:
    """Writes noise of 32 pixels: 30 pictures to train on, 4 to test, of each class."""

    def write(classes: Iterable[str]) -> Path:
        draws = np.random.default_rng(0)
        for split, count in (("train", 30), ("test", 4)):
            for name in classes:
                folder = tmp_path / "data" / split / name
                folder.mkdir(parents=True)
                for number in range(count):
                    pixels = draws.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                    Image.fromarray(pixels).save(folder / f"{number}.png")
        return tmp_path / "data"

    return write


@pytest.fixture
def vit_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m vit ...` of the scripts runs in this process: torch is imported once."""

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if command[1:3] != ["-m", "vit"]:
            return subprocess.run(command, **options)
        printed, error = io.StringIO(), io.StringIO()
        with (
            contextlib.chdir(options.get("cwd") or "."),
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(error),
        ):
            status = main(command[3:])
        return subprocess.CompletedProcess(command, status, printed.getvalue(), error.getvalue())

    def start(command: list[str], **_: Any) -> Any:
        return SimpleNamespace(wait=lambda: None, returncode=run(command).returncode)

    stand_in = SimpleNamespace(**{**vars(subprocess), "run": run, "Popen": start})
    for module in (harness, goldens):
        monkeypatch.setattr(module, "subprocess", stand_in)


@pytest.fixture
def script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """Runs a script's `main` with options; the JSON of its last line."""

    def run(module: Any, *options: object) -> Any:
        monkeypatch.setattr(sys, "argv", ["", *map(str, options)])
        module.main()
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run
