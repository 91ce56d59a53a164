"""A cell: one `vit fit` in its own process and directory, trained only once.

    finished       has summary.json                 returns the summary
    diverged       has diverged.txt                 raises the recorded reason
    interrupted    has checkpoints/last.ckpt        resumes
    unfinished     has only log.txt                 is deleted and starts again

Each cell is a separate process, although that takes some seconds to start: memory, thread counts
and seeds are those of any `vit fit`, a cell that is killed for its memory does not affect the
others, and `--trainer.devices 2` works, for which Lightning runs the command line of the process
again.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from vit.console import say
from vit.errors import UserError

LOG = "log.txt"
DIVERGED = "diverged.txt"
ENDING = tuple(  # some are missing on Windows
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
FIT = (sys.executable, "-m", "vit", "fit")


class Diverged(Exception):
    """The loss became non-finite; the message names the step."""


class CellFailed(Exception):
    """The process of a cell failed for a reason that no argument explains; it can be resumed."""


def run_cell(arguments: list[str], folder: Path) -> tuple[dict[str, Any], bool]:
    """The summary of `vit fit ARGUMENTS --run_dir folder`, and whether it already existed.

    Trains only unfinished cells. Ctrl-C and SIGTERM let the cell save and stop; a second one does
    not wait.

    Raises:
        Diverged: The loss became non-finite; repeated without training by later calls.
        UserError: `vit fit` refused the arguments, or `folder` contains something else.
        CellFailed: Any other failure.
    """
    summary = finished(folder)
    if summary is not None:
        return summary, True
    if (folder / DIVERGED).is_file():
        raise Diverged((folder / DIVERGED).read_text(encoding="utf-8").strip())
    if folder.exists() and not (folder / LOG).is_file():
        raise UserError(f"{folder} is in the way: move it, or choose another --out")
    arguments = [*arguments, "--run_dir", str(folder)]
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / LOG
    with log.open("ab") as file:
        before = file.tell()
        code = wait(start(arguments, file))
    summary = finished(folder)
    if code == 0 and summary is not None:
        return summary, False
    reason = _last_word(log, before)
    if code == 2 and "not finite" in reason:
        reason = reason.split(":", 1)[0]  # without the advice for a single run
        (folder / DIVERGED).write_text(reason + "\n", encoding="utf-8")
        raise Diverged(reason)
    if code == 2:
        raise UserError(f"{folder}: {reason}")
    how = f"killed by signal {-code}" if code < 0 else f"exit status {code}"
    raise CellFailed(f"{folder} stopped ({how}): {reason or 'no message'}; see {log}")


def finished(folder: Path) -> dict[str, Any] | None:
    """The summary of a finished run; None for any other."""
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return summary if summary.get("finished") else None


def start(arguments: list[str], log: Any) -> subprocess.Popen[bytes]:
    """Starts `vit fit` in a process that receives signals only through `wait`."""
    return subprocess.Popen(
        [*FIT, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        # Otherwise the cell would receive a terminal's Ctrl-C twice, and the second does not wait.
        start_new_session=True,
    )


def wait(process: subprocess.Popen[bytes]) -> int:
    """The exit status. Raises KeyboardInterrupt with the signal number after SIGINT, SIGTERM or
    SIGHUP, once the cell has saved."""
    received: list[int] = []

    def interrupt(number: int, frame: Any) -> None:
        received.append(number)
        raise KeyboardInterrupt

    handlers = {number: signal.getsignal(number) for number in ENDING}
    for number, handler in handlers.items():
        if callable(handler) or handler == signal.SIG_DFL:
            signal.signal(number, interrupt)
    try:
        while True:
            try:
                code = process.wait()
                break
            except KeyboardInterrupt:
                if len(received) == 1:
                    process.send_signal(signal.SIGTERM)
                elif process.poll() is None:
                    _kill(process)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if received:
        raise KeyboardInterrupt(received[0])
    return code


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills the process, with its children if the system has process groups."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Waits until no other call works in `folder`."""
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        say(f"waiting: another `vit transfer` is still running in {folder}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _last_word(log: Path, start: int) -> str:
    """The final message of the process: that of `vit`, or the last line of a traceback."""
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode("utf-8", "replace").splitlines()
    lines = [line.strip() for line in lines if line.strip()]
    messages = [line.removeprefix("vit: ") for line in lines if line.startswith("vit: ")]
    return messages[-1] if messages else lines[-1] if lines else ""
