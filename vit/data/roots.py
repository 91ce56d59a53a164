"""Roots of images that are neither class folders nor lists of files: who reads them.

Readable without torch.
"""

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit.errors import UserError, did_you_mean_beside
from vit.tables import objects

if TYPE_CHECKING:  # torch, which names of data sets do not need
    from vit.data.settings import Reading
    from vit.data.sources import Splits


class Source(ABC):
    """One more kind of root: a row of the table `sources`, made without arguments.

    A root is the text of data.root, which may name nothing that exists, or images of a Python
    program: a tuple of those for train, val and test.
    """

    @abstractmethod
    def takes(self, root: Any) -> bool:
        """Whether it is of this kind. UserError if it is, and cannot be read.

        A look at names or at one file, and no import of torch: every root is shown to all sources,
        until one takes it.
        """

    @abstractmethod
    def splits(self, root: Any, reading: "Reading") -> "Splits":
        """The splits of a root that it takes; `vit.data.folder.part_splits` makes them of images
        and classes. UserError if they cannot be read."""

    def name(self, root: str) -> str:
        """A name for a run on it."""
        return place_name(root)


def source_of(root: Any) -> Source | None:
    """The first source that takes `root`; None for class folders, lists, and what is not there."""
    sources: list[Source] = [kind() for kind in objects("sources").values()]
    return next((source for source in sources if source.takes(root)), None)


def exists(root: Any) -> bool:
    """Whether there is a file or folder, or a source that takes it. UserError as of `takes`."""
    is_place = isinstance(root, str) and os.path.exists(os.path.expanduser(root))
    return is_place or source_of(root) is not None


def check_root(root: Any) -> None:
    """UserError if `root` does not exist, or cannot be read here."""
    if not exists(root):
        raise UserError(f"data folder {root} does not exist{did_you_mean_beside(str(root))}")


def root_name(root: str) -> str:
    """The name of a folder or list of images; of shards that of their folder."""
    source = source_of(root)
    return place_name(root) if source is None else source.name(root)


def place_name(root: str) -> str:
    """The name of a folder, or that of a file without its last extension."""
    place = Path(root).expanduser().resolve()
    return place.name if place.is_dir() else place.stem
