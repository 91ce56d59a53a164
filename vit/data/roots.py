"""Roots of images that are neither class folders nor lists of files: who reads them.

Readable without torch.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit.data.scan import entries
from vit.tables import NotInstalled, made, rows

if TYPE_CHECKING:  # torch, which names of data sets do not need
    from vit.data.settings import Reading
    from vit.data.sources import Splits


class Source(ABC):
    """Another kind of root: a row of the table `sources`, made without arguments.

    The row is named by words such as .npz, one of which is in a root or in the name of a file there
    before its module is imported. A root may name nothing that exists, or be images of a Python
    program: a `tuple` of those for train, val and test.
    """

    @abstractmethod
    def takes(self, root: object) -> bool:
        """True for a root of this kind. UserError if it is, and cannot be read.

        A look at names or at one file, and no import of torch.
        """

    @abstractmethod
    def splits(self, root: Any, reading: "Reading") -> "Splits":
        """The splits of a root that it takes; `vit.data.labelling.make_splits` makes them of images
        and labels. UserError if they cannot be read."""


def source_of(root: object) -> Source | None:
    """The first source that takes `root`; None for class folders, plain lists, and what is not
    there. NotInstalled for a missing source of what is no file or folder."""
    left_out = [NotInstalled] if place_of(root) else []
    for row in rows_for(root):
        with suppress(*left_out):
            if (source := made(row, Source)).takes(root):
                return source
    return None


def rows_for(root: object) -> list[str]:
    """The rows of sources of which a word is in the text of a root, or in that of a file there."""
    text, table = "\n".join(_names(root)).lower(), rows("sources")
    return [row for words, row in table.items() if any(w in text for w in words.lower().split())]


def _names(root: object) -> Iterator[str]:
    """The root, and files in a folder and in the first folder there; of an object its type."""
    yield root if isinstance(root, str) else type(root).__name__
    place = place_of(root)
    for _ in range(3):  # such as data/train/0.tar
        if os.path.isdir(place):
            inside = [entry for entry in entries(place) if not entry.name.startswith(".")]
            yield from (entry.name for entry in inside if not entry.is_dir())
            place = next((entry.path for entry in inside if entry.is_dir()), "")


def place_of(root: object) -> str:
    """The path of a root that is a file or folder, or ""."""
    place = os.path.expanduser(root) if isinstance(root, str) else ""
    return place if os.path.exists(place) else ""


def exists(root: object) -> bool:
    """True for a file, a folder, or a root that a source takes. UserError as of `takes`."""
    return bool(place_of(root)) or source_of(root) is not None


def root_name(root: str) -> str:
    """The name of a folder, of a file without its last extension, or of the folder of shards."""
    place = Path(root).expanduser().resolve()
    if root.endswith(".tar") and not place.is_file():
        return place.parent.name
    return place.name if place.is_dir() else place.stem
