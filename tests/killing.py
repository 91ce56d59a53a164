"""Death of a process at a chosen place."""

import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vit.cli.main import main


def killed_at(owner: Any, name: str, count: int, sent: int = signal.SIGKILL) -> None:
    """Lets a signal, kill -9 by default, come before the call number `count` of a function."""
    function, calls = getattr(owner, name), 0

    def dying(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            os.kill(os.getpid(), sent)
        return function(*args, **options)

    setattr(owner, name, dying)


def in_child(work: Callable[[], Any]) -> int:
    """Exit status of a forked process that does the work: negative for a signal."""

    def quiet() -> None:
        sys.stdout = sys.stderr = open(os.devnull, "w")
        os._exit(work())

    child = multiprocessing.get_context("fork").Process(target=quiet)
    child.start()
    child.join()
    assert child.exitcode is not None
    return child.exitcode


def with_small_files(most: int, *words: str) -> tuple[int, str]:
    """Status and last line of a command in a process whose files may have so many bytes."""

    def limited() -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        with open("err.txt", "w") as sys.stderr:
            return main([*words])

    status = in_child(limited)
    return status, Path("err.txt").read_text().splitlines()[-1]
