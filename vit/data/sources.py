"""Sets of images that are not decoded yet, and the splits of one data set.

Shapes: n images, h w pixels, k classes.
"""

import os
import re
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np

from vit.data.items import Opened
from vit.errors import UserError, printable, some_of

if TYPE_CHECKING:  # torch, which names of data sets do not need
    from vit.data.settings import ModelClasses

SplitName = Literal["train", "val", "test"]
Origin = Literal["given", "cut from train", "of the task", "none"]

SPLITS: tuple[SplitName, ...] = ("train", "val", "test")
"""The last one of a set is the likeliest to have been held out."""
SPLIT_NAMES: dict[str, SplitName] = {
    **{name: name for name in SPLITS},
    **{"valid": "val", "validation": "val"},
}
"""Names of folders that are splits, whatever is beside them."""
SPLIT_WORDS: dict[str, SplitName] = {
    **SPLIT_NAMES,
    **{"training": "train", "testing": "test", "dev": "val", "eval": "val"},
}
"""Names of splits where nothing else is meant, as in a column of splits."""


def split_of(name: str) -> SplitName | None:
    """The split of a name with a whole word for one, such as seg_train; None without, or of two."""
    words = re.split(r"[\W\d_]+", name.lower())
    splits: set[SplitName] = {SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS}
    return splits.pop() if len(splits) == 1 else None


def by_split(root: str, words: Iterable[str]) -> dict[SplitName, str]:
    """The word of each split among `words`, or of train without any; UserError for two of one."""
    words = list(words)
    named = {split_of(word) or "train": word for word in words}
    splits: dict[SplitName, str] = {name: named[name] for name in SPLITS if name in named}
    if len(splits) < len(words):
        raise UserError(f"{root} has {some_of(words)}: keep one name for each split")
    return splits


class PathList:
    """Paths in one block of bytes; `paths[i]` is `root` joined to the i-th name.

    A list of `str` takes several times the memory, and every worker would copy it page by page,
    because reading a `str` writes its reference count.
    """

    def __init__(self, names: Iterable[str | bytes], root: str = "") -> None:
        self.root = root
        block, ends = bytearray(), array("q", [0])
        for name in names:
            block += name if isinstance(name, bytes) else os.fsencode(name)
            ends.append(len(block))
        self._bytes = bytes(block)
        bounds = np.frombuffer(ends, dtype=np.int64)
        self._starts, self._ends = bounds[:-1], bounds[1:]

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> str:
        return os.path.join(self.root, self.name(index))

    def __iter__(self) -> Iterator[str]:
        return (self[index] for index in range(len(self)))

    def name(self, index: int) -> str:
        """The i-th name without `root`."""
        return os.fsdecode(self._bytes[self._starts[index] : self._ends[index]])

    def encoded(self) -> Iterator[bytes]:
        """The names as bytes of the file system."""
        ends = zip(self._starts.tolist(), self._ends.tolist(), strict=True)
        return (self._bytes[start:end] for start, end in ends)

    def digest(self) -> str:
        """BLAKE2b over the names, 16 hexadecimal digits."""
        digest = blake2b(digest_size=8)
        for name in self.encoded():
            digest.update(name + b"\0")
        return digest.hexdigest()

    def select(self, indices: np.ndarray | slice, root: str | None = None) -> "PathList":
        """The paths at `indices`, in that order, over the same bytes; below `root` if given."""
        view = PathList([], self.root if root is None else root)
        view._bytes = self._bytes
        view._starts, view._ends = self._starts[indices], self._ends[indices]
        return view

    def printable(self) -> "PathList":
        """The names alone; bytes that are not UTF-8 become '\N{REPLACEMENT CHARACTER}'."""
        if self._bytes.isascii():
            return self.select(slice(None), root="")
        return PathList(name.decode("utf-8", "replace") for name in self.encoded())


