"""Forked processes that work together by gloo."""

import multiprocessing
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def torchrun(processes: int) -> list[dict[str, str]]:
    """The variables that torchrun gives to each of so many processes of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    number = str(processes)
    shared = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number}
    ranks = map(str, range(processes))
    return [{**shared, **meeting, "RANK": rank, "LOCAL_RANK": rank} for rank in ranks]


def together(
    processes: int, folder: Path, task: Callable[..., Any], *args: Any, seconds: float = 120
) -> list[int | None]:
    """Exit status of each after `task(*args)`: what it returns, 1 after an exception.

    They have the variables of torchrun, and write to FOLDER/RANK.err; None for one that hangs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    variables = torchrun(processes)

    def work(rank: int) -> None:
        os.environ.update(variables[rank])
        with (folder / f"{rank}.err").open("w", buffering=1) as errors:
            sys.stdout = sys.stderr = errors
            os.dup2(errors.fileno(), 2)
            try:
                status = task(*args) or 0
            except Exception:
                traceback.print_exc()
                status = 1
            errors.flush()
            os._exit(status)  # without pytest's own clean-up

    fork = multiprocessing.get_context("fork").Process
    started = [fork(target=work, args=(rank,)) for rank in range(processes)]
    for process in started:
        process.start()
    end = time.monotonic() + seconds
    for process in started:
        process.join(max(end - time.monotonic(), 0.1))
        if process.is_alive():
            process.kill()
    return [process.exitcode for process in started]
