"""Images that are opened one by one, wherever they are stored.

Shapes: n images.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from copy import copy
from typing import Any, Literal, Self

import numpy as np

Kind = Literal["content", "path"]
"""Later runs know an image by bytes of its file, or by its name and their number."""


class Opened(ABC):
    """n images, at `places` among those of a store.

    A subclass sets `places`, int64 `n`, and opens one image; the rest is for stores that can do
    more. Worker processes get a copy by pickle or fork.
    """

    places: np.ndarray

    @abstractmethod
    def __getitem__(self, index: int) -> Any:
        """The image `self.places[index]` of the store: the bytes of its file (with a name for
        messages: `vit.data.decode.NamedBytes`), a PIL image, or an array `h w` or `h w c`.

        Raises ImageError if it cannot be read.
        """

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def select(self, indices: np.ndarray) -> Self:
        """The images at `indices`, in that order."""
        chosen = copy(self)
        chosen.places = self.places[indices]
        return chosen

    def in_blocks(self) -> tuple[np.ndarray, int] | None:
        """The block of each image, int64 `n`, and how many blocks are mixed at a time, if it is
        cheap to read images block by block."""
        return None

    def contents_digest(self) -> str | None:
        """A digest of names and contents, if the store has one of each image."""
        return None

    def known_by(self) -> list[Kind]:
        """Kinds by which later runs know the images, the best first; empty without lasting names.

        "content" is for bytes of files.
        """
        return ["path"]

    def size_of(self, index: int) -> int:
        """Bytes of the file of an image, if the store knows them unread, or 0."""
        return 0

    def pieces(
        self, index: int, cut: Callable[[int], list[tuple[int, int]]]
    ) -> tuple[int, list[bytes]]:
        """The bytes of the file of an image, counted, and those in pieces: `cut` makes first byte
        and length of each from the count. Raises ImageError or OSError."""
        content = self[index]
        return len(content), [content[first : first + n] for first, n in cut(len(content))]
