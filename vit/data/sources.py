"""Sets of images that are not decoded yet, and the fixed-seed cut of val and test from train.

Shapes: n images, h w pixels, k classes.
"""

import os
import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b, sha256
from typing import TYPE_CHECKING, Literal

import numpy as np

from vit.data.groups import FEWEST, cut_groups, divided_groups, group_numbers
from vit.errors import BELOW_ONE, UserError, check_range, printable, some_of
from vit.label_tree import inner_class

if TYPE_CHECKING:  # torch, which names of data sets do not need
    from vit.data.opened import Opened
    from vit.data.options import ModelClasses, Reading, Splitting

SplitName = Literal["train", "val", "test"]
Origin = Literal["given", "cut from train", "of the task", "none"]

SPLITS: tuple[SplitName, ...] = ("train", "val", "test")
"""The last one of a set is the likeliest to have been held out."""
SPLIT_NAMES: dict[str, SplitName] = {
    **{name: name for name in SPLITS},
    **{"valid": "val", "validation": "val"},
}
"""Names of folders that are splits, whatever is beside them."""
SPLIT_WORDS = SPLIT_NAMES | {"training": "train", "testing": "test", "dev": "val", "eval": "val"}
"""Names of splits where nothing else is meant, as in a column of splits."""


def split_of(name: str) -> SplitName | None:
    """The split of a name with a whole word for one, such as seg_train; None without, or of two."""
    words = re.split(r"[\W\d_]+", name.lower())
    splits: set[SplitName] = {SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS}
    return splits.pop() if len(splits) == 1 else None


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


RUN, RUNS = 64, 128
"""Files in a row that are a block, and blocks that are mixed at a time."""


