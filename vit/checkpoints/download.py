"""Files by https, kept in VIT_CACHE (by default ~/.cache/vit).

One process downloads a file and the others wait for it. What is received is compared with the
length that the server states and with the digests it sends, and only then gets its final name,
under which it is never written again. A file in the cache needs no network.
"""

import base64
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urldefrag, urlsplit
from urllib.request import Request, build_opener

from vit import console
from vit.cache import cache_directory
from vit.checkpoints.digests import (
    RECORDED,
    Digest,
    compared,
    hash_of,
    keep_record,
    record_path,
    recorded,
    sha256,
)
from vit.checkpoints.servers import Redirects, refusal
from vit.console import Meter
from vit.errors import UserError
from vit.locking import FileLock, Locked
from vit.writing import write_json

TIMEOUT_SECONDS = 30
"""How long a server may be silent."""
_WAIT_SECONDS = 24 * 3600
"""How long to wait for another process that downloads the same file."""
_SPARE_BYTES = 16 << 20
"""Disk space that a download leaves free."""
_CHUNK = 1 << 20
_MEGABYTE = 10**6


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """What a server says about the whole file; kept beside an unfinished download."""

    url: str
    etag: str | None
    size: int | None
    """Bytes of the whole file."""
    md5: str | None
    """Base64, as Google's storage sends it."""


class Unreachable(UserError):
    """The network is forbidden or does not answer."""


class _ReadOnly(UserError):
    """The folder of the cache cannot be written to."""


class _Restart(Exception):
    """The unfinished download does not belong to the file that the server has now."""


def offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids the network."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")


say = partial(console.say, everywhere=True)
"""The process that downloads may be any."""


def download(
    url: str,
    *,
    name: str | None = None,
    target: Path | None = None,
    digest: Digest | None = None,
    record: bool = False,
    check: Callable[[Path], object] | None = None,
) -> Path:
    """The local file of a URL, from the cache or by http(s).

    `#sha256=...` at the end of the URL is compared with the file, also with one in the cache.
    A transfer that broke off is continued if the server still has the same file (ETag).

    Args:
        url: Where the file is.
        name: The address as the user wrote it, for messages.
        target: Where the file is kept; by default in the cache, by the URL.
        digest: What is known of its SHA-256, unless the URL says it.
        record: Keeps the SHA-256 of the first download beside the file, and compares it ever after.
        check: Raises UserError for a file that is not the one wanted, which is neither kept nor
            recorded. Not asked where a digest is known.

    Raises UserError, in one line, without network, for a server's refusal, for an answer without
    length and digest, for too little disk space, and for content that is damaged.
    """
    name = urldefrag(name or url).url
    url, fragment = urldefrag(url)
    digest = _digest_of(fragment) or digest
    try:
        parts = urlsplit(url)
        url.encode("ascii")
    except ValueError as error:
        raise UserError(f"{name!r} is not a valid address ({error})") from error
    file_name = parts.path.rstrip("/").rsplit("/", 1)[-1][-100:]
    file_name = "weights" if file_name in ("", ".", "..") else file_name
    if target is None:
        target = cache_directory() / hashlib.sha256(url.encode()).hexdigest()[:16] / file_name
    if target.is_dir():
        raise UserError(f"{target} is a directory, but {name} is kept there as a file; move it")
    if target.is_file() and not (record and not record_path(target).is_file()):
        return compared(target, (recorded(target) if record else None) or digest, name)
    if offline() and not target.is_file():
        raise Unreachable(f"{name} is not in the cache, and HF_HUB_OFFLINE forbids the network")
    try:
        with _one_process(target.with_name(f"{target.name}.lock"), name):
            digest = (recorded(target) if record else None) or digest
            if target.is_file():  # by the process that held the lock, or put there by hand
                compared(target, digest, name)
                if digest is None:
                    _check_placed(target, name, check)
            else:
                say(f"asking {parts.hostname} for {name} ...")
                part = target.with_name(f"{target.name}.part")
                answer = _received(url, name, part, digest)
                # Before the renaming: what has the final name is used by others without this lock.
                _check(part, answer, digest, name)
                if digest is None:
                    _check_sent(part, url, name, check)
                part.replace(target)
                _state(part).unlink(missing_ok=True)
            if record and digest is None:
                say(keep_record(target, name))
    except _ReadOnly:
        if not target.is_file():
            raise
        _check_placed(target, name, check)
        say(keep_record(target, name))  # which says why it cannot
    return target


