"""Files by https, kept in VIT_CACHE (by default ~/.cache/vit).

One process downloads a file and the others wait for it. The file gets its final name once it has
the length that the server states and the digests that are known; from then on it needs no network.
"""

import base64
import hashlib
import os
import re
import ssl
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import urldefrag, urlsplit

from filelock import FileLock, Timeout

from vit import console
from vit.console import Meter
from vit.errors import UserError
from vit.writing import cache_directory

TIMEOUT_SECONDS = 30
"""How long a server may be silent."""
HANDLERS: list[type[request.BaseHandler]] = [
    request.ProxyHandler,
    request.HTTPSHandler,
    request.HTTPRedirectHandler,
    request.HTTPDefaultErrorHandler,
    request.HTTPErrorProcessor,
    request.UnknownHandler,
]
"""https alone, also after a redirect."""
Check = Callable[[Path], object]
_STRONG_ETAG = re.compile(r'"[!#-~]*"')

say = partial(console.say, everywhere=True)  # any process may be the one that downloads


def offline() -> bool:
    """True if HF_HUB_OFFLINE forbids the network."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")


def download(
    url: str,
    *,
    name: str | None = None,
    target: Path | None = None,
    sha256: str = "",
    check: Check | None = None,
    remedy: str = "try again later, or give a local file",
) -> Path:
    """The local file of a URL. A transfer that broke off is continued at the next call.

    `url` may end in `#sha256=...`, which is compared at every use; `sha256` are its first digits.
    `name` is the address as typed, `target` the place of the file, by default in the cache.
    `check` raises UserError for a file of a wrong kind. `remedy`: advice without a network.
    """
    url, fragment = urldefrag(url)
    name = urldefrag(name or url).url
    if fragment:
        if not re.fullmatch(r"sha256=[0-9a-fA-F]{64}", fragment):
            raise UserError(f"#{fragment} is not sha256= and 64 hexadecimal digits")
        sha256 = fragment.removeprefix("sha256=").lower()
    target = target or cache_directory() / _place(url, name)
    if not target.is_file():
        if offline():
            raise UserError(f"{name} is not in the cache, and HF_HUB_OFFLINE is set; {remedy}")
        try:
            with _alone(target, name):
                if not target.is_file():  # the process that held the lock may have left it
                    part = target.with_name(f"{target.name}.part")
                    _fetch(url, name, part, sha256, check)
                    part.replace(target)
                    return target
        except (URLError, HTTPException, ConnectionError, TimeoutError, ssl.SSLError) as error:
            reason = str(error).strip("<>").splitlines()[0] if str(error) else type(error).__name__
            place = "" if name == url else f" from {url}"
            raise UserError(f"{name} cannot be fetched{place} ({reason}); {remedy}") from error
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f"{name} cannot be kept in {target.parent}: {reason}") from error
    if problem := _other_digest(target, sha256):
        raise UserError(f"{name} {problem}; if that is right, delete {target} and try again")
    return target


def _place(url: str, name: str) -> Path:
    """The place of a URL's file in the cache. UserError for no address."""
    try:
        parts, address = urlsplit(url), url.encode("ascii")
        if not parts.hostname or parts.port == 0:
            raise ValueError("it has no host, or no port")
    except ValueError as error:
        raise UserError(f"{name!r} is not a valid address ({error})") from error
    file_name = parts.path.rstrip("/").rpartition("/")[2][-100:].strip(".") or "weights"
    return Path(hashlib.sha256(address).hexdigest()[:16], file_name)


