"""Folders of class folders, with or without train/, val/ and test/ above.

root/cat/1.jpg                      one folder: val and test are cut from it
root/train/cat/1.jpg  root/val/...  split folders: train/ and any of val/, test/
root/pet/cat/1.jpg                  a tree: the class is pet/cat
"""

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from vit.data.cut import complete
from vit.data.items import Opened
from vit.data.scan import LITTER, entries, left_out_note, scan
from vit.data.settings import ModelClasses, Reading
from vit.data.sources import (
    SPLIT_NAMES,
    SPLIT_WORDS,
    SPLITS,
    ImageSet,
    PathList,
    SplitName,
    Splits,
    all_of_one,
    by_split,
    check_classes,
    class_order,
    split_of,
)
from vit.errors import UserError, some_of


def load_folder(root: str | os.PathLike[str], reading: Reading) -> Splits:
    """The splits below `root`; the classes are those of train, in natural order (1, 2, 10).

    Folders below a class folder belong to the class; of a tree, a class is a folder of images at
    any depth. With one folder or with train/ alone, val and test are cut from it; with train/ and
    test/, val; with train/ and val/ there is no test.

    Raises UserError if `root` is missing, and as `part_splits` does.
    """
    reading.refuse_separator(str(root))
    place = os.path.abspath(os.path.expanduser(root))
    folders, notes = _split_folders(place)
    parts: dict[SplitName, Callable[[], Part]] = {}
    for name, where in folders.items():
        above = "" if where == place else f"{os.path.basename(where)}/"
        parts[name] = partial(_scanned, where, above, reading)
    return part_splits(str(root), parts, reading, notes)


def part_splits(
    root: str,
    readers: "Mapping[SplitName, Callable[[], Part]]",
    reading: Reading,
    notes: Sequence[str] = (),
) -> Splits:
    """The splits of parts: those that are there, and those that are cut from train.

    `readers`: what reads each part; for a model that exists only one is read.

    Raises UserError if a class of train is missing or empty, there is one class only, or a split
    has a class that train, or the model, lacks.
    """
    notes = [*notes]
    if reading.model is not None:
        split = max(readers, key=SPLITS.index)
        part = readers[split]()
        images = part.images(reading.model, "the model lacks")
        unnamed = part.where in (root, os.path.abspath(os.path.expanduser(root)))
        notes += part.notes(reading.has_classes)
        return all_of_one(images, reading.model, "test" if unnamed else split, notes)
    if "train" not in readers:
        names = ", ".join(f"{name}/" for name in readers)
        raise UserError(f"{root} has {names} but no train/; put the training images there")
    parts: dict[SplitName, Part] = {name: read() for name, read in readers.items()}
    train = parts["train"]
    classes = train.classes() if reading.labelled else []
    sets: dict[SplitName, ImageSet] = {}
    for name, part in parts.items():
        notes += part.notes(reading.labelled)
        sets[name] = part.images(ModelClasses(names=classes), f"{train.where} lacks")
    keys = train.keys.select(train.rows(classes))
    if reading.labelled and not reading.tree and all("/" in key for key in keys):
        notes.append(
            f"{train.where}: all images lie two or more folders deep, and the upper ones are the "
            "classes; --data.labels tree makes classes of the inner ones"
        )
    return complete(classes, sets, keys, reading, where=train.where, notes=notes)


def _scanned(where: str, above: str, reading: Reading) -> "Part":
    """The images in a folder; their names begin with `above`."""
    folders, left_out = scan(where, arrays=reading.arrays)
    inner = {os.path.dirname(path) for path in folders} if reading.tree else set()
    groups, places, below = [], [], []
    for path, images in folders.items():
        name, key = class_of(path, reading)
        groups.append((name if images or path not in inner else "", len(images)))
        places.append(f"{above}{path}/" if path else above)
        below.append(f"{key}/" if key else "")
    paths = PathList(_files(places, folders), os.path.dirname(where) if above else where)
    return Part(where, paths, paths, PathList(_files(below, folders)), groups, left_out)


def _files(places: list[str], folders: dict[str, list[str]]) -> Iterator[str]:
    """Paths of the images in folders that are at these places."""
    for place, images in zip(places, folders.values(), strict=True):
        yield from (place + image for image in images)


def class_of(folder: str, reading: Reading, label: str = "") -> tuple[str, str]:
    """The class of the images in a folder, if they have no label, and what keys of the cut begin
    with: the path below the class folder, which stays when that is renamed or moved."""
    name, below = (folder, "") if reading.tree else folder.partition("/")[::2]
    if label:
        name, below = label, f"{folder}/".removeprefix(f"{label}/").rstrip("/")
    # macOS stores é as two characters, Linux usually as one: the same class.
    return unicodedata.normalize("NFC", name), below if reading.labelled else folder


