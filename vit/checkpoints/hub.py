"""Weights by name or address: hf://org/repo[/file][@revision], gs://bucket/file, https://host/file.

Nothing here runs unless a name (vit/checkpoints/published.py) or an address was given. hf:// goes
through huggingface_hub (extra `hub`), with its cache, HF_ENDPOINT for mirrors and HF_HUB_OFFLINE.
The others are downloaded and kept by `vit.checkpoints.download`; VIT_GS_ENDPOINT replaces
https://storage.googleapis.com, and VIT_WEIGHTS_MIRROR stands before host and path of whatever is
fetched by name.
"""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vit.cache import cache_directory
from vit.checkpoints import published
from vit.checkpoints.digests import Digest
from vit.checkpoints.download import Unreachable, download, offline, say
from vit.checkpoints.published import Published
from vit.checkpoints.servers import server_of
from vit.errors import UserError

_ADDRESS = re.compile(r"^(hf|gs|https)://")
_HF = re.compile(r"^hf://(?P<repo>[^/@]+/[^/@]+)(?:/(?P<file>[^@]+))?(?:@(?P<revision>.+))?$")
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_DESCRIPTIONS = ("config.json", "preprocessor_config.json")
HUB_SECONDS = 8
"""How long the hub has to give its first answer; without one only its cache is used."""


def is_address(path: str | Path) -> bool:
    """Whether this names something to fetch rather than a local file."""
    return isinstance(path, str) and _ADDRESS.match(path) is not None


def fetch(address: str) -> Path:
    """The local file of an address, downloaded where it is not cached yet.

    UserError, in one line, without network, for a wrong address, or when the content is damaged.
    """
    if address.startswith("hf://"):
        return _fetch_huggingface(address)
    from vit.checkpoints.files import check_answer

    return download(_url(address), name=address, check=check_answer)


def _url(address: str) -> str:
    if not address.startswith("gs://"):
        return address
    endpoint = server_of("VIT_GS_ENDPOINT") or "https://storage.googleapis.com"
    return f"{endpoint}/{address.removeprefix('gs://')}"


def locate(weights: str | Path) -> tuple[str | Path, Published | None]:
    """The local path of a name, an address or a path; with the row of the table for a name.

    UserError as for `published.named`, `fetch` and `fetch_published`.
    """
    row = published.named(weights)
    if row is not None:
        return fetch_published(row), row
    return (fetch(str(weights)) if is_address(weights) else weights), None


def fetch_published(row: Published, folder: Path | None = None) -> Path:
    """The local file of published weights, downloaded where it is not in `folder` yet.

    `folder`: a cache, by default `vit.cache.cache_directory()`. Host, size and licence are printed
    before a download. A published digest is compared; where nobody publishes one, the file must
    have the row's size and layout, and its digest is recorded beside it and compared from then on.
    """
    target = published_path(row, folder)
    mirror = server_of("VIT_WEIGHTS_MIRROR")
    url = f"{mirror}/{row.address.partition('://')[2]}" if mirror else _url(row.address)
    if not target.is_file() and not offline():
        say(f"{row.name}: {urlsplit(url).hostname}, {row.amount}, licence {row.terms}")
    digest = Digest(row.sha256, "published") if row.sha256 is not None else None

    def check(path: Path) -> None:
        from vit.checkpoints.row_check import check_file  # with torch, for a new file only

        check_file(row, path)

    options: dict[str, Any] = {"digest": digest, "record": digest is None, "check": check}
    try:
        return download(url, name=row.name, target=target, **options)
    except Unreachable as error:
        there = [path.name for path in sorted(target.parent.glob("*.*")) if _is_weights(path)]
        raise UserError(
            f"{error}; where there is a network, run `vit download {row.name} --to DIR` and copy "
            f"what is in DIR to {folder or cache_directory()}, or put the file at {target}"
            + (f" (there is {there[0]})" if there else "")
        ) from error


def published_path(row: Published, folder: Path | None = None) -> Path:
    """Where the file of published weights is kept."""
    file_name = row.address.rpartition("/")[2]
    return (folder or cache_directory()) / "weights" / row.name / file_name


