"""Published weights by name: NAME.TAG -> address, digest, licence and preprocessing.

The table is published.json, a row a line, the default tag of an architecture first. `source`
confirms a row: an entry of timm, a weight enum of torchvision, or a page by its key in "pages".
"defaults": the weights that timm and torchvision mean by a name without a tag.
tests/checkpoints/test_published.py derives both again.
"""

import json
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from vit.checkpoints.refusals import reason
from vit.errors import UserError, did_you_mean, did_you_mean_beside, shorten
from vit.models.config import ViTConfig
from vit.models.zoo import canonical_name, model_config

_HUB_PREFIX = re.compile(r"^(hf-hub:|hf_hub:)")
_REPOSITORY = re.compile(r"^[\w-][\w.-]*/[\w.-]+$")
# A name has at most the hub's one slash, and does not end like a file.
_NAME = re.compile(r"^([A-Za-z][\w-]*/)?[A-Za-z][\w-]*(\.\w+)?$")
_FILE = re.compile(r"\.(safetensors|npz|ckpt|pth?|pt|bin|json|gz|zip)$")


@dataclass(frozen=True, kw_only=True)
class Published:
    """One row of the table. The fields that end in `source`, and `images`, are keys of `pages`."""

    name: str
    """NAME.TAG; NAME is an architecture of `vit models`."""
    address: str
    format: str
    """google, timm or torchvision."""
    bytes: int
    estimated: bool
    """`bytes` follows from the number of parameters only."""
    licence: str
    """SPDX identifier, in lower case."""
    outputs: int
    """Classes of the head; 0 without one, or with one of zeros."""
    image_size: int
    """Side of the images, in pixels, for which the accuracy is published."""
    crop_fraction: float
    interpolation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    source: str
    sha256: str | None = None
    """Digest, or its first digits."""
    digest_source: str | None = None
    """None if the name of the file has the digest."""
    gated: bool = False
    """The licence's own terms have to be accepted first, on its page."""
    licence_source: str | None = None
    images: str | None = None
    """The page with image size and crop, if it is not `source`."""
    accuracy: float | None = None
    """Top-1 on ImageNet in percent; of a backbone, of a linear classifier on its features."""
    accuracy_source: str | None = None
    timm: str | None = None
    """timm's name of the same weights."""
    hub: str | None = None
    """Hugging Face's repository of the same weights."""

    @property
    def architecture(self) -> str:
        """The name without the tag."""
        return self.name.partition(".")[0]

    @property
    def non_commercial(self) -> bool:
        """The licence forbids commercial use."""
        return "-nc-" in self.licence

    @property
    def terms(self) -> str:
        """The licence, with a warning if it has unusual terms."""
        if self.non_commercial:
            return f"{self.licence}, NOT FOR COMMERCIAL USE"
        if self.gated:
            page = pages()[self.licence_source or ""]
            return f"{self.licence}, WITH TERMS OF ITS OWN, to be accepted first: {page}"
        return self.licence

    @property
    def facts(self) -> dict[str, Any]:
        """Fields of the configuration that its file does not record."""
        config = model_config(self.architecture)
        if not isinstance(config, ViTConfig) or config.rotary is None:
            return {}
        return {"rotary": config.rotary, "num_heads": config.num_heads}

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the images."""
        return self.image_size, self.image_size

    @property
    def amount(self) -> str:
        """'346 MB', or '~346 MB' if it is estimated."""
        number = self.bytes / 1e6
        text = f"{number / 1e3:.1f} GB" if number >= 1000 else f"{number:.0f} MB"
        return f"~{text}" if self.estimated else text

    def preprocess(self) -> dict[str, Any]:
        """`Preprocess.to_dict()`."""
        from vit.checkpoints.preprocessing import timms_fraction  # torch: not to print the table
        from vit.preprocessing import Preprocess

        fraction = self.crop_fraction
        if self.timm and self.images is None:  # timm's, unless another page states the sizes
            fraction = timms_fraction([self.image_size], fraction)
        return Preprocess.from_dict(
            {
                "image_size": self.size,
                "crop_fraction": fraction,
                "interpolation": self.interpolation,
                "mean": self.mean,
                "std": self.std,
            }
        ).to_dict()


@lru_cache(maxsize=1)
def table() -> dict[str, Published]:
    """Every row by its name, in the order of the file."""
    rows = {}
    for name, row in _file()["weights"].items():
        row |= {"mean": tuple(row["mean"]), "std": tuple(row["std"])}
        rows[name] = Published(name=name, **row)
    return rows


def pages() -> dict[str, str]:
    """Addresses of the pages that rows name as their sources."""
    return _file()["pages"]


def defaults() -> dict[str, str]:
    """Names of timm and torchvision without a tag -> the weights that those mean by them."""
    return _file()["defaults"]


@lru_cache(maxsize=1)
def _file() -> dict[str, dict[str, Any]]:
    path = Path(__file__).with_name("published.json")
    return json.loads(path.read_text(encoding="utf-8"))


def find(text: str) -> Published:
    """The row of a name: NAME.TAG, NAME alone (its default tag), timm's or the hub's spelling."""
    row = exact(text)
    if row is not None:
        return row
    if part := reason(text):
        raise UserError(f"{shorten(text)} has {part}, which is not supported here")
    bare = _HUB_PREFIX.sub("", text)
    theirs = bare.removeprefix("timm/")
    if theirs in defaults():
        rows = [
            row.name for row in table().values() if (row.timm or "").partition(".")[0] == theirs
        ]
        raise UserError(
            f"{theirs} means {defaults()[theirs]} in timm, which is not in the table; of this "
            f"architecture and image size there are {', '.join(rows)}"
        )
    name = architecture_of(bare.partition(".")[0])
    tags = [row for row in table() if row.partition(".")[0] == name]
    if tags:
        hint = f"; of this architecture there are {', '.join(tags)}"
    elif name is not None:
        hint = f": nobody publishes any of {name}"
    elif "/" in text and (hint := did_you_mean_beside(text)):
        pass
    elif _REPOSITORY.match(bare):
        hint = f"; a repository of the hub is hf://{bare}"
    else:
        architectures = dict.fromkeys(row.architecture for row in table().values())
        hint = did_you_mean(bare, [*architectures, *table(), *_their_names()])
        hint = hint or did_you_mean_beside(text) or "; `vit models --weights` lists them"
    raise UserError(f"no file or directory {text!r}, and no published weights of that name{hint}")


def named(text: object) -> Published | None:
    """The row that `text` means; None for an address, a path, or a file of that name."""
    if not isinstance(text, str) or not text or "://" in text:
        return None
    if os.path.exists(os.path.expanduser(text)):
        return None
    row = exact(text)
    could_be = _HUB_PREFIX.match(text) or (_NAME.match(text) and not _FILE.search(text))
    return find(text) if row is None and could_be else row


def means_weights(text: str) -> bool:
    """True for a model's name that means weights too: with a tag, or a repository of the hub."""
    return "." in text or ("/" in text and architecture_of(text) is None)


def exact(text: str) -> Published | None:
    """The row of a name in full, in anybody's spelling; None without one."""
    bare = _HUB_PREFIX.sub("", text)
    theirs = _their_names().get(bare.removeprefix("timm/"))
    if theirs is not None:
        return table()[theirs]
    name, dot, tag = bare.partition(".")
    ours = architecture_of(name)
    if ours is None or dot:
        return table().get(f"{ours}.{tag.lower()}")
    return next((row for row in table().values() if row.architecture == ours), None)


def architecture_of(name: str) -> str | None:
    """Our name of an architecture; None for another text."""
    try:
        return canonical_name(name)
    except UserError:
        return None


@lru_cache(maxsize=1)
def _their_names() -> dict[str, str]:
    """Names of timm, torchvision and the hub -> ours."""
    names: dict[str, str] = {}
    for row in table().values():
        for theirs in (row.timm, row.source.removeprefix("torchvision "), row.hub):
            if theirs:
                names.setdefault(theirs, row.name)
    bare = {name: names[weights] for name, weights in defaults().items() if weights in names}
    return names | bare
