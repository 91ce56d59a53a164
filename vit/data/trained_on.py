"""The file trained_on beside weights: a digest of each image that they learned, and which images of
a set are among those. Shapes: n images."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from vit.console import Meter
from vit.data.decode import ImageError
from vit.data.items import Kind, Opened
from vit.data.sources import SPLIT_NAMES, ImageSet, PathList, Splits
from vit.errors import UserError
from vit.writing import write_bytes

MOST = 200_000
"""Images of a set of which contents are recorded."""
PIECE = 4_096
"""Bytes at the start, in the middle and at the end of an encoded image that its digest is of."""
FEW = 10
"""Images that are left to hold out, below which a remedy is named."""
READERS, SHARE = 8, 256
"""Threads that read files, and images that one takes at a time."""

KINDS: tuple[Kind, ...] = ("content", "path")
"""Besides the size of the encoded image, a digest is of pieces of it, or of its path below the
split's folder; its last bit says which."""
NONE = np.zeros(0, dtype=np.uint64)


class TrainedOn(NamedTuple):
    """Digests of the images that weights learned: uint64, ascending, each once."""

    before: np.ndarray = NONE
    """Digests of the runs that this one started from."""
    here: np.ndarray = NONE

    @property
    def all(self) -> np.ndarray:
        """Digests of all of the runs."""
        return np.union1d(self.before, self.here)

    def write(self, file: Path) -> None:
        """Writes a safetensors file, whole or not at all."""
        write_bytes(file, save(self._asdict()))

    @classmethod
    def read(cls, file: Path) -> "TrainedOn":
        """The content of a file. UserError if it is damaged, or something else."""
        try:
            parts = load(file.read_bytes())
            if any(part.dtype != np.uint64 or part.ndim != 1 for part in parts.values()):
                raise ValueError("other values")
            return cls(**{name: np.unique(part) for name, part in parts.items()})
        except (SafetensorError, OSError, ValueError, TypeError) as error:
            raise UserError(f"{file} lists no images; copy it again, or delete it") from error


def digests(sets: Iterable[ImageSet], *, shown: bool = True) -> np.ndarray | None:
    """Digests of all images of some sets; None if one has neither files nor lasting names."""
    values = [NONE]
    for images in sets:
        if (of_set := in_order(images, shown=shown)) is None:
            return None
        values.append(of_set)
    whole = np.unique(np.concatenate(values))
    return whole[whole > 0]


def in_order(images: ImageSet, *, shown: bool = True) -> np.ndarray | None:
    """Digests as above of the images of a set, uint64 `n`; 0 for one that cannot be read."""
    kinds = _kinds(images)
    return _values(images, kinds[0 if len(images) <= MOST else -1], shown) if kinds else None


@dataclass(frozen=True)
class Known:
    """Images that weights learned."""

    digests: np.ndarray
    weights: str
    """For people: which ones."""

    def mask(self, images: ImageSet, *, shown: bool = True) -> np.ndarray:
        """True `n` for the images that are among them."""
        seen = np.zeros(len(images), dtype=bool)
        for kind in _kinds(images):
            among = self.digests[self.digests & np.uint64(1) == KINDS.index(kind)]
            if len(among):
                seen |= np.isin(_values(images, kind, shown), among)
        return seen

    def count(self, images: ImageSet, name: str, *, shown: bool = True) -> str:
        """A sentence such as '37 of 100 test images were in the training of runs/a', or ''."""
        seen = int(self.mask(images, shown=shown).sum())
        text = f"{seen:,} of {len(images):,} {name} images were in the training of {self.weights}"
        return text if seen else ""

    def eligible(self, train: ImageSet, names: str) -> tuple[np.ndarray | None, list[str]]:
        """True `n` for the images of train that may be held out, or None for all; a note on it.

        `names`: of the splits that are cut.
        """
        unseen = ~self.mask(train)
        left = int(unseen.sum())
        if left == len(train):
            return None, []
        cut = f"{names} {'are' if ' and ' in names else 'is'} cut from"
        text = f"{cut} the {left:,} of {len(train):,} images that {self.weights} was not trained on"
        more = "; for a score that says more, give a test folder of others" if left < FEW else ""
        return unseen, [text + more]

    def held_out(self, splits: Splits, *, shown: bool = True) -> list[str]:
        """A sentence for each of val and test with images among them."""
        sets = [(name, s) for name, s in splits.present().items() if name != "train"]
        return [text for name, images in sets if (text := self.count(images, name, shown=shown))]


def _kinds(images: ImageSet) -> list[Kind]:
    """Kinds of digests that images have, the better one first."""
    if isinstance(images.items, Opened):
        return images.items.known_by()
    return ["path"] if isinstance(images.items, np.ndarray) else ["content", "path"]


def _values(images: ImageSet, kind: Kind, shown: bool = True) -> np.ndarray:
    """uint64 `n`; 0 for an image that cannot be read."""
    values = np.zeros(len(images), dtype=np.uint64)
    total, readers = len(images), READERS if isinstance(images.items, PathList) else 1
    with (
        ThreadPool(readers) as pool,
        Meter("digests of images", total, "img", shown=shown) as meter,
    ):
        for at, value in enumerate(pool.imap(partial(_value, images, kind), range(total), SHARE)):
            values[at] = value
            meter.advance()
    return values


def _value(images: ImageSet, kind: Kind, at: int) -> int:
    """The digest of an image."""
    items: Any = images.items
    try:
        if kind == "path":
            name = images.names.name(at)
            above, _, below = name.partition("/")
            pieces = [os.fsencode(below if above.lower() in SPLIT_NAMES else name)]
            size = os.path.getsize(items[at]) if isinstance(items, PathList) else 0
            size = items.size_of(at) if isinstance(items, Opened) else size
        elif isinstance(items, PathList):
            with open(items[at], "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                pieces = [os.pread(file.fileno(), n, first) for first, n in _pieces(size)]
        else:
            size, pieces = items.pieces(at, _pieces)
    except (OSError, ImageError):
        return 0
    content = f"{size}\0".encode() + b"".join(pieces)
    digest = blake2b(content, digest_size=8).digest()
    return int.from_bytes(digest, "little") & ~1 | KINDS.index(kind)


def _pieces(size: int) -> list[tuple[int, int]]:
    """First byte and length of each piece of an encoded image."""
    if size <= 3 * PIECE:
        return [(0, size)]
    return [(first, PIECE) for first in (0, (size - PIECE) // 2, size - PIECE)]
