"""Sets of images that are not decoded yet, and the fixed-seed cut of val and test from train.

Shapes: n images, h w pixels, k classes.
"""

import os
import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal

import numpy as np

from vit.errors import UserError, printable, some_of

SplitName = Literal["train", "val", "test"]
Origin = Literal["given", "cut from train", "none"]

SPLIT_NAMES: dict[str, SplitName] = {
    "train": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
}

_NUMBER = re.compile(r"[+-]?[0-9]{1,15}(\.[0-9]{1,15})?")


class PathList:
    """Paths in one block of bytes; `paths[i]` is `root` joined to the i-th name.

    A list of a million `str` takes several times the memory, and every worker process would copy
    it page by page, because reading a `str` writes its reference count.
    """

    def __init__(self, names: Iterable[str], root: str = "") -> None:
        self.root = root
        block, ends = bytearray(), array("q", [0])
        for name in names:
            block += os.fsencode(name)
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

    def names(self) -> Iterator[str]:
        return (self.name(index) for index in range(len(self)))

    def encoded(self) -> Iterator[bytes]:
        """The names as bytes of the file system."""
        ends = zip(self._starts.tolist(), self._ends.tolist(), strict=True)
        return (self._bytes[start:end] for start, end in ends)

    def select(self, indices: np.ndarray, root: str | None = None) -> "PathList":
        """The paths at `indices`, in that order, over the same bytes; below `root` if given."""
        return self._view(self.root if root is None else root, indices)

    def printable(self) -> "PathList":
        """The names alone; bytes that are not UTF-8 become '\N{REPLACEMENT CHARACTER}'."""
        if self._bytes.isascii():
            return self._view("", slice(None))
        return PathList(os.fsencode(name).decode("utf-8", "replace") for name in self.names())

    def _view(self, root: str, chosen: np.ndarray | slice) -> "PathList":
        """Over the same bytes."""
        view = PathList([], root)
        view._bytes, view._starts, view._ends = (
            self._bytes,
            self._starts[chosen],
            self._ends[chosen],
        )
        return view


