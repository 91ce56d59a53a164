"""Locks between processes: one writer of a run directory, one download of a file.

The operating system holds the lock and releases it when the process ends in any way; a remaining
lock file has no meaning.
"""

import errno
import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from vit.errors import UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None
    import msvcrt

POLL_SECONDS = 0.1
# Offset of the owner's name; msvcrt locks byte 0, and a locked byte cannot be read.
_OWNER_AT = 1
# Errors of a file system without locks; work continues without one.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}

# Open lock files of this process.
_held: set[int] = set()


def _close_in_child() -> None:
    """Otherwise a forked worker that outlives a killed owner would keep the lock."""
    for handle in _held:
        os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


class Locked(UserError):
    """Another process holds the lock."""


class FileLock:
    """An exclusive lock on a file, which holds the owner's process number and host.

    >>> with FileLock(folder / ".lock"): ...

    Args:
        path: The lock file; created if missing, and not deleted.
        wait_seconds: How long to wait for another owner.
    """

    def __init__(self, path: Path, *, wait_seconds: float = 0) -> None:
        self.path = path
        self.wait_seconds = wait_seconds
        self._handle: int | None = None

    def acquire(self) -> None:
        """Acquires the lock. Raises Locked, which names the owner, after the waiting time."""
        deadline = time.monotonic() + self.wait_seconds
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        while True:
            if _try_lock(handle):
                if _is_at(handle, self.path):
                    break
                os.close(handle)  # the previous owner has deleted the file
                handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
                continue
            if time.monotonic() >= deadline:
                os.close(handle)
                raise Locked(f"{self.path} is locked by {self.owner()}")
            time.sleep(POLL_SECONDS)
        _held.add(handle)
        os.ftruncate(handle, 0)
        owner = {"pid": os.getpid(), "host": socket.gethostname()}
        os.lseek(handle, _OWNER_AT, os.SEEK_SET)
        os.write(handle, json.dumps(owner).encode())
        self._handle = handle

    def release(self) -> None:
        """Releases the lock, if held."""
        if self._handle is not None:
            _held.discard(self._handle)
            _unlock(self._handle)  # closing is not enough while a forked worker has the file open
            os.close(self._handle)
            self._handle = None

    def owner(self) -> str:
        """'process 12 on host' of the last owner."""
        try:
            owner = json.loads(self.path.read_bytes()[_OWNER_AT:])
            return f"process {owner['pid']} on {owner['host']}"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"

    @property
    def descriptor(self) -> int | None:
        """Descriptor with which a child process also holds the lock; None if it cannot.

        For pass_fds of subprocess.Popen. Windows locks a file for only one process.
        """
        return None if fcntl is None else self._handle

    def hand_over(self) -> None:
        """Closes this process's descriptor; children that inherited it keep the lock."""
        if self._handle is not None:
            _held.discard(self._handle)
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> "FileLock":
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def _try_lock(handle: int) -> bool:
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            os.lseek(handle, 0, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # pyright: ignore
        return True
    except OSError as error:
        return error.errno in _NO_LOCKS


def _is_at(handle: int, path: Path) -> bool:
    """Whether the open file still has this path."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _unlock(handle: int) -> None:
    if fcntl is not None:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_UN)
    else:
        os.lseek(handle, 0, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)  # pyright: ignore