def _is_weights(path: Path) -> bool:
    return path.suffix in (".npz", ".pth", ".safetensors", ".bin")


def hub_library() -> Any:
    """huggingface_hub, imported when needed; UserError names the extra."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise UserError("hf:// needs huggingface_hub: pip install 'vitkit[hub]'") from error
    return huggingface_hub


def _fetch_huggingface(address: str) -> Path:
    parts = _HF.match(address)
    if parts is None:
        raise UserError(f"{address!r} is not hf://org/repo, hf://org/repo/file or ...@revision")
    hub = hub_library()
    with _quiet():
        silence = None if offline() else _silence(hub, parts["repo"], parts["revision"])
        return _from_hub(hub, address, parts, silence)


def _from_hub(hub: Any, address: str, parts: re.Match[str], silence: str | None) -> Path:
    """The file of weights. `silence`: why the hub cannot be asked, so that the cache must do."""
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

    cache_only = offline() or silence is not None

    def get(file: str) -> Path:
        return Path(
            hub.hf_hub_download(
                parts["repo"], file, revision=parts["revision"], local_files_only=cache_only
            )
        )

    try:
        for name in _DESCRIPTIONS:  # beside the weights, in the same snapshot
            try:
                get(name)
            except LocalEntryNotFoundError:
                if not cache_only:
                    raise
            except EntryNotFoundError:
                continue
        for name in (parts["file"],) if parts["file"] else _WEIGHTS:
            try:
                path = get(name)
            except LocalEntryNotFoundError:
                if not cache_only or name == _WEIGHTS[-1] or parts["file"]:
                    raise
            except EntryNotFoundError:
                continue
            else:
                if silence is not None:
                    say(f"the hub does not answer ({silence}); {address} is taken from its cache")
                return path
    except LocalEntryNotFoundError as error:
        if offline():
            why = "HF_HUB_OFFLINE forbids the network"
        else:
            why = (
                f"the hub does not answer ({silence or _first_line(error)}); give a local file, or "
                "fill the cache where there is a network and set HF_HUB_OFFLINE=1"
            )
        raise UserError(f"{address} is not in the cache, and {why}") from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise UserError(f"{address} cannot be fetched: {_first_line(error)}") from error
    except Exception as error:
        if not _is_of_http_library(error):
            raise
        raise UserError(
            f"{address} cannot be fetched ({_first_line(error)}); check the network, or give a "
            "local file"
        ) from error
    raise UserError(f"{address} has no {parts['file'] or ' or '.join(_WEIGHTS)}")


def _silence(hub: Any, repository: str, revision: str | None) -> str | None:
    """Why the hub cannot be asked, None if it answers.

    hf_hub_download tries for over a minute before it gives up; this asks once. In a thread, since
    looking up a host's name obeys no timeout.
    """
    from huggingface_hub.constants import ENDPOINT
    from huggingface_hub.errors import HfHubHTTPError

    endpoint = os.environ.get("HF_ENDPOINT") or ENDPOINT
    host = urlsplit(endpoint).hostname or endpoint
    say(f"asking the hub {host} for {repository} (for at most {HUB_SECONDS} s) ...")
    url = hub.hf_hub_url(repository, _DESCRIPTIONS[0], revision=revision)
    describe = hub.get_hf_file_metadata  # imports its HTTP library, which is not the hub's time
    answers: list[str | None] = []

    def ask() -> None:
        try:
            describe(url, timeout=HUB_SECONDS)
            answers.append(None)
        except HfHubHTTPError as error:
            status = getattr(error.response, "status_code", 0)
            answers.append(f"{host} says {status}" if status >= 500 else None)
        except Exception as error:  # whatever it is, it goes to the caller's thread as a reason
            answers.append(_first_line(error))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_SECONDS)
    return answers[0] if answers else f"{host} was silent for {HUB_SECONDS} s"


def _is_of_http_library(error: Exception) -> bool:
    """Whether httpx raised it, whose package has another name in each version of the hub's."""
    return type(error).__module__.partition(".")[0].startswith(("httpx", "httpcore", "requests"))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without huggingface_hub's warnings about each of its retries."""
    from huggingface_hub.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
