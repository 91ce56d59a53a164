"""A cell: one `vit fit` in a process and a directory of its own, never run twice.

    finished       summary.json is there                      its summary is the answer
    diverged       diverged.txt is there                      its reason is the answer
    interrupted    checkpoints/last.ckpt is there             continued from it
    half-made      log.txt alone                              deleted, and started again

A process for each cell, not a call in this one, although it takes some seconds to start: memory,
thread counts and seeds are as fresh as in any `vit fit`, a cell that is killed for its memory does
not take the others along, and `--trainer.devices 2` works, for which Lightning runs the command
line of the process once more.
"""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vit.errors import UserError
from vit.locking import FileLock, Locked
from vit.signals import on_signal

LOG = "log.txt"
DIVERGED = "diverged.txt"
ENDING = tuple(  # Windows lacks some
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
FIT = (sys.executable, "-m", "vit", "fit")


class Diverged(Exception):
    """Training came to a loss that is not finite; the message says at which step."""


class CellFailed(Exception):
    """The process of a cell ended in a way that no argument explains; run again, it goes on."""


def run_cell(
    arguments: list[str], folder: Path, *, lock: int | None = None
) -> tuple[dict[str, Any], bool]:
    """The summary of `vit fit ARGUMENTS --run_dir folder`, and whether it was there already.

    Trains only what is not trained yet. Ctrl-C and SIGTERM let the cell save and stop; a second one
    does not wait. `lock` is a file descriptor that the cell keeps open for as long as it lives.

    Raises:
        Diverged: The loss became infinite; said again, without training, at every later call.
        UserError: `vit fit` refuses the arguments, or `folder` holds something else.
        CellFailed: Anything else stopped it.
    """
    summary = finished(folder)
    if summary is not None:
        return summary, True
    if (folder / DIVERGED).is_file():
        raise Diverged((folder / DIVERGED).read_text(encoding="utf-8").strip())
    if (folder / "checkpoints" / "last.ckpt").is_file():
        arguments = ["--run_dir", str(folder), "--ckpt_path", "last"]
    else:
        _clear(folder)
        arguments = [*arguments, "--run_dir", str(folder)]
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / LOG
    with log.open("ab") as file:
        before = file.tell()
        code = wait(start(arguments, file, lock))
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
    """The summary of a finished run; None while it is absent or cut short by a crash."""
    try:
        return json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def start(arguments: list[str], log: Any, lock: int | None) -> subprocess.Popen[bytes]:
    """`vit fit` in a process that signals reach through `wait` only."""
    return subprocess.Popen(
        [*FIT, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        pass_fds=() if lock is None else (lock,),
        # Else a terminal's Ctrl-C would come to the cell twice, and the second does not wait.
        start_new_session=True,
    )


def wait(process: subprocess.Popen[bytes]) -> int:
    """The exit status. If SIGINT, SIGTERM or SIGHUP came meanwhile, KeyboardInterrupt with its
    number, once the cell has saved."""
    asked: list[int] = []

    def interrupt(number: int, frame: Any) -> None:
        asked.append(number)
        raise KeyboardInterrupt

    handlers = {number: signal.getsignal(number) for number in ENDING}
    for number, handler in handlers.items():
        if handler in (signal.SIG_DFL, signal.default_int_handler, on_signal):
            signal.signal(number, interrupt)
    try:
        while True:
            try:
                code = process.wait()
                break
            except KeyboardInterrupt:
                if len(asked) == 1:
                    process.send_signal(signal.SIGTERM)
                elif process.poll() is None:
                    _kill(process)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if asked:
        raise KeyboardInterrupt(asked[0])
    return code


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends the process at once, with those that it has started where the system has groups."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


@contextmanager
def alone_in(folder: Path) -> Iterator[int | None]:
    """Waits until no other call works in `folder`, nor a cell whose call was killed.

    Gives the descriptor to hand to the cells: the lock ends with the last process that has it.
    On Windows there is none, and the lock ends with this call.
    """
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire()
    except Locked:
        print(
            f"waiting: another `vit transfer`, or the run of one that was killed, is still at "
            f"work in {folder}",
            file=sys.stderr,
            flush=True,
        )
        lock.wait_seconds = math.inf
        lock.acquire()
    try:
        yield lock.descriptor
    finally:
        lock.hand_over()


def _clear(folder: Path) -> None:
    """Deletes what a cell left that was stopped before its first checkpoint."""
    if (folder / LOG).is_file():
        shutil.rmtree(folder)
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is in the way: move it, or choose another --out")


def _last_word(log: Path, start: int) -> str:
    """The message that the process ended with: of `vit`, or the last line of a traceback."""
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode("utf-8", "replace").splitlines()
    lines = [line.strip() for line in lines if line.strip()]
    own = [line.removeprefix("vit: ") for line in lines if line.startswith("vit: ")]
    return own[-1] if own else lines[-1] if lines else ""