@dataclass
class Part:
    """The images of one split, folder by folder."""

    where: str
    """Their folder, or a pattern of shards."""
    items: PathList | Opened
    names: PathList
    keys: PathList
    """By which val and test are cut."""
    groups: Sequence[tuple[str, int]]
    """A class, "" for none, and how many of the next images it has."""
    left_out: Counter[str]
    listed: Sequence[str] = ()
    """The classes, if there is a list of them."""

    def __post_init__(self) -> None:
        self.counts: Counter[str] = Counter()
        for name, count in self.groups:
            self.counts[name] += count
        self.loose = self.counts.pop("", 0)
        """Images in no class folder."""

    def rows(self, classes: Sequence[str]) -> np.ndarray:
        """Places of the images, class by class; of all if there are no classes."""
        numbers = self._numbers(classes)
        rows = np.argsort(numbers, kind="stable")
        return rows[numbers[rows] >= 0] if classes else np.arange(len(self.names))

    def _numbers(self, classes: Sequence[str]) -> np.ndarray:
        index = {name: number for number, name in enumerate(classes)}
        numbers = np.array([index.get(name, -1) for name, _ in self.groups], dtype=np.int64)
        return numbers.repeat([count for _, count in self.groups])

    def images(self, model: ModelClasses, lacking: str) -> ImageSet:
        """The images, and their labels if `model` has classes.

        Raises UserError if there are none, or for another class, which, say, "the model lacks".
        """
        classes = model.names
        used = class_order(name for name, count in self.counts.items() if count)
        if classes and (unknown := [name for name in used if name not in classes]):
            names = some_of(map(repr, unknown))
            raise UserError(f"{self.where} has classes that {lacking}: {names}")
        rows = self.rows(classes)
        if not len(rows):
            self._check_folders(classes)
            place = f"class folders of {self.where}" if classes else self.where
            raise UserError(f"no images in {place}{self._instead()}")
        labels = self._numbers(classes)[rows] if classes else np.zeros(len(rows), dtype=np.int64)
        if classes and model.multilabel:
            labels = np.eye(len(classes), dtype=np.float32)[labels]
        return ImageSet(self.items.select(rows), labels, self.names.select(rows).printable())

    def classes(self) -> list[str]:
        """The names of the class folders; UserError for one that cannot be trained on."""
        if self.listed:
            return list(self.listed)
        classes = class_order(self.counts)
        self._check_folders(["labels are wanted"])
        if classes and {*map(str.lower, classes)} <= {*SPLIT_WORDS}:
            found = f"{self.where} has the folders {some_of(classes)}"
            raise UserError(f"{found}; pack each into shards of its own, such as val-000.tar")
        for name in classes:
            if any("\ud800" <= letter <= "\udfff" for letter in name):  # bytes that are no UTF-8
                raise UserError(f"class folder {name!r} in {self.where} is no text; rename it")
            if not self.counts[name]:
                folder = os.path.join(self.where, name)
                remedy = f"add some or remove it{self._instead()}"
                raise UserError(f"class folder {folder} has no images; {remedy}")
        check_classes(classes, self.where)
        return classes

    def _check_folders(self, classes: Sequence[str]) -> None:
        """UserError for loose images alone, where there are classes."""
        if classes and self.loose and not self.counts:
            found = f"{self.where} has {self.loose:,} images but no class folders or .cls files"
            raise UserError(f"{found}; put those of each class into a folder with its name")

    def notes(self, labelled: bool) -> list[str]:
        notes = left_out_note(self.where, self.left_out)
        if self.loose and labelled:
            notes.append(f"{self.where}: images outside class folders left out: {self.loose:,}")
        return notes

    def _instead(self) -> str:
        return "".join(f"; {note}" for note in left_out_note("there", self.left_out))


def _split_folders(root: str) -> tuple[dict[SplitName, str], list[str]]:
    """Where each split is, and notes; {"train": root} for a folder without split folders."""
    if not os.path.isdir(root):
        raise UserError(f"{root} is neither a folder nor a .csv, .parquet or .tar file")
    names = _folders(root)
    found = [name for name in names if name.lower() in SPLIT_NAMES] or _by_words(root, names)
    if not found:
        return {"train": root}, []
    others = some_of(repr(name) for name in names if name not in found)
    notes = [f"{root}: folders beside train/ left out: {others}"] if others else []
    places: dict[SplitName, str] = {}
    for split, word in by_split(root, sorted(found)).items():
        place = os.path.join(root, word)
        inner = [entry.name for entry in entries(place) if not entry.name.startswith(".")]
        places[split] = os.path.join(place, word) if inner == [word] else place
        if word.lower() not in SPLIT_NAMES:
            notes.append(f"{root}: {word}/ is taken as {split}")
    if len({*map(os.path.realpath, places.values())}) < len(places):
        words = " and ".join(f"{name}/" for name in found)
        raise UserError(f"{root}: {words} are one folder by a link; give each images of its own")
    return places, notes


def _folders(place: str) -> list[str]:
    """Names of the folders in a folder that are not hidden."""
    names = [entry.name for entry in entries(place) if entry.is_dir()]
    return [name for name in names if not name.startswith(".") and name not in LITTER]


def _by_words(root: str, names: list[str]) -> list[str]:
    """Folders such as seg_train/ and seg_test/: one of train, of class folders, and others of val
    or test. None if anything is beside them but answers to be predicted and loose images."""
    splits = {name: split for name in names if (split := split_of(name)) is not None}
    train = [name for name, split in splits.items() if split == "train"]
    inner = {name: _folders(os.path.join(root, name)) for name in {*names} - {*splits} | {*train}}
    beside = [name for name in inner if name not in splits and inner[name]]
    beside = [name for name in beside if not re.search("pred|unlabel", name.lower())]
    is_set = len(train) == 1 and len(splits) > 1 and inner[train[0]] and not beside
    return [*splits] if is_set else []
