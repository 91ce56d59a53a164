"""Published weights by name: NAME.TAG -> address, digest, licence and preprocessing.

The table is published.json, a row a line, the default tag of an architecture first. `source`
confirms a row: an entry of timm, a weight enum of torchvision, or a page by its key in "pages".
"defaults": the weights that timm and torchvision mean by a name without a tag.
tests/extensions/formats/test_published.py derives both again.
"""

import json
import re
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from typing_extensions import override

from vit.errors import UserError, did_you_mean, did_you_mean_beside, shorten
from vit.extensions.formats.download import offline, say
from vit.extensions.formats.hub import download_weights, url_of
from vit.extensions.formats.refusals import reason
from vit.models.config import ViTConfig
from vit.models.zoo import model_config
from vit.weights.names import HUB_PREFIX, NamedWeights, Names, architecture_of
from vit.writing import cache_directory

_USUAL = re.compile(
    r"(apache|mit|bsd|cc0|cc-by|cc$|cdla|[al]?gpl|mpl|isc|unlicense|zlib|afl|ecl|eupl|epl|ofl|pddl|odc|"
    r"odbl|artistic|bsl-1|wtfpl|not stated)"
)
"""Beginnings of licences that many projects share."""
_REPOSITORY = re.compile(r"^[\w-][\w.-]*/[\w.-]+$")


@dataclass(frozen=True, kw_only=True)
class Published(NamedWeights):
    """Row of the table. The fields that end in `source`, and `images`, are keys of `pages`."""

    name: str
    """NAME.TAG."""
    address: str
    format: str
    """google, timm or torchvision."""
    bytes: int
    estimated: bool
    """`bytes` follows from the number of parameters only."""
    licence: str
    """SPDX identifier, in lower case."""
    outputs: int
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
    @override
    def architecture(self) -> str:
        """The name without the tag."""
        return self.name.partition(".")[0]

    @property
    def terms(self) -> str:
        """The licence, with a warning if it has unusual terms."""
        page = f", to be accepted first: {self.licence_page}" if self.gated else ""
        return warned(self.licence) + page

    @property
    def licence_page(self) -> str:
        """Address of the terms, if the table names a page; else ""."""
        return listing()["pages"][self.licence_source] if self.licence_source else ""

    @property
    @override
    def facts(self) -> dict[str, Any]:
        """Fields of the configuration that its file does not record."""
        config = model_config(self.architecture)
        if not isinstance(config, ViTConfig) or config.rotary is None:
            return {}
        return {"rotary": config.rotary, "num_heads": config.num_heads}

    @property
    @override
    def size(self) -> tuple[int, int]:
        """(height, width) of the images."""
        return self.image_size, self.image_size

    @property
    def amount(self) -> str:
        """'346 MB', or '~346 MB' if it is estimated."""
        number = self.bytes / 1e6
        text = f"{number / 1e3:.1f} GB" if number >= 1000 else f"{number:.0f} MB"
        return f"~{text}" if self.estimated else text

    @override
    def preprocess(self) -> dict[str, Any]:
        """`Preprocess.to_dict()`."""
        from vit.extensions.formats.preprocessing import timms_fraction  # torch
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

    def place(self, folder: Path | None = None) -> Path:
        """Place of its file. `folder`: by default `vit.writing.cache_directory()`."""
        file_name = self.address.rpartition("/")[2]
        return (folder or cache_directory()) / "weights" / self.name / file_name

    @override
    def path(self, folder: Path | None = None) -> Path:
        """The local file, downloaded if it is not in `folder` yet, a cache as for `place`.

        Prints host, size and licence before a download.
        """
        target, url = self.place(folder), url_of(self.address)
        if not target.is_file() and not offline():
            say(f"{self.name}: {urlsplit(url).hostname}, {self.amount}, licence {self.terms}")
        remedy = (
            f"on a machine with a network run `vit download {self.name} --to DIR`, and copy what "
            f"is in DIR to {folder or cache_directory()}; or put the file at {target}"
        )
        return download_weights(
            self.address, name=self.name, target=target, sha256=self.sha256 or "", remedy=remedy
        )


