"""Folders of class folders, or shards of them, with or without train/, val/ and test/ above.

root/cat/1.jpg                      one folder: val and test are cut from it
root/train/cat/1.jpg  root/val/...  split folders: train/ and any of val/, test/
root/pet/cat/1.jpg                  a tree: the class is pet/cat
"""

import os
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from vit.data.addresses import by_split, is_address
from vit.data.options import ModelClasses, Reading
from vit.data.scan import LITTER, Folder, entries, left_out_note, scan
from vit.data.sources import (
    SPLIT_NAMES,
    SPLITS,
    ImageSet,
    PathList,
    SplitName,
    Splits,
    all_as_test,
    check_classes,
    class_order,
    complete,
    look_alikes,
)
from vit.errors import UserError, some_of

if TYPE_CHECKING:
    from vit.data.shards import ShardImages


def load_folder(
    root: str | os.PathLike[str], reading: Reading, shards: dict[str, list[str]] | None = None
) -> Splits:
    """The splits below `root`; the classes are those of train, in natural order (1, 2, 10).

    Folders below a class folder belong to the class; of a tree, a class is a folder of images at
    any depth. With one folder or with train/ alone, val and test are cut from it; with train/ and
    test/, val; with train/ and val/ there is no test.

    Args:
        root: The folder.
        reading: What is taken of it.
        shards: The tar shards in it, by `vit.data.addresses.find_shards`.

    Raises:
        UserError: `root` or a class of train is missing or empty, there is one class only, or a
            split has a class that train, or the model, lacks.
    """
    found, notes = _parts(str(root), reading, shards)
    if reading.model is not None:
        part = found[max(found, key=SPLITS.index)]()
        images = part.images(reading.model, "the model lacks")
        return all_as_test(images, reading.model, notes + part.notes(reading.has_classes))
    if "train" not in found:
        names = ", ".join(f"{name}/" for name in found)
        raise UserError(f"{root} has {names} but no train/; put the training images there")
    parts: dict[SplitName, Part] = {name: part() for name, part in found.items()}
    train = parts["train"]
    classes = train.classes() if reading.labelled else []
    notes += look_alikes(classes, train.where)
    sets: dict[SplitName, ImageSet] = {}
    for name, part in parts.items():
        notes += part.notes(reading.labelled)
        sets[name] = part.images(ModelClasses(names=classes), f"{train.where} lacks")
    keys = train.keys(classes)
    return complete(classes, sets, keys, reading, where=train.where, notes=notes)


def _parts(
    root: str, reading: Reading, shards: dict[str, list[str]] | None
) -> tuple[dict[SplitName, "Callable[[], Part]"], list[str]]:
    """What reads each split, and notes."""
    if shards:
        from vit.data.shards import shard_parts  # its parts are of the class below

        return shard_parts(root, reading, shards), []
    if is_address(root):
        raise UserError(f"data.root={root} has neither .tar nor .parquet files")
    root = os.path.abspath(os.path.expanduser(root))
    folders, notes = _split_folders(root)

    def read(where: str) -> Part:
        above = "" if where == root else f"{os.path.basename(where)}/"
        return Part(where, scan(where, arrays=reading.arrays), above=above, tree=reading.tree)

    return {name: partial(read, where) for name, where in folders.items()}, notes