@dataclass
class ImageSet:
    """Images and their labels; nothing is decoded before an image is asked for."""

    items: PathList | np.ndarray
    """Paths, or uint8 pixels `n h w` (gray) or `n h w 3` (RGB)."""
    labels: np.ndarray
    """int64 `n`, or float32 `n k` of zeros and ones where images may have several labels."""
    names: PathList
    """What to call each image: its path below the root, or "digits/17"."""

    def __post_init__(self) -> None:
        assert len(self.items) == len(self.labels) == len(self.names)

    def __len__(self) -> int:
        return len(self.items)

    def digest(self, classes: Sequence[str]) -> str:
        """BLAKE2b over the names of the images, their labels, and the names of the classes."""
        digest = blake2b(digest_size=16)
        for name in self.names.encoded():
            digest.update(name + b"\0")
        digest.update(np.ascontiguousarray(self.labels).tobytes())
        digest.update("\0".join(classes).encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def select(self, indices: np.ndarray) -> "ImageSet":
        """The images at `indices`, in that order."""
        items = self.items
        items = items.select(indices) if isinstance(items, PathList) else items[indices]
        return ImageSet(items, self.labels[indices], self.names.select(indices))


@dataclass
class Splits:
    """The splits of one dataset under one list of classes, which is that of train."""

    classes: list[str]
    """Empty where the images have no labels."""
    train: ImageSet
    val: ImageSet | None = None
    test: ImageSet | None = None
    multilabel: bool = False
    val_origin: Origin = "none"
    test_origin: Origin = "none"
    notes: list[str] = field(default_factory=list)
    """Lines for the user: what was left out, and why."""

    def __post_init__(self) -> None:
        self.notes = [printable(note) for note in self.notes]

    def get(self, split: SplitName) -> ImageSet | None:
        """The images of a split."""
        return {"train": self.train, "val": self.val, "test": self.test}[split]

    def summary(self, seed: int) -> str:
        """One line for people: sizes, and what was cut from train by `seed`."""
        present = {"train": self.train, "val": self.val, "test": self.test}
        sizes = {name: len(images) for name, images in present.items() if images is not None}
        origins = {"val": self.val_origin, "test": self.test_origin}
        cut = " and ".join(name for name, origin in origins.items() if origin == "cut from train")
        listed = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
        kinds = f"of {len(self.classes):,} classes" if self.classes else "without labels"
        line = f"{sum(sizes.values()):,} images {kinds}: {listed}"
        return f"{line} ({cut} cut from train, seed {seed})" if cut else line


def complete(
    classes: list[str],
    sets: Mapping[SplitName, ImageSet],
    keys: Sequence[str] | PathList,
    *,
    seed: int,
    val_fraction: float,
    test_fraction: float,
    where: str,
    multilabel: bool = False,
    notes: Sequence[str] = (),
) -> Splits:
    """The splits given, `train` at least, and those cut from train that a user's files lack.

    A set with val but without test keeps its train whole. The other arguments are those of `cut`.
    """
    given: Origin = "given"
    none: Origin = "none"
    whole = Splits(
        classes=classes,
        train=sets["train"],
        val=sets.get("val"),
        test=sets.get("test"),
        multilabel=multilabel,
        val_origin=given if "val" in sets else none,
        test_origin=given if "test" in sets else none,
        notes=list(notes),
    )
    return cut(
        whole,
        keys,
        seed=seed,
        val_fraction=val_fraction,
        test_fraction=0.0 if "val" in sets else test_fraction,
        where=where,
    )


# Where held-out images lie, the likeliest place first.
EVALUATION_ORDER: tuple[SplitName, ...] = ("test", "val", "train")


def all_as_test(images: ImageSet, classes: list[str], notes: list[str]) -> Splits:
    """All of `images` as the test set of a model that exists; train is empty."""
    return Splits(
        classes=classes,
        train=images.select(np.arange(0)),
        test=images,
        test_origin="given",
        multilabel=images.labels.ndim == 2,
        notes=notes,
    )


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sorts runs of digits by value: 1, 2, 10. Other characters keep their code-point order."""
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
    """Indices of (train, val, test), each ascending: a stratified cut without any generator.

    Within a stratum (a class) the images are ordered by a hash of (seed, stratum, key). The first
    are test, the next val. So the cut is a pure function of its arguments, an added image moves
    few others, and the test set does not depend on `val_fraction`. A fraction above 0 takes at
    least one image of each stratum, but train keeps one first: val gets the second, test the third.
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


def cut(
    splits: Splits,
    keys: Sequence[str] | PathList,
    *,
    seed: int,
    val_fraction: float,
    test_fraction: float,
    where: str,
) -> Splits:
    """`splits` with val and test cut from train where they are absent and the fraction is not 0.

    `keys` name the images of train; `where` names the source in errors. Sets with one label an
    image are cut class by class, multi-label sets as a whole.

    Raises:
        UserError: A fraction is outside [0, 1), or no class has an image to spare.
    """
    for name, value in {"val_fraction": val_fraction, "test_fraction": test_fraction}.items():
        if not 0 <= value < 1:
            raise UserError(f"{name}={value} is not in [0, 1)")
    if val_fraction + test_fraction >= 1:
        raise UserError(
            f"val_fraction={val_fraction} and test_fraction={test_fraction} leave nothing for train"
        )
    cut_val = splits.val is None and val_fraction > 0
    cut_test = splits.test is None and test_fraction > 0
    if not (cut_val or cut_test):
        return splits
    strata = [""] * len(keys)
    one_label = bool(splits.classes) and not splits.multilabel
    if one_label:
        strata = [splits.classes[label] for label in splits.train.labels]
    train, val, test = held_out(
        keys,
        strata,
        seed=seed,
        val_fraction=val_fraction if cut_val else 0.0,
        test_fraction=test_fraction if cut_test else 0.0,
    )
    if cut_val and not len(val):
        few = f"no class of {where} has two images" if splits.classes else f"{where} has one image"
        raise UserError(
            f"{few}, so that no val can be cut from train; "
            "add images, give a val folder, or set --data.splits.val_fraction 0"
        )
    whole = splits.train
    notes = list(splits.notes)
    if cut_test and not len(test):
        cut_test = False
        notes.append(f"{where}: no class has enough images to cut a test split from train")
    if one_label:
        notes += _scarce(splits.classes, whole.labels, val if cut_val else test, where)
    return Splits(
        classes=splits.classes,
        train=whole.select(train),
        val=whole.select(val) if cut_val else splits.val,
        test=whole.select(test) if cut_test else splits.test,
        multilabel=splits.multilabel,
        val_origin="cut from train" if cut_val else splits.val_origin,
        test_origin="cut from train" if cut_test else splits.test_origin,
        notes=notes,
    )


def _scarce(classes: list[str], labels: np.ndarray, taken: np.ndarray, where: str) -> list[str]:
    counts = np.bincount(labels[taken], minlength=len(classes))
    lacking = [classes[label] for label in np.flatnonzero(counts == 0)]
    if not lacking:
        return []
    return [f"{where}: no image could be held out of {some_of(map(repr, lacking))}: too few images"]


def check_classes(classes: list[str], where: str, hint: str = "") -> None:
    """Refuses fewer than two classes."""
    if len(classes) == 1:
        raise UserError(f"{where} has one class only, {classes[0]!r}; two are needed{hint}")


def missing_files(paths: PathList) -> list[int]:
    """Indices, ascending, of the paths at which there is no regular file.

    Each folder is listed once, instead of one look at each file, and its list is dropped before the
    next one is read. Pipes, devices and directories count as missing.
    """
    numbers: dict[str, int] = {}
    folder_of = np.empty(len(paths), dtype=np.int32)
    for index, path in enumerate(paths):
        folder_of[index] = numbers.setdefault(os.path.dirname(path), len(numbers))
    order = np.argsort(folder_of, kind="stable")
    starts = np.searchsorted(folder_of[order], np.arange(len(numbers) + 1))
    missing = []
    for folder, number in numbers.items():
        listed = _regular_files(folder)
        for index in order[starts[number] : starts[number + 1]].tolist():
            path = paths[index]
            # The second look is for links, and for file systems that ignore case.
            if os.path.basename(path) not in listed and not os.path.isfile(path):
                missing.append(index)
    return sorted(missing)


def _regular_files(folder: str) -> set[str]:
    """Names of the files in a folder that need no second look; none if it cannot be listed."""
    try:
        with os.scandir(folder or ".") as entries:
            return {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
    except (OSError, ValueError):  # ValueError: a null character in the name
        return set()


def look_alikes(classes: Sequence[str], where: str) -> list[str]:
    """A note where names of classes differ in case, Unicode form or the spelling of a number only.

    Such as 'Cat' and 'cat', '1' and '01' and '1.0', or an e with an accent as one or two
    characters.
    """
    groups: dict[str | float, list[str]] = {}
    for name in classes:
        groups.setdefault(_sense(name), []).append(name)
    alike = [names for names in groups.values() if len(names) > 1]
    if not alike:
        return []
    shown = some_of(map(_side_by_side, alike), 3, "; ")
    return [f"{where}: classes whose names differ in spelling only are kept apart: {shown}"]


def _side_by_side(names: list[str]) -> str:
    """'Cat' and 'cat'; with character codes where the names would look the same."""
    same = len({unicodedata.normalize("NFC", name) for name in names}) < len(names)
    return " and ".join(map(ascii if same else repr, names[:4]))


def _sense(name: str) -> str | float:
    """What two spellings of one name have in common."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    if folded.isascii() and _NUMBER.fullmatch(folded):
        return float(folded)
    return " ".join(folded.split())
