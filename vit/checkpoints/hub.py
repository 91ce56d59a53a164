"""Weights by address: hf://org/repo[/file][@revision], gs://bucket/file, https://host/file.

Nothing here runs unless an address was given. hf:// goes through huggingface_hub (extra `hub`),
with its cache, HF_ENDPOINT for mirrors and HF_HUB_OFFLINE. The others are kept in VIT_CACHE (by
default ~/.cache/vit), resumed where they broke off, and checked; VIT_GS_ENDPOINT replaces
https://storage.googleapis.com. A file in the cache is used without asking the network.
"""

import base64
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urldefrag
from urllib.request import Request, urlopen

from vit.cache import cache_directory
from vit.errors import UserError
from vit.writing import write_json

_ADDRESS = re.compile(r"^(hf|gs|https)://")
_HF = re.compile(r"^hf://(?P<repo>[^/@]+/[^/@]+)(?:/(?P<file>[^@]+))?(?:@(?P<revision>.+))?$")
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_DESCRIPTIONS = ("config.json", "preprocessor_config.json")
_CHUNK = 1 << 20

Progress = Callable[[int, int], object]
"""Receives bytes so far and in all (0 where the server does not say)."""


def is_address(path: str | Path) -> bool:
    """Whether this names something to fetch rather than a local file."""
    return isinstance(path, str) and _ADDRESS.match(path) is not None


def fetch(address: str, progress: Progress | None = None) -> Path:
    """The local file of an address, downloaded where it is not cached yet.

    UserError, in one line, without network, for a wrong address, or when the content is damaged.
    """
    if address.startswith("hf://"):
        return _fetch_huggingface(address)
    if address.startswith("gs://"):
        endpoint = os.environ.get("VIT_GS_ENDPOINT", "https://storage.googleapis.com")
        return download(f"{endpoint.rstrip('/')}/{address.removeprefix('gs://')}", progress)
    return download(address, progress)


def download(url: str, progress: Progress | None = None) -> Path:
    """A file by http(s); `#sha256=...` at the end of the address is checked.

    A transfer that broke off is continued, if the server still has the same file (ETag).
    """
    url, fragment = urldefrag(url)
    name = url.split("?")[0].rstrip("/").rsplit("/", 1)[-1] or "weights"
    target = cache_directory() / hashlib.sha256(url.encode()).hexdigest()[:16] / name
    if target.is_file():
        _check_fragment(target, fragment, url)
        return target
    if _offline():
        raise UserError(f"{url} is not in the cache, and HF_HUB_OFFLINE forbids the network")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{name}.part")
    try:
        with _bar(name) as bar:
            headers = _transfer(url, part, progress or bar)
    except HTTPError as error:
        answer = f"{error.code} {error.reason}"
        raise UserError(f"{url} cannot be fetched: the server says {answer}") from error
    except (URLError, HTTPException, OSError) as error:
        reason = getattr(error, "reason", error)
        raise UserError(
            f"{url} cannot be fetched ({reason}); check the network, or give a local file. "
            "What has arrived is kept and will be continued"
        ) from error
    _check_hash(part, headers, url)
    _check_fragment(part, fragment, url)
    part.replace(target)
    _state(part).unlink(missing_ok=True)
    return target


@contextmanager
def _bar(name: str) -> Iterator[Progress]:
    """A progress bar with rate and remaining time, where somebody looks at the terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (*Progress.get_default_columns()[:2], DownloadColumn())
    columns = (*columns, TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


def _offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")


def _state(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _transfer(url: str, part: Path, progress: Progress) -> dict[str, str]:
    """Fills `part`, from where it ended if the file is still the same one; the answer's headers."""
    have = part.stat().st_size if part.is_file() else 0
    state = json.loads(_state(part).read_text()) if _state(part).is_file() else {}
    request = Request(url, headers={"User-Agent": "vit", "Accept-Encoding": "identity"})
    if have and state.get("etag"):
        request.add_header("Range", f"bytes={have}-")
        # Without this a file that has changed meanwhile would be glued to the old one's start.
        request.add_header("If-Range", state["etag"])
    answer: HTTPResponse
    with urlopen(request, timeout=30) as answer:
        headers = {name.lower(): value for name, value in answer.headers.items()}
        if answer.status != 206:
            have = 0
        length = int(headers.get("content-length", 0))
        total = have + length if length else 0
        write_json(_state(part), {"etag": headers.get("etag"), "url": url})
        with part.open("ab" if have else "wb") as stream:
            done = have
            while chunk := answer.read(_CHUNK):
                stream.write(chunk)
                done += len(chunk)
                progress(done, total)
    if total and part.stat().st_size != total:
        raise HTTPException(f"it broke off after {part.stat().st_size} of {total} bytes")
    return headers


def _check_hash(part: Path, headers: dict[str, str], url: str) -> None:
    """Google's storage sends the MD5 of the whole file."""
    found = re.search(r"md5=([A-Za-z0-9+/=]+)", headers.get("x-goog-hash", ""))
    if found is None:
        return
    with part.open("rb") as stream:
        digest = hashlib.file_digest(stream, "md5").digest()
    if base64.b64encode(digest).decode() != found[1]:
        part.unlink()
        raise UserError(f"{url} arrived damaged (its MD5 differs); try again")


def _check_fragment(path: Path, fragment: str, url: str) -> None:
    if not fragment:
        return
    if not re.fullmatch(r"sha256=[0-9a-fA-F]{64}", fragment):
        raise UserError(f"#{fragment} is not sha256= and 64 hexadecimal digits")
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != fragment.removeprefix("sha256=").lower():
        path.unlink()
        raise UserError(f"{url} does not have the given SHA-256, but {digest}; it was removed")


def hub_library() -> Any:
    """huggingface_hub, imported when needed; UserError names the extra."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise UserError("hf:// needs huggingface_hub: pip install 'vit[hub]'") from error
    return huggingface_hub


def _fetch_huggingface(address: str) -> Path:
    found = _HF.match(address)
    if found is None:
        raise UserError(f"{address!r} is not hf://org/repo, hf://org/repo/file or ...@revision")
    hub = hub_library()
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

    def get(file: str) -> Path:
        return Path(hub.hf_hub_download(found["repo"], file, revision=found["revision"]))

    try:
        for name in _DESCRIPTIONS:  # beside the weights, in the same snapshot
            try:
                get(name)
            except LocalEntryNotFoundError:
                if not _offline():
                    raise
            except EntryNotFoundError:
                continue
        for name in (found["file"],) if found["file"] else _WEIGHTS:
            try:
                return get(name)
            except LocalEntryNotFoundError:
                raise
            except EntryNotFoundError:
                continue
    except LocalEntryNotFoundError as error:
        why = "HF_HUB_OFFLINE forbids the network" if _offline() else "the hub does not answer"
        raise UserError(f"{address} is not in the cache, and {why}") from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise UserError(f"{address} cannot be fetched: {str(error).splitlines()[0]}") from error
    raise UserError(f"{address} has no {found['file'] or ' or '.join(_WEIGHTS)}")