def _check_placed(target: Path, name: str, check: Callable[[Path], object] | None) -> None:
    """UserError where what was put into the cache is not the file that is wanted."""
    try:
        if check is not None:
            check(target)
    except UserError as error:
        raise UserError(f"{name}: {error}; delete {target} and try again") from error


def _check_sent(part: Path, url: str, name: str, check: Callable[[Path], object] | None) -> None:
    """Removes what a server has sent where it is not the file that is wanted."""
    try:
        if check is not None:
            check(part)
    except UserError as error:
        part.unlink()
        _state(part).unlink(missing_ok=True)
        what = str(error).replace(str(part), "what it sent")
        raise UserError(
            f"{name} cannot be fetched from {url}: {what}. It was not kept; check the address, and "
            "any proxy or mirror on the way"
        ) from error


def _received(url: str, name: str, part: Path, digest: Digest | None) -> _Answer:
    """`_fill`, with every failure as one line."""
    try:
        with Meter(part.stem, 0, "MB", everywhere=True) as meter:
            return _fill(url, name, part, digest is not None, meter)
    except HTTPError as error:
        raise UserError(f"{name} cannot be fetched: {refusal(error, url)}") from error
    except (URLError, HTTPException, OSError) as error:
        if getattr(error, "errno", None) == errno.ENOSPC:
            raise UserError(
                f"{name} cannot be fetched: the disk of {part.parent} is full; free some space, "
                f"or {_elsewhere(part)} on another disk"
            ) from error
        reason = getattr(error, "reason", None) or error or type(error).__name__
        raise Unreachable(
            f"{name} cannot be fetched ({reason}); check the network, or give a local file. "
            "What has arrived is kept and will be continued"
        ) from error


def _elsewhere(path: Path) -> str:
    """How a file is kept in another folder, before "of yours" or "on another disk"."""
    if path.is_relative_to(cache_directory()):
        return "set VIT_CACHE to a folder"
    return "give --to another folder"


def _digest_of(fragment: str) -> Digest | None:
    if not fragment:
        return None
    if not re.fullmatch(r"sha256=[0-9a-fA-F]{64}", fragment):
        raise UserError(f"#{fragment} is not sha256= and 64 hexadecimal digits")
    return Digest(fragment.removeprefix("sha256=").lower(), "given")


