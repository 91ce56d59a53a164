"""Weights by name or address: hf://org/repo[/file][@revision], gs://bucket/file, https://host/file.

hf:// goes through huggingface_hub (extra `hub`), with its cache, HF_ENDPOINT and HF_HUB_OFFLINE.
The others, and the names of vit/checkpoints/published.py, are kept by `vit.checkpoints.download`.
"""

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vit.cache import cache_directory
from vit.checkpoints import published
from vit.checkpoints.download import download, offline, say
from vit.checkpoints.files import IN_DIRECTORY, kind_of, reason
from vit.checkpoints.published import Published
from vit.errors import UserError, needed

GOOGLE = "https://storage.googleapis.com"
_ADDRESS = re.compile(r"^(hf|gs|https)://")
_HF = re.compile(r"^hf://(?P<repo>[^/@]+/[^/@]+)(?:/(?P<file>[^@]+))?(?:@(?P<revision>.+))?$")
TRAINED_ON = "trained_on"
"""A file beside weights: digests of the images that they were trained on."""
_DESCRIPTIONS = ("config.json", "preprocessor_config.json", "trust.safetensors", TRAINED_ON)
HUB_SECONDS = 8
"""How long the hub may be silent before its cache is used."""


def is_address(path: str | Path) -> bool:
    """True for an address to fetch, False for a local path."""
    return isinstance(path, str) and _ADDRESS.match(path) is not None


def fetch(address: str) -> Path:
    """The local file of an address, downloaded if it is not cached yet."""
    if address.startswith("hf://"):
        return _fetch_huggingface(address)
    return download(_url(address), name=address, check=kind_of)


def _url(address: str) -> str:
    return re.sub("^gs://", f"{GOOGLE}/", address)


def locate(weights: str | Path) -> tuple[str | Path, Published | None]:
    """The local path of a name, an address or a path; with the row of the table for a name."""
    row = published.named(weights)
    if row is not None:
        return fetch_published(row), row
    return (fetch(str(weights)) if is_address(weights) else weights), None


def record_of(weights: str | Path) -> Path | None:
    """The file TRAINED_ON of weights, if it is in their directory or run."""
    if published.named(weights) or (is_address(weights) and not str(weights).startswith("hf://")):
        return None
    place = Path(locate(weights)[0]).expanduser()
    folders: list[Path] = []
    for path in (place, place.resolve()):  # a link may lead to a run, or be in one
        if path.is_dir() and path.suffix != ".ckpt":
            folders += [path / "model", path]
        else:
            folders += [path.parent, path.parent.parent / "model"]  # RUN/checkpoints/best.ckpt
    return next((file for folder in folders if (file := folder / TRAINED_ON).is_file()), None)


def fetch_published(row: Published, folder: Path | None = None) -> Path:
    """The local file of published weights, downloaded if it is not in `folder` yet.

    `folder`: a cache, by default `vit.cache.cache_directory()`. Prints host, size and licence.
    """
    target, url = published_path(row, folder), _url(row.address)
    if not target.is_file() and not offline():
        say(f"{row.name}: {urlsplit(url).hostname}, {row.amount}, licence {row.terms}")
    remedy = (
        f"on a machine with a network run `vit download {row.name} --to DIR`, and copy what is in "
        f"DIR to {folder or cache_directory()}; or put the file at {target}"
    )
    digest = row.sha256 or ""
    return download(url, name=row.name, target=target, sha256=digest, check=kind_of, remedy=remedy)


def published_path(row: Published, folder: Path | None = None) -> Path:
    """Where the file of published weights is kept."""
    file_name = row.address.rpartition("/")[2]
    return (folder or cache_directory()) / "weights" / row.name / file_name


def _fetch_huggingface(address: str) -> Path:
    parts = _HF.match(address)
    if parts is None:
        raise UserError(f"{address!r} is not hf://org/repo, hf://org/repo/file or ...@revision")
    hub = needed("huggingface_hub", "hub")
    names = [parts["file"]] if parts["file"] else IN_DIRECTORY
    silence = _silence(hub, parts["repo"], parts["revision"])
    try:
        for name in names:
            folder = hub.snapshot_download(
                parts["repo"],
                revision=parts["revision"],
                allow_patterns=[*_DESCRIPTIONS, name],
                local_files_only=bool(silence),
            )
            if (path := Path(folder, name)).is_file():
                return path
    except Exception as error:  # the library passes on the errors of its own HTTP library
        raise UserError(
            f"{address} cannot be fetched ({silence or reason(error)}); copy the cache "
            "(HF_HOME) of a machine with a network, or give a local file"
        ) from error
    raise UserError(f"{address} has no {' or '.join(names)}")


def _silence(hub: Any, repository: str, revision: str | None) -> str:
    """Why only the cache can be used, else "". The library waits for a silent hub for ever."""
    if offline():
        return "HF_HUB_OFFLINE is set"
    try:
        hub.model_info(repository, revision=revision, timeout=HUB_SECONDS)
    except hub.errors.HfHubHTTPError:
        return ""  # an answer, which snapshot_download gets as well
    except Exception as error:
        return reason(error)
    return ""