@dataclass
class ImageSet:
    """Images that are not decoded, and their labels."""

    items: "PathList | np.ndarray | Opened"
    """Paths, uint8 pixels `n h w` (gray) or `n h w 3` (RGB), what a Dataset opens, or files in
    shards."""
    labels: np.ndarray
    """int64 `n`, or float32 `n k` of zeros and ones where images may have several labels."""
    names: PathList
    """Such as the path below the root, or "digits/17"."""
    groups: PathList | None = None
    """Names of what no cut divides, such as the patient of each image."""

    def __post_init__(self) -> None:
        assert len(self.items) == len(self.labels) == len(self.names)

    def __len__(self) -> int:
        return len(self.items)

    def in_blocks(self) -> tuple[np.ndarray, int]:
        """The block of each image, int64 `n`, and how many blocks are mixed at a time."""
        stored = getattr(self.items, "in_blocks", lambda: None)()
        return (np.arange(len(self)) // RUN, RUNS) if stored is None else stored

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
        """All splits but those that are None."""
        return {name: images for name in SPLITS if (images := self.get(name)) is not None}

    @property
    def digests(self) -> dict[str, str]:
        """Of the names and labels of each split."""
        return {name: images.digest(self.classes) for name, images in self.present().items()}

    def summary(self, seed: int) -> str:
        """One line: the sizes, and the splits that were cut from train by `seed`."""
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


def all_as_test(images: ImageSet, model: "ModelClasses", notes: Sequence[str] = ()) -> Splits:
    """All of `images` as the test set of a model that exists; train is empty."""
    none, several = images.select(np.arange(0)), images.labels.ndim == 2
    return Splits(model.names, none, None, images, several, test_origin="given", notes=[*notes])


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sorts runs of digits by value: 1, 2, 10; other characters by code point."""
    parts = re.split(r"([0-9]+)", name)
    return [(0, int(p), p) if p.isdecimal() and p.isascii() else (1, 0, p) for p in parts if p]


def class_order(names: Iterable[str]) -> list[str]:
    """The classes in the order of their indices."""
    return sorted(set(names), key=natural_key)


def held_out(
    keys: Sequence[str] | PathList,
    strata: Sequence[str],
    *,
    seed: int,
    val_fraction: float,
    test_fraction: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Indices of (train, val, test), each ascending: a stratified cut without a generator.

    The images of a stratum (a class) are ordered by a hash of (seed, stratum, key); the first are
    test, the next val. So an added image moves few others, and the test set does not depend on
    `val_fraction`. A fraction above 0 takes at least one image of each stratum, but train keeps
    one first: val gets the second, test the third.
    """
    members: dict[str, list[int]] = {}
    for index, stratum in enumerate(strata):
        members.setdefault(stratum, []).append(index)
    part = np.zeros(len(keys), dtype=np.int8)
    for stratum, indices in members.items():
        count = len(indices)
        num_val = min(_share(count, val_fraction), count - 1)
        num_test = min(_share(count, test_fraction), count - 1 - num_val)
        ordered = sorted(indices, key=lambda i: _hash(f"{seed}\0{stratum}\0{keys[i]}"))
        part[ordered[:num_test]] = 2
        part[ordered[num_test : num_test + num_val]] = 1
    train, val, test = (np.flatnonzero(part == number) for number in range(3))
    return train, val, test


def _hash(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).digest()


def _share(count: int, fraction: float) -> int:
    return max(1, int(count * fraction + 0.5)) if fraction > 0 else 0


def complete(
    classes: list[str],
    sets: Mapping[SplitName, ImageSet],
    keys: Sequence[str] | PathList,
    reading: "Reading",
    *,
    where: str,
    notes: Sequence[str] = (),
) -> Splits:
    """The splits given, `train` at least, and those cut from train: val, and test if it lacks both.

    Images with one label are cut class by class, those with several as a whole, and those in groups
    by whole groups. `keys` name the images of train, `where` the source in errors.

    Raises UserError if no class has an image to spare, if groups are asked for and there are none,
    or, of a `tree`, a class is no leaf.
    """
    cut, column = reading.cut, reading.columns.group
    if column is not None and sets["train"].groups is None:
        lacking = f"data.columns.group={column!r}: {where} has no such column"
        raise UserError(f"{lacking}; list the images in a CSV or Parquet file that has it")
    if reading.tree:
        _check_tree(classes, sets["train"])
    if "test" in sets or "val" in sets:
        cut = replace(cut, test_fraction=0.0)
    if "val" in sets:
        cut = replace(cut, val_fraction=0.0)
    together = cut.val_fraction + cut.test_fraction
    check_range("splits.val_fraction + splits.test_fraction", together, BELOW_ONE)
    parts, notes = dict(sets), list(notes)
    notes += divided_groups(where, column, (images.groups for images in sets.values()))
    if cut.val_fraction or cut.test_fraction:
        more, shortages = _cut(sets["train"], classes, keys, where, cut)
        parts, notes = parts | more, notes + shortages

    def origin(name: SplitName) -> Origin:
        return "none" if name not in parts else "given" if name in sets else "cut from train"

    return Splits(
        classes,
        **parts,
        multilabel=parts["train"].labels.ndim == 2,
        val_origin=origin("val"),
        test_origin=origin("test"),
        notes=notes,
    )


def _cut(
    whole: ImageSet,
    classes: list[str],
    keys: Sequence[str] | PathList,
    where: str,
    cut: "Splitting",
) -> tuple[dict[SplitName, ImageSet], list[str]]:
    """The rest of train and the splits cut from it; notes on classes with too few images."""
    one_label = bool(classes) and whole.labels.ndim == 1
    if whole.groups is not None:
        train, val, test = cut_groups(whole.groups, whole.labels, **asdict(cut))
        if len(train) == len(whole):
            why = f"{FEWEST} groups are needed, and train keeps one of each class"
            return {}, [f"{where}: no val or test is cut from it: {why}"]
    else:
        strata = [classes[label] for label in whole.labels] if one_label else [""] * len(keys)
        train, val, test = held_out(keys, strata, **asdict(cut))
    if cut.val_fraction and not len(val):
        remedy = "add images, give a val folder, or set --data.splits.val_fraction 0"
        raise UserError(f"no class of {where} has two images to cut a val from train; {remedy}")
    notes = []
    if cut.test_fraction and not len(test):
        notes.append(f"{where}: no class has enough images to cut a test split from train")
    if one_label:
        labels = whole.labels[val if cut.val_fraction else test]
        counts = np.bincount(labels, minlength=len(classes))
        scarce = some_of(repr(classes[label]) for label in np.flatnonzero(counts == 0))
        if scarce:
            few = "images" if whole.groups is None else "groups"
            notes.append(f"{where}: no image could be held out of {scarce}: too few {few}")
    chosen: dict[SplitName, np.ndarray] = {"val": val, "test": test}
    parts: dict[SplitName, ImageSet] = {"train": whole.select(train)}
    parts |= {name: whole.select(indices) for name, indices in chosen.items() if len(indices)}
    return parts, notes


def _check_tree(classes: list[str], train: ImageSet) -> None:
    """UserError unless each image has one label, and the classes are leaves."""
    if train.labels.ndim == 2:
        raise UserError("data.labels=tree needs one label per image; this set has several")
    if (pair := inner_class(classes)) is not None:
        first = int(np.argmax(train.labels == classes.index(pair[0])))
        found = f"{train.names.name(first)} has the label {pair[0]!r}, and the class {pair[1]!r}"
        raise UserError(f"{found} is below it; put it into a class below {pair[0]!r}")


def check_classes(classes: list[str], where: str) -> None:
    """Raises UserError for a single class."""
    if len(classes) == 1:
        raise UserError(f"{where} has one class only, {classes[0]!r}; two are needed")


def missing_files(paths: PathList) -> list[int]:
    """Indices, ascending, of the paths at which there is no regular file."""
    return [index for index, path in enumerate(paths) if not os.path.isfile(path)]


def images_digest(images: ImageSet) -> str:
    """A digest of path, size and time of change of each file in order; of shards of names and
    contents; or of pixels."""
    digest = sha256()
    if (of_shards := getattr(images.items, "contents_digest", None)) is not None:
        return of_shards()
    if not isinstance(images.items, PathList):
        for image in images.items:
            pixels = np.frombuffer(image, "u1") if isinstance(image, bytes) else np.asarray(image)
            digest.update(f"{pixels.shape} {pixels.dtype}\0".encode())
            digest.update(np.ascontiguousarray(pixels).data)
        return digest.hexdigest()
    for path in images.items:
        status = os.stat(path)
        digest.update(os.fsencode(path) + f"\0{status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def same_spelling(classes: Sequence[str]) -> list[list[str]]:
    """Names of classes that differ only in case, blanks, Unicode form or a final s: Cat, cats."""
    groups: dict[str, list[str]] = {}
    for name in classes:
        form = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
        groups.setdefault(form.removesuffix("s"), []).append(name)
    return [names for names in groups.values() if len(names) > 1]