@dataclass
class Part:
    """One split.

    Args:
        where: Its folder, or a pattern of shards.
        folders: Those in it, sorted by path.
        above: What names of images begin with, such as "train/".
        tree: A class is a folder at any depth.
        shards: The images, if they are in shards.
        names: The classes, if there is a list of them.
    """

    where: str
    folders: Sequence[Folder]
    _: KW_ONLY
    above: str
    tree: bool
    shards: "ShardImages | None" = None
    names: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.loose = 0
        """Images in no class folder."""
        self.by_class: dict[str, list[Folder]] = {}
        inner = {os.path.dirname(folder.path) for folder in self.folders} if self.tree else set()
        for folder in self.folders:
            name = self.place(folder)[0]
            if not name:
                self.loose += len(folder.images)
            elif folder.images or folder.path not in inner:
                # macOS stores é as two characters, Linux usually as one: the same class.
                self.by_class.setdefault(unicodedata.normalize("NFC", name), []).append(folder)

    def place(self, folder: Folder) -> tuple[str, str]:
        """The class of a folder, and its path below the class folder."""
        if folder.label:
            return folder.label, f"{folder.path}/".removeprefix(f"{folder.label}/").rstrip("/")
        if self.tree:
            return folder.path, ""
        name, _, below = folder.path.partition("/")
        return name, below

    def count(self, name: str) -> int:
        return sum(len(folder.images) for folder in self.by_class.get(name, ()))

    def chosen(self, classes: list[str]) -> Sequence[Folder]:
        """The folders class by class; all folders if there are no classes."""
        if not classes:
            return self.folders
        return [folder for name in classes for folder in self.by_class.get(name, ())]

    def keys(self, classes: list[str]) -> PathList:
        """Paths below the class folder, which stay when a class folder is renamed or moved."""
        folders = self.chosen(classes)
        below = [self.place(folder)[1] if classes else folder.path for folder in folders]
        return PathList(_files(below, folders))

    def images(self, model: ModelClasses, lacking: str) -> ImageSet:
        """The images, and their labels if `model` has classes.

        Raises UserError if there are none, or for another class, which, say, "the model lacks".
        """
        classes = model.names
        used = (name for name in class_order(self.by_class) if self.count(name))
        if classes and (unknown := [name for name in used if name not in classes]):
            raise UserError(
                f"{self.where} has classes that {lacking}: {some_of(map(repr, unknown))}"
            )
        folders = self.chosen(classes)
        places = [f"{self.above}{folder.path}".rstrip("/") for folder in folders]
        top = os.path.dirname(self.where) if self.above else self.where
        items = paths = PathList(_files(places, folders), top)
        if self.shards is not None:
            rows = [row for folder in folders for row in folder.rows]
            items = self.shards.select(np.array(rows, dtype=np.int64))
        if not len(paths):
            place = f"class folders of {self.where}" if classes else self.where
            raise UserError(f"no images in {place}{_instead(self.folders)}")
        counts = [self.count(name) for name in classes] or [len(paths)]
        labels = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        if classes and model.multilabel:
            labels = np.eye(len(classes), dtype=np.float32)[labels]
        return ImageSet(items, labels, paths.printable())

    def classes(self) -> list[str]:
        """The names of the class folders; UserError for one that cannot be trained on."""
        if self.names:
            return list(self.names)
        classes = class_order(self.by_class)
        if not classes and self.loose:
            raise UserError(
                f"{self.where} has {self.loose:,} images but no class folders (nor, in shards, "
                ".cls files); put those of each class into a folder with its name"
            )
        if self.shards is not None and classes and {*map(str.lower, classes)} <= {*SPLIT_NAMES}:
            raise UserError(
                f"{self.where} has the folders {some_of(classes)}; pack each of them into shards "
                "of its own, such as train-000.tar and val-000.tar"
            )
        for name in classes:
            if any("\ud800" <= letter <= "\udfff" for letter in name):  # bytes that are no UTF-8
                raise UserError(f"class folder {name!r} in {self.where} is no text; rename it")
            if not self.count(name):
                raise UserError(
                    f"class folder {os.path.join(self.where, name)} has no images; "
                    f"add some or remove it{_instead(self.by_class[name])}"
                )
        check_classes(classes, self.where)
        return classes

    def notes(self, labelled: bool) -> list[str]:
        notes = left_out_note(self.where, self.folders)
        if self.loose and labelled:
            notes.append(f"{self.where}: images outside class folders left out: {self.loose:,}")
        return notes


def _files(places: list[str], folders: Sequence[Folder]) -> Iterator[str]:
    """Paths of the images in folders that are at these places."""
    for place, folder in zip(places, folders, strict=True):
        above = f"{place}/" if place else ""
        yield from (above + image for image in folder.images)


def _instead(folders: Sequence[Folder]) -> str:
    return "".join(f"; {note}" for note in left_out_note("there", folders))


def _split_folders(root: str) -> tuple[dict[SplitName, str], list[str]]:
    """Where each split is, and notes; {"train": root} for a folder without split folders."""
    if not os.path.isdir(root):
        raise UserError(f"{root} is neither a folder nor a .csv, .parquet or .tar file")
    names = [entry.name for entry in entries(root) if entry.is_dir()]
    names = [name for name in names if not name.startswith(".") and name not in LITTER]
    found = {name: [name] for name in names if name.lower() in SPLIT_NAMES}
    if not found:
        return {"train": root}, []
    others = some_of(repr(name) for name in names if name not in found)
    notes = [f"{root}: folders beside train/ left out: {others}"] if others else []
    return {split: os.path.join(root, word) for split, word in by_split(root, found).items()}, notes