@dataclass
class ImageSet:
    """Images that are not decoded, and their labels."""

    items: PathList | np.ndarray | Opened
    """Paths, uint8 pixels `n h w` (gray) or `n h w 3` (RGB), or images of another store."""
    labels: np.ndarray
    """int64 `n`, or float32 `n k` of zeros and ones where images may have several labels."""
    names: PathList
    """Paths below the root, or names such as "digits/17"."""
    groups: PathList | None = None
    """Names of what no cut divides, such as the patient of each image."""

    def __post_init__(self) -> None:
        assert len(self.items) == len(self.labels) == len(self.names)

    def __len__(self) -> int:
        return len(self.items)

    def contents_digest(self) -> str | None:
        """A digest of names and contents, if their store has one of each, as shards have."""
        return self.items.contents_digest() if isinstance(self.items, Opened) else None

    def group_numbers(self) -> np.ndarray | None:
        """A number for each image, int64 `n`, that is equal in a group; None without groups."""
        return None if self.groups is None else group_numbers(self.groups)

    def digest(self, classes: Sequence[str]) -> str:
        """BLAKE2b over the names of the images, their labels, the names of the classes, and
        groups."""
        digest = blake2b(digest_size=16)
        for name in self.names.encoded():
            digest.update(name + b"\0")
        digest.update(np.ascontiguousarray(self.labels).tobytes())
        if self.groups is not None:
            digest.update(self.groups.digest().encode())
        digest.update("\0".join(classes).encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def select(self, indices: np.ndarray) -> "ImageSet":
        """The images at `indices`, in that order."""
        items = self.items
        items = items[indices] if isinstance(items, np.ndarray) else items.select(indices)
        groups = None if self.groups is None else self.groups.select(indices)
        return ImageSet(items, self.labels[indices], self.names.select(indices), groups)


@dataclass
class Splits:
    """The splits of one data set, and the classes of its train."""

    classes: list[str]
    """Empty where the images have no labels."""
    train: ImageSet
    val: ImageSet | None = None
    test: ImageSet | None = None
    multilabel: bool = False
    val_origin: Origin = "none"
    test_origin: Origin = "none"
    notes: list[str] = field(default_factory=list)
    """Lines for the user, such as on files that are left out."""

    def __post_init__(self) -> None:
        self.notes = [printable(note) for note in self.notes]

    def get(self, split: SplitName) -> ImageSet | None:
        return getattr(self, split)

    def present(self) -> dict[SplitName, ImageSet]:
        """The splits that are not None."""
        return {name: images for name in SPLITS if (images := self.get(name)) is not None}

    @property
    def scored(self) -> SplitName:
        """The split of `all_of_one`."""
        return max(self.present(), key=SPLITS.index)

    @property
    def digests(self) -> dict[str, str]:
        """Digests of the names and labels of each split."""
        return {name: images.digest(self.classes) for name, images in self.present().items()}

    def summary(self, seed: int) -> str:
        """A line with the sizes, and the splits that were cut from train by `seed`."""
        sizes = {name: len(images) for name, images in self.present().items()}
        origins = {"val": self.val_origin, "test": self.test_origin}
        cut = " and ".join(name for name, origin in origins.items() if origin == "cut from train")
        listed = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
        kinds = f"of {len(self.classes):,} classes" if self.classes else "without labels"
        line = f"{sum(sizes.values()):,} images {kinds}: {listed}"
        return f"{line} ({cut} cut from train, seed {seed})" if cut else line

    @property
    def class_counts(self) -> list[int]:
        """Training images of each class."""
        labels = self.train.labels
        if self.multilabel:
            return labels.sum(axis=0).astype(int).tolist()
        return np.bincount(labels, minlength=len(self.classes)).tolist()

    def per_class(self) -> str:
        """'train images per class: cat 120, dog 30'; of many classes both ends."""
        counts = self.class_counts
        pairs = [f"{name} {count:,}" for name, count in zip(self.classes, counts, strict=True)]
        if len(pairs) > 12:
            ordered = [pairs[at] for at in np.argsort(counts, kind="stable")]
            pairs = [f"fewest {', '.join(ordered[:3])}; most {', '.join(ordered[:-4:-1])}"]
        return f"train images per class: {', '.join(pairs)}"


class Mixed(NamedTuple):
    """Train and the images that are learned beside it, each once."""

    images: ImageSet
    others: tuple[np.ndarray, float]
    """Indices of those beside train, as often as they are shown, and `Mixture.ratio`."""
    digest: str
    unlabelled: ImageSet
    """The images beside train alone, without labels."""


class Mixture(ABC):
    """Images that are learned beside train."""

    paths: ClassVar[tuple[str, ...]] = ()
    """Arguments that are files or folders."""
    ratio: float
    """Images beside train for each image of train in a batch; 0 leaves them out."""

    @abstractmethod
    def mixed(self, splits: Splits) -> Mixed: ...

    @abstractmethod
    def check_loss(self, kind: str | None) -> None:
        """UserError for a kind of model.loss that cannot take the labels of these images."""


def all_of_one(
    images: ImageSet, model: "ModelClasses", split: SplitName = "test", notes: Sequence[str] = ()
) -> Splits:
    """Splits of which one has all images, for a model that exists; train is else empty."""
    sets: dict[SplitName, ImageSet] = {"train": images.select(np.arange(0)), split: images}
    about = {"multilabel": images.labels.ndim == 2, "notes": [*notes]}
    return Splits(model.names, **sets, val_origin="given", test_origin="given", **about)


def group_numbers(groups: Iterable[str]) -> np.ndarray:
    """A hash of each name, int64 `n`: a group has the same number in every set."""
    names = (name.encode("utf-8", "surrogateescape") for name in groups)
    digests = (blake2b(name, digest_size=8).digest() for name in names)
    return np.array([int.from_bytes(digest, signed=True) for digest in digests], np.int64)


def missing_files(paths: PathList) -> list[int]:
    """Indices, ascending, of the paths at which there is no regular file."""
    return [index for index, path in enumerate(paths) if not os.path.isfile(path)]
