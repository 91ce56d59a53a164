"""SHA-256 of files: what is known of it, comparing, and a record where nobody publishes it."""

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from vit.errors import UserError
from vit.writing import write_text

RECORDED = "recorded"


@dataclass(frozen=True)
class Digest:
    """What is known of a file's SHA-256."""

    start: str
    """Its hexadecimal digits, or the first of them."""
    origin: str
    """Who says so: "given", "published" or RECORDED."""


def record_path(target: Path) -> Path:
    """Where the digest of a file is recorded."""
    return target.with_name(f"{target.name}.sha256")


def recorded(target: Path) -> Digest | None:
    """The digest of the first download, from the file beside it that `sha256sum -c` reads."""
    try:
        start = record_path(target).read_text(encoding="utf-8").partition(" ")[0]
    except (OSError, UnicodeDecodeError):
        return None
    if not re.fullmatch(r"[0-9a-f]{64}", start):
        raise UserError(f"{record_path(target)} is damaged: it has no SHA-256; delete it")
    return Digest(start, RECORDED)


def keep_record(target: Path, name: str) -> str:
    """Records the digest of a file, and returns the line that says so, or why it could not."""
    digest = sha256(target)
    start = f"{name}: nobody publishes its SHA-256; {digest}"
    try:
        write_text(record_path(target), f"{digest}  {target.name}\n")
    except OSError as error:
        return f"{start} cannot be recorded in {record_path(target)} ({error.strerror})"
    return f"{start} is recorded beside the file and compared from now on"


def compared(target: Path, digest: Digest | None, name: str) -> Path:
    """The file in the cache. It is kept whatever the fragment says, which may have a typo."""
    if digest is not None and not (actual := sha256(target)).startswith(digest.start):
        record = (
            f"; if the copy is right, the record is wrong: delete {record_path(target)}"
            if digest.origin == RECORDED
            else ""
        )
        raise UserError(
            f"{name} does not have the {digest.origin} SHA-256 {digest.start}, but {actual}; if "
            f"that is right, the copy in the cache is wrong: delete {target} and try again{record}"
        )
    return target


def sha256(path: Path) -> str:
    """Of a file; computed once in a process for a file that does not change."""
    status = path.stat()
    return _sha256_at(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=64)
def _sha256_at(path: Path, size: int, changed: int) -> str:
    return hash_of(path, "sha256").hex()


def hash_of(path: Path, kind: str) -> bytes:
    """Digest of a file; `kind` as for hashlib."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, kind).digest()
