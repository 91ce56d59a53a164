"""The end of a process: SIGINT, SIGTERM and SIGUSR1 end a command at once or, if deferred, at the
next safe point.

A SLURM job can ask for SIGUSR1 some time before its limit. Exit statuses are those of a shell: 130
after SIGINT, 143 after SIGTERM, 138 after SIGUSR1 on Linux. A signal that the parent process
ignores (nohup, a background job) stays ignored.
"""

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, SimpleNamespace
from typing import NoReturn

end_at_once = os._exit
"""Ends the process from a signal handler or a thread, where nothing else may run."""
DOUBLED_SECONDS = 2.0
"""A second SIGTERM within this time is the first one again, which the scheduler sends to all
processes and a launcher passes on to them."""
HANDLED = [s for s in signal.Signals if s.name in ("SIGINT", "SIGTERM", "SIGUSR1")]


class Stopped(SystemExit):
    """A signal ended the work; `code`, the exit status, is 128 + `number`."""

    def __init__(self, number: int, *, agreed: bool = False) -> None:
        super().__init__(128 + number)
        self.number = number
        self.agreed = agreed
        """True if all processes of a run raise it at the same point."""
        self.announced = False
        """True once a message about it is printed."""


# State of this process, as signal handlers are.
_requests = SimpleNamespace(pid=0, deferrals=0, received=0, at=0.0, several=False)


@contextmanager
def handled() -> Iterator[None]:
    """Context in which the signals raise Stopped in the main thread, unless `deferred`.

    Handlers that others have set stay. Does nothing in other threads, where Python sets no
    handlers, and inside `deferred`, where a signal may be pending.
    """
    if _requests.deferrals or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {}
    for number in HANDLED:
        handler = signal.getsignal(number)
        if handler in (signal.SIG_DFL, signal.default_int_handler):
            before[number] = handler
            signal.signal(number, _on_signal)
    if before:
        _requests.pid, _requests.received = os.getpid(), 0
    try:
        yield
    except Stopped:
        raise
    except BaseException as error:
        # Stopped may be lost in a hook, or interrupt an import that then fails in another way.
        if before and _requests.received:
            raise Stopped(_requests.received) from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def deferred(*, several: bool = False) -> Iterator[None]:
    """Context in which the first signal is only recorded (see `received`); a second SIGINT or
    SIGTERM acts at once.

    On exit from the outermost context a recorded signal raises Stopped. With `several` processes,
    the second SIGINT has its default action: a process that waits for another runs no handler.
    """
    _requests.deferrals += 1
    _requests.several = _requests.several or several
    try:
        yield
        if _requests.deferrals == 1 and _requests.received:
            raise Stopped(_requests.received)
    finally:
        _requests.deferrals -= 1
        if not _requests.deferrals:
            _requests.several = False


def received() -> int:
    """The number of the first signal received in the current `handled` context, or 0."""
    return _requests.received


def _on_signal(number: int, frame: FrameType | None) -> None:
    if os.getpid() != _requests.pid:  # a forked worker that has not yet set its handlers
        end_at_once(128 + number)
    first, now = not _requests.received, time.monotonic()
    repeated = number == _requests.received == signal.SIGTERM
    if first:
        _requests.at = now
    # Recorded before anything is raised: Python drops what is raised in os.fork and in __del__.
    _requests.received = _requests.received or number
    if not _requests.deferrals or (repeated and now > _requests.at + DOUBLED_SECONDS):
        raise Stopped(number)
    if first:
        again = signal.SIG_DFL if _requests.several else signal.default_int_handler
        signal.signal(signal.SIGINT, again)
        if number == signal.SIGINT:
            # Not print: the signal may have interrupted a write to its buffer.
            os.write(2, b"\nstopping after this step; Ctrl-C again stops at once\n")


def end(status: int) -> NoReturn:
    """Ends the process as Python does, but leaves freeing memory to the system.

    Python frees module by module: 1.9 s after `vit fit -c quickstart --steps 1`, 0.1 s without it
    (medians of 7 each, in turns; 2 cores of an AMD EPYC shared with other work, Python 3.11).
    """
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # its reader has closed the pipe
            stream.flush()
    end_at_once(status)