def _alone(target: Path, name: str) -> AbstractContextManager[object]:
    """A lock, so that one process downloads a file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(target.with_name(f"{target.name}.lock"))
    try:
        return lock.acquire(blocking=False)
    except Timeout:
        say(f"waiting for another process, which downloads {name} ...")
        return lock.acquire()


def _fetch(url: str, name: str, part: Path, sha256: str, check: Check | None) -> None:
    """Completes `part`, and removes it if it is another file."""
    while (md5 := _transfer(url, name, part, sha256)) is None:
        part.unlink()  # it does not begin the file that the server has now
    problem = _other_digest(part, sha256)
    if md5 and base64.b64encode(_digest(part, "md5", part.stat().st_mtime_ns)).decode() != md5:
        problem = "arrived damaged: its MD5 is not the one that the server states"
    try:
        if check is not None:
            check(part)
    except UserError as error:
        problem = problem or str(error).replace(str(part), f"cannot be used: what {url} sent")
    part.with_suffix(".etag").unlink()
    if problem:
        part.unlink()
        raise UserError(f"{name} {problem}; it was not kept")


def _transfer(url: str, name: str, part: Path, sha256: str) -> str | None:
    """Receives what `part` lacks. Returns the stated MD5 or "", None if it is not continued."""
    etag_file = part.with_suffix(".etag")
    etag = etag_file.read_text("utf-8", "replace") if etag_file.is_file() else ""
    have = part.stat().st_size if part.is_file() and _STRONG_ETAG.fullmatch(etag) else 0
    try:
        response = _opened(url, have, etag)
    except HTTPError as error:
        if error.code == 416 and have:  # nothing comes after what is here
            return None
        raise
    with response:
        headers, size = response.headers, response.length or 0
        encoding = headers.get("Content-Encoding", "identity")
        if encoding != "identity" or response.status not in (200, 206 if have else 200):
            raise HTTPException(f"it does not send the whole file: {response.status}, {encoding}")
        if response.status == 206:
            stated = re.fullmatch(rf"bytes {have}-\d+/(\d+)", headers.get("Content-Range", ""))
            if stated is None:
                return None
            size = int(stated[1])
        stated = re.search(r"md5=([\w+/=]+)", ",".join(headers.get_all("x-goog-hash", [])))
        if not (size or stated or sha256):
            raise HTTPException("it does not say how long the file is; add #sha256=...")
        amount = f"{size / 1e6:,.1f} MB" if size else "of unknown size"
        say(f"downloading {name} ({amount}) from {urlsplit(url).hostname} to {part.parent}")
        with (
            part.open("wb" if response.status == 200 else "ab") as stream,
            Meter(part.stem, 0, "MB", everywhere=True) as meter,
        ):
            etag_file.write_text(headers.get("ETag", ""), "utf-8")
            meter.begin(stream.tell() / 1e6, size / 1e6)
            while chunk := response.read(1 << 20):
                stream.write(chunk)
                meter.advance(len(chunk) / 1e6)
            stream.flush()
            os.fsync(stream.fileno())
    if size and part.stat().st_size != size:
        raise HTTPException(f"it broke off before {size} bytes; the next try continues")
    return stated[1] if stated is not None else ""


def _opened(url: str, have: int, etag: str) -> Any:
    """The server's answer to a request for what comes after the bytes that are here."""
    asked = request.Request(url, headers={"User-Agent": "vit", "Accept-Encoding": "identity"})
    if have:
        asked.add_header("Range", f"bytes={have}-")
        # Without this a file that has changed meanwhile would be appended to the old one's start.
        asked.add_header("If-Range", etag)
    opener = request.OpenerDirector()
    for handler in HANDLERS:
        opener.add_handler(handler())
    return opener.open(asked, timeout=TIMEOUT_SECONDS)


def _other_digest(path: Path, sha256: str) -> str:
    """The fault of a file whose SHA-256 does not begin as given, else ""."""
    actual = _digest(path, "sha256", path.stat().st_mtime_ns).hex() if sha256 else ""
    return "" if actual.startswith(sha256) else f"does not have the SHA-256 {sha256}, but {actual}"


@lru_cache(maxsize=64)
def _digest(path: Path, kind: str, changed: int) -> bytes:
    """Digest of a file; computed once in a process for one that does not change."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, kind).digest()