@contextmanager
def _one_process(path: Path, name: str) -> Iterator[None]:
    lock = FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise _ReadOnly(
            f"{path.parent} cannot be written to ({error.strerror}); {_elsewhere(path)} of yours"
        ) from error
    except Locked:
        say(f"waiting for {lock.owner()}, which downloads {name} ...")
        lock.wait_seconds = _WAIT_SECONDS
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _state(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _read_state(part: Path, url: str) -> _Answer | None:
    """What the server said about an unfinished download; None where that is not known."""
    try:
        values = json.loads(_state(part).read_text(encoding="utf-8"))
        known = _Answer(**values)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    whole = known.size is None or (isinstance(known.size, int) and known.size > 0)
    is_text = isinstance(known.etag, str) and (known.md5 is None or isinstance(known.md5, str))
    return known if whole and is_text and known.url == url else None


def _fill(url: str, name: str, part: Path, has_digest: bool, meter: Meter) -> _Answer:
    """Completes `part`, from where it ended if the server still has the same file."""
    known = _read_state(part, url) if part.is_file() else None
    if known is not None and part.stat().st_size:
        try:
            return _transfer(url, name, part, known, has_digest, meter)
        except _Restart:
            pass  # the file has changed, or what is here is not a part of it
    part.unlink(missing_ok=True)
    return _transfer(url, name, part, None, has_digest, meter)


def _transfer(
    url: str,
    name: str,
    part: Path,
    known: _Answer | None,
    has_digest: bool,
    meter: Meter,
) -> _Answer:
    """One request. `known`: what was said about the bytes in `part`, which are to be continued."""
    have = part.stat().st_size if known is not None else 0
    request = Request(url, headers={"User-Agent": "vit", "Accept-Encoding": "identity"})
    if known is not None and known.etag is not None:
        request.add_header("Range", f"bytes={have}-")
        # Without this a file that has changed meanwhile would be appended to the old one's start.
        request.add_header("If-Range", known.etag)
    response: HTTPResponse
    try:
        response = build_opener(Redirects).open(request, timeout=TIMEOUT_SECONDS)
    except HTTPError as error:
        if error.code != 416 or known is None:
            raise
        # There is nothing after what we have: it is complete, or no part of this file.
        error.close()
        total = re.fullmatch(r"bytes \*/(\d+)", error.headers.get("Content-Range", ""))
        if have != (int(total[1]) if total else known.size):
            raise _Restart from error
        return known
    with response:
        answer = _described(url, response, have)
        if response.status != 206:
            have = 0
        elif known is None or (known.size or answer.size) != answer.size:
            raise _Restart
        if answer.size is None and answer.md5 is None and not has_digest:
            remedy = (
                "add #sha256=... to the address, or give a local file"
                if "://" in name
                else f"fetch it in another way and put it at {part.with_name(part.stem)}"
            )
            raise UserError(
                f"{name} cannot be fetched: {urlsplit(url).hostname} does not say how long the "
                f"file is; {remedy}"
            )
        free = shutil.disk_usage(part.parent).free - _SPARE_BYTES
        _check_space(name, answer.size, have, free, part)
        write_json(_state(part), asdict(answer))
        done, limit = have, have + free
        meter.begin(have / _MEGABYTE, (answer.size or 0) / _MEGABYTE)
        with part.open("ab" if have else "wb") as stream:
            while chunk := response.read(_CHUNK):
                stream.write(chunk)
                done += len(chunk)
                if done > limit:
                    raise UserError(f"{name} does not fit on the disk of {part.parent}")
                meter.advance(len(chunk) / _MEGABYTE)
            stream.flush()
            os.fsync(stream.fileno())
    if answer.size is not None and done != answer.size:
        raise HTTPException(f"it broke off after {done} of {answer.size} bytes")
    return answer


def _described(url: str, response: HTTPResponse, have: int) -> _Answer:
    """What the headers say about the whole file, of which `have` bytes were not asked for."""
    headers = {key.lower(): value for key, value in response.headers.items()}
    if response.status == 206:
        given = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", headers.get("content-range", ""))
        if given is None:
            raise _Restart
        first, last, size = (int(number) for number in given.groups())
        if first != have or last != size - 1:
            raise _Restart
    else:
        length = headers.get("content-length", "")
        size = int(length) if re.fullmatch(r"\d{1,18}", length) else None
    md5 = re.search(r"md5=([A-Za-z0-9+/=]+)", headers.get("x-goog-hash", ""))
    etag = headers.get("etag")
    return _Answer(url=url, etag=etag, size=size, md5=md5[1] if md5 else None)


def _check_space(name: str, size: int | None, have: int, free: int, part: Path) -> None:
    """States the size, and refuses a file for which there is no room."""
    folder = part.parent
    if size is None:
        say(f"downloading {name}, of unknown size, to {folder}")
        return
    rest = f", {_bytes(have)} are here" if have else ""
    say(f"downloading {name} ({_bytes(size)}{rest}) to {folder}")
    if size - have > free:
        raise UserError(
            f"{name} needs {_bytes(size - have)} of disk space and {folder} has "
            f"{_bytes(max(free, 0))}; free some, or {_elsewhere(part)} on another disk"
        )


def _bytes(number: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= size:
            return f"{number / size:,.1f} {unit}"
    return f"{number} bytes"


def _check(part: Path, answer: _Answer, digest: Digest | None, name: str) -> None:
    """Compares a complete download with all that is known; what is damaged is removed."""
    problem = None
    if answer.size is not None and part.stat().st_size != answer.size:
        problem = f"it has {part.stat().st_size} bytes instead of {answer.size}"
    elif answer.md5 is not None:
        if base64.b64encode(hash_of(part, "md5")).decode() != answer.md5:
            problem = "its MD5 differs"
    if problem is not None:
        part.unlink()
        raise UserError(f"{name} arrived damaged ({problem}); try again")
    if digest is not None and not (actual := sha256(part)).startswith(digest.start):
        part.unlink()
        target = part.with_name(part.stem)
        record = f"; if it is right, the record is wrong: delete {record_path(target)}"
        raise UserError(
            f"{name} does not have the {digest.origin} SHA-256 {digest.start}, but {actual}; it "
            f"was not kept{record if digest.origin == RECORDED else ''}"
        )
