"""Death of a process at a chosen place."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from typing import Any


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
