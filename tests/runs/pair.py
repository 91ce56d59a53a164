"""`vit` on two processes, as torchrun starts them, each with options of its own."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.processes import torchrun


class Ended(NamedTuple):
    status: int
    err: str


def pair(
    folder: Path,
    shared: Sequence[object],
    own: Sequence[Sequence[object]] = ((), ()),
    *,
    seconds: float,
    before: str = "pass",
) -> list[Ended]:
    """The ends of both, run in `folder` with `shared` arguments and their `own`.

    `seconds` is the limit for each; `before` are Python statements that each executes first.
    """
    started = []
    for variables, options in zip(torchrun(2), own, strict=True):
        code = f"{before}\nfrom vit.cli.main import entry; entry()"
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", code, *map(str, (*shared, *options))],
                env={**os.environ, **variables},
                cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
    try:
        errors = [process.communicate(timeout=seconds)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    return [Ended(process.returncode, err) for process, err in zip(started, errors, strict=True)]
