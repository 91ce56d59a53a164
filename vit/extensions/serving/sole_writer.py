"""Output that one process writes at a time."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from vit.errors import UserError
from vit.writing import is_temporary, remove


@contextmanager
def sole_writer(path: Path, what: str) -> Iterator[None]:
    """Locks a file or folder, and deletes what killed writers of it have left beside it.

    UserError, with `what` people call it, if another process writes it.
    """
    lock = path.with_name(f".{path.name}.lock")
    try:
        with FileLock(lock, timeout=0):
            for left in path.parent.glob(".*"):
                if is_temporary(left.name) and left.name.startswith(f".{path.stem}."):
                    remove(left)
            try:
                yield
            finally:
                with suppress(OSError):  # Windows deletes it itself
                    lock.unlink()
    except Timeout as error:
        busy = f"{what} is being written by another process; wait until it has ended"
        raise UserError(busy) from error
