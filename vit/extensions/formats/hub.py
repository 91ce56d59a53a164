"""Weights by address: hf://org/repo[/file][@revision], gs://bucket/file, https://host/file.

hf:// goes through huggingface_hub (extra `hub`), with its cache, HF_ENDPOINT and HF_HUB_OFFLINE.
The others are kept by `vit.extensions.formats.download`. Loads torch only for a download.
"""

import re
from pathlib import Path
from typing import Any

from typing_extensions import override

from vit.errors import UserError, needed
from vit.extensions.formats.download import download, offline
from vit.weights.names import TRAINED_ON, Names

GOOGLE = "https://storage.googleapis.com"
_ADDRESS = re.compile(r"^(hf|gs|https)://")
_HF = re.compile(r"^hf://(?P<repo>[^/@]+/[^/@]+)(?:/(?P<file>[^@]+))?(?:@(?P<revision>.+))?$")
_DESCRIPTIONS = (
    *("config.json", "preprocessor_config.json", "processor_config.json", "open_clip_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "README.md"),
    *("trust.safetensors", TRAINED_ON),
)
HUB_SECONDS = 8
"""How long the hub may be silent before its cache is used."""


class Addresses(Names):
    """Row of the table `names`."""

    @override
    def fetch(self, address: str) -> Path | None:
        """The local file, downloaded if it is not cached yet."""
        return fetch(address) if is_address(address) else None


def is_address(path: str | Path) -> bool:
    """True for an address to fetch, False for a local path."""
    return isinstance(path, str) and _ADDRESS.match(path) is not None


def fetch(address: str) -> Path:
    """The local file of an address, downloaded if it is not cached yet."""
    if address.startswith("hf://"):
        return _fetch_huggingface(address)
    return download_weights(address, name=address)


def download_weights(address: str, **options: Any) -> Path:
    """`download` of a file of weights at gs:// or https://."""
    from vit.extensions.formats.files import kind_of  # torch

    return download(url_of(address), check=kind_of, **options)


def url_of(address: str) -> str:
    """The URL of gs:// or https://."""
    return re.sub("^gs://", f"{GOOGLE}/", address)


def _fetch_huggingface(address: str) -> Path:
    from vit.weights.archives import reason  # torch
    from vit.weights.weight_file import IN_DIRECTORY

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
    from vit.weights.archives import reason  # torch

    if offline():
        return "HF_HUB_OFFLINE is set"
    try:
        hub.model_info(repository, revision=revision, timeout=HUB_SECONDS)
    except hub.errors.HfHubHTTPError:
        return ""  # an answer, which snapshot_download gets as well
    except Exception as error:
        return reason(error)
    return ""