class PublishedNames(Names):
    """Row of the table `names`."""

    @override
    def find(self, word: str) -> Published | None:
        """The row of a name in full, in anybody's spelling."""
        bare = HUB_PREFIX.sub("", word)
        theirs = _their_names().get(bare.removeprefix("timm/"))
        if theirs is not None:
            return table()[theirs]
        name, dot, tag = bare.partition(".")
        ours = architecture_of(name)
        if ours is None or dot:
            return table().get(f"{ours}.{tag.lower()}")
        return next((row for row in table().values() if row.architecture == ours), None)

    @override
    def unknown(self, word: str) -> UserError:
        """The error for a word that names no weights, with the nearest names."""
        if part := reason(word):
            return UserError(f"{shorten(word)} has {part}, which is not supported here")
        bare = HUB_PREFIX.sub("", word)
        theirs = bare.removeprefix("timm/")
        defaults = listing()["defaults"]
        if theirs in defaults:
            rows = [n for n, row in table().items() if (row.timm or "").partition(".")[0] == theirs]
            return UserError(
                f"{theirs} means {defaults[theirs]} in timm, which is not in the table; of this "
                f"architecture and image size there are {', '.join(rows)}"
            )
        name = architecture_of(bare.partition(".")[0])
        tags = [row for row in table() if row.partition(".")[0] == name]
        if tags:
            hint = f"; of this architecture there are {', '.join(tags)}"
        elif name is not None:
            hint = f": nobody publishes any of {name}"
        elif "/" in word and (hint := did_you_mean_beside(word)):
            pass
        elif _REPOSITORY.match(bare):
            hint = f"; a repository of the hub is hf://{bare}"
        else:
            architectures = dict.fromkeys(row.architecture for row in table().values())
            hint = did_you_mean(bare, [*architectures, *table(), *_their_names()])
            hint = hint or did_you_mean_beside(word) or "; `vit models --weights` lists them"
        nothing = "no published weights of that name"
        return UserError(f"no file or directory {word!r}, and {nothing}{hint}")

    @override
    def of(self, architecture: str) -> list[str]:
        """Names of the weights of an architecture."""
        return [row.name for row in table().values() if row.architecture == architecture]

    @override
    def print_list(self, pattern: str, licence: str | None, *, as_json: bool) -> None:
        """The table, or a list of objects. UserError for a licence that no row has."""
        licences = {row.licence for row in table().values()}
        wanted = licence and licence.lower()
        if wanted is not None and wanted not in licences:
            choices = " | ".join(sorted(licences))
            raise UserError(f"--licence {licence} has no weights; choose {choices}")
        rows = [
            row
            for name, row in table().items()
            if fnmatchcase(name, pattern) and wanted in (None, row.licence)
        ]
        print(_objects(rows) if as_json else _lines(rows))


@lru_cache(maxsize=1)
def table() -> dict[str, Published]:
    """Rows by their names, in the order of the file."""
    rows = {}
    for name, row in listing()["weights"].items():
        row |= {"mean": tuple(row["mean"]), "std": tuple(row["std"])}
        rows[name] = Published(name=name, **row)
    return rows


@lru_cache(maxsize=1)
def listing() -> dict[str, dict[str, Any]]:
    """The file of the table: `weights`; `pages`, which rows name as their sources; and `defaults`,
    names of timm and torchvision without a tag -> the weights that those mean by them."""
    path = Path(__file__).with_name("published.json")
    return json.loads(path.read_text(encoding="utf-8"))


def warned(licence: str) -> str:
    """A licence, with a warning if it forbids commercial use or has terms of its own."""
    name = licence.lower()
    if re.search(r"\bnc\b|non-?commercial", name):
        return f"{licence}, NOT FOR COMMERCIAL USE"
    return licence if _USUAL.match(name) else f"{licence}, WITH TERMS OF ITS OWN"


def find(text: str) -> Published:
    """The row of a name: NAME.TAG, NAME alone (its default tag), timm's or the hub's spelling."""
    names = PublishedNames()
    if (row := names.find(text)) is None:
        raise names.unknown(text)
    return row


@lru_cache(maxsize=1)
def _their_names() -> dict[str, str]:
    """Names of timm, torchvision and the hub -> ours."""
    names: dict[str, str] = {}
    for row in table().values():
        for theirs in (row.timm, row.source.removeprefix("torchvision "), row.hub):
            if theirs:
                names.setdefault(theirs, row.name)
    defaults = listing()["defaults"].items()
    bare = {name: names[weights] for name, weights in defaults if weights in names}
    return names | bare


def _objects(rows: list[Published]) -> str:
    """JSON, with addresses of pages for their keys."""
    links = listing()["pages"]

    def linked(value: object) -> Any:
        return links.get(value, value) if isinstance(value, str) else value

    texts = [{key: linked(value) for key, value in asdict(row).items()} for row in rows]
    return json.dumps(texts, indent=2)


def _lines(rows: list[Published]) -> str:
    lines = [
        f"{'name':45} {'size':>8} {'outputs':>7} {'pixels':>6} {'top-1, %':>8}  "
        f"{'licence':22} {'source'}"
    ]
    for row in rows:
        top = "-" if row.accuracy is None else f"{row.accuracy:.1f}"
        lines.append(
            f"{row.name:45} {row.amount:>8} {row.outputs:7} {row.image_size:6} {top:>8}  "
            f"{row.licence + ' (gated)' * row.gated:22} {row.source}"
        )
    lines.append(
        "\ngated: the terms of the licence must be accepted first; a download shows where."
        "\n~: from the number of parameters. top-1: on ImageNet; for models without outputs, of a "
        "linear\nclassifier on their features. --json names the source of each value."
    )
    return "\n".join(lines)
