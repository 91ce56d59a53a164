"""Death of a process at a chosen place."""

import os
import signal
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
