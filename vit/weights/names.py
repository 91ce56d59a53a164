"""Words that mean weights: names, asked of the table `names`, and addresses. Loads no torch."""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from vit.errors import UserError
from vit.models.fields import JsonObject
from vit.models.zoo import canonical_name
from vit.tables import made, rows

Answer = TypeVar("Answer")
TRAINED_ON = "trained_on"
"""A file beside weights: digests of the images that they were trained on."""
HUB_PREFIX = re.compile(r"^(hf-hub:|hf_hub:)")
# A name has at most the hub's one slash, and does not end like a file.
_NAME = re.compile(r"^([A-Za-z][\w-]*/)?[A-Za-z][\w-]*(\.\w+)?$")
_FILE = re.compile(r"\.(safetensors|npz|ckpt|pth?|pt|bin|json|gz|zip)$")


class NamedWeights(ABC):
    """Weights that have a name, and what is known of them beside their file."""

    name: str
    """In full."""
    outputs: int
    """Classes of the head; 0 without one, or with one of zeros."""

    @property
    @abstractmethod
    def architecture(self) -> str:
        """Our name of the architecture."""

    @property
    @abstractmethod
    def facts(self) -> JsonObject:
        """Fields of the configuration that the file does not record."""

    @property
    @abstractmethod
    def size(self) -> tuple[int, int]:
        """(height, width) of the images."""

    @abstractmethod
    def preprocess(self) -> JsonObject:
        """`Preprocess.to_dict()`."""

    @abstractmethod
    def path(self) -> Path:
        """The local file, fetched if it is not there yet. UserError if it cannot be."""


class Names:
    """An entry of the table `names`. It overrides the methods of what it knows."""

    def find(self, word: str) -> NamedWeights | None:
        """The weights of a name, in any spelling; None for another word."""
        return None

    def unknown(self, word: str) -> UserError | None:
        """The error for a word that names no weights, with the nearest names."""
        return None

    def of(self, architecture: str) -> list[str]:
        """Names of the weights of an architecture."""
        return []

    def print_list(self, pattern: str, licence: str | None, *, as_json: bool) -> None:
        """Prints the names that match, for `vit models --weights`."""

    def fetch(self, address: str) -> Path | None:
        """The local file of an address, fetched if it is not there yet; None for another kind of
        address. UserError if it cannot be fetched."""
        return None

    def classes(self, outputs: int) -> list[str] | None:
        """The classes of a head with so many outputs whose file names none."""
        return None

    def head_rows(
        self, names: Sequence[str] | None, outputs: int, wanted: Sequence[str]
    ) -> list[int | None] | None:
        """The row of a head for each wanted class, None for one that it lacks, where both are
        classes known here by several names; None in place of the list where they are not.

        `names`: of the head's `outputs` classes, None if its file names none.
        """
        return None


def entries() -> Iterator[Names]:
    """Entries of the table, imported one by one."""
    return (made(row, Names) for row in rows("names").values())


def architecture_of(name: str) -> str | None:
    """Our name of an architecture; None for another text."""
    try:
        return canonical_name(name)
    except UserError:
        return None


def means_weights(text: str) -> bool:
    """True for a model's name that means weights too: with a tag, or a repository of the hub."""
    return "." in text or ("/" in text and architecture_of(text) is None)


def _first(answers: Iterable[Answer | None]) -> Answer | None:
    return next((answer for answer in answers if answer is not None), None)


def exact(word: str) -> NamedWeights | None:
    """The weights of a name in full; None for another word."""
    return _first(entry.find(word) for entry in entries())


def find(word: str) -> NamedWeights:
    """The weights of a name. UserError for a word that names none."""
    row = exact(word)
    if row is None:
        raise _first(entry.unknown(word) for entry in entries()) or UserError(
            f"no file or directory {word!r}, and no published weights of that name"
        )
    return row


def named(text: object) -> NamedWeights | None:
    """The weights that `text` names; None for an address, a path, or a file of that name.
    UserError for a word that could be a name, and is none."""
    if not isinstance(text, str) or "://" in text or os.path.exists(os.path.expanduser(text)):
        return None
    if HUB_PREFIX.match(text) or (_NAME.match(text) and not _FILE.search(text)):
        return find(text)
    # Only an architecture's own spelling, such as R50+ViT-B/16, has other letters.
    return None if architecture_of(text.partition(".")[0]) is None else exact(text)


def locate(weights: str | Path) -> tuple[str | Path, NamedWeights | None]:
    """The local path of a name, an address or a path; with what is known of a name's weights."""
    row = named(weights)
    if row is not None:
        return row.path(), row
    if isinstance(weights, str) and "://" in weights:
        return _first(entry.fetch(weights) for entry in entries()) or weights, None
    return weights, None


def record_of(weights: str | Path) -> Path | None:
    """The file TRAINED_ON of weights, if it is in their directory or run."""
    if named(weights) is not None:
        return None
    place = Path(locate(weights)[0]).expanduser()
    for path in (place, place.resolve()):  # a link may lead to a run, or be in one
        folders = (path.parent, path.parent.parent / "model")  # RUN/checkpoints/best.ckpt
        if path.is_dir() and path.suffix != ".ckpt":
            folders = (path / "model", path)
        for folder in folders:
            if (file := folder / TRAINED_ON).is_file():
                return file
    return None


def class_names(outputs: int) -> list[str] | None:
    """The classes of a head with so many outputs whose file names none, if they are known."""
    return _first(entry.classes(outputs) for entry in entries() if outputs)


def head_rows(
    names: Sequence[str] | None, outputs: int, wanted: Sequence[str]
) -> list[int | None] | None:
    """`Names.head_rows` of the first entry that knows the classes."""
    return _first(entry.head_rows(names, outputs, wanted) for entry in entries())
