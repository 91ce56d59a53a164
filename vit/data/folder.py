"""Folders of class folders, with or without train/, val/ and test/ above them.

root/cat/1.jpg                      one folder: val and test are cut from it
root/train/cat/1.jpg  root/val/...  split folders: train/ and any of val/, test/
root/pet/cat/1.jpg                  a tree: the class is pet/cat
"""

import os
import unicodedata
from collections.abc import Iterator

import numpy as np

from vit.data.options import Splitting
from vit.data.scan import LITTER, Folder, entries, left_out_note, scan
from vit.data.sources import (
    EVALUATION_ORDER,
    SPLIT_NAMES,
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
from vit.errors import UserError, did_you_mean, some_of


def load_folder(
    root: str | os.PathLike[str],
    cut: Splitting,
    *,
    labelled: bool = True,
    arrays: bool = False,
    tree: bool = False,
) -> Splits:
    """The splits below `root`; the classes are those of train, in natural order (1, 2, 10).

    Folders below a class folder belong to the class. With one folder or with train/ alone, val and
    test are cut from it; with train/ and test/, val; with train/ and val/ there is no test.

    Args:
        root: The folder.
        cut: The shares that are cut.
        labelled: False takes all images of all folders, and there are no classes.
        arrays: .npy files are images, too.
        tree: A class is a folder of images at any depth, named by its path.

    Raises:
        UserError: `root` or a class of train is missing or empty, there is one class only, or val
            or test has a class that train lacks.
    """
    root = os.path.abspath(os.path.expanduser(os.fspath(root)))
    folders, notes = _split_folders(root)
    if "train" not in folders:
        names = ", ".join(f"{os.path.basename(path)}/" for path in folders.values())
        raise UserError(f"{root} has {names} but no train/; put the training class folders there")
    parts: dict[SplitName, _Part] = {
        name: _Part(root, folder, arrays=arrays, tree=tree) for name, folder in folders.items()
    }
    train = parts["train"]
    classes = train.classes() if labelled else []
    notes += look_alikes(classes, train.where)
    if labelled and not tree and all("/" in f.path for f in train.folders if f.images):
        notes.append(
            f"{train.where}: all images lie two or more folders deep, and the upper ones are the "
            "classes; --data.labels tree makes classes of the inner ones"
        )
    sets: dict[SplitName, ImageSet] = {}
    for name, part in parts.items():
        notes += part.notes(labelled)
        sets[name] = part.images(classes, f"{train.where} lacks")
    return complete(
        classes,
        sets,
        train.keys(classes),
        cut,
        where=train.where,
        notes=notes,
        tree=tree,
    )


def load_held_out(
    root: str | os.PathLike[str],
    classes: list[str],
    *,
    multilabel: bool = False,
    arrays: bool = False,
    tree: bool = False,
) -> Splits:
    """Images for a model that exists: all of them are test, labelled by the model's `classes`.

    Takes test/, or else val/, or else the whole folder. A class may have no images; without
    classes, all images are taken. Raises UserError for a class that the model lacks.
    """
    root = os.path.abspath(os.path.expanduser(os.fspath(root)))
    folders, notes = _split_folders(root)
    where = next(folders[split] for split in EVALUATION_ORDER if split in folders)
    part = _Part(root, where, arrays=arrays, tree=tree)
    notes += part.notes(labelled=bool(classes))
    images = part.images(classes, "the model lacks")
    if classes and multilabel:
        images.labels = np.eye(len(classes), dtype=np.float32)[images.labels]
    return all_as_test(images, classes, notes)


class _Part:
    """One split on disk."""

    def __init__(self, root: str, where: str, *, arrays: bool, tree: bool) -> None:
        self.root, self.where, self.tree = root, where, tree
        self.folders = scan(where, arrays=arrays)
        self.loose = len(self.folders[0].images)
        """Images in no class folder."""
        self.by_class: dict[str, list[Folder]] = {}
        inner = {os.path.dirname(folder.path) for folder in self.folders} if tree else set()
        for folder in self.folders[1:]:
            if folder.path in inner and not folder.images:
                continue
            name = folder.path if tree else folder.path.split("/", 1)[0]
            # macOS stores é as two characters, Linux usually as one: the same class.
            self.by_class.setdefault(unicodedata.normalize("NFC", name), []).append(folder)

    def count(self, name: str) -> int:
        return sum(len(folder.images) for folder in self.by_class.get(name, ()))

    def _files(self, classes: list[str]) -> Iterator[str]:
        """Images below the split, class by class; all images if there are no classes."""
        chosen = [folder for name in classes for folder in self.by_class.get(name, ())]
        for folder in chosen if classes else self.folders:
            above = f"{folder.path}/" if folder.path else ""
            yield from (above + image for image in folder.images)

    def keys(self, classes: list[str]) -> list[str]:
        """Paths below the class folder, which stay when a class folder is renamed or moved."""
        if not classes:
            return list(self._files(classes))
        cut = str.rpartition if self.tree else str.partition
        return [cut(path, "/")[2] for path in self._files(classes)]

    def images(self, classes: list[str], lacking: str) -> ImageSet:
        """The images, and their labels if there are `classes`.

        Raises UserError if there are none, or for another class, which, say, "the model lacks".
        """
        unknown = [name for name in class_order(self.by_class) if self.count(name)]
        unknown = [name for name in unknown if name not in classes] if classes else []
        if unknown:
            near = did_you_mean(unknown[0], classes)
            raise UserError(
                f"{self.where} has classes that {lacking}: {some_of(map(repr, unknown))}{near}"
            )
        above = "" if self.where == self.root else f"{os.path.basename(self.where)}/"
        paths = PathList((above + path for path in self._files(classes)), self.root)
        if not len(paths):
            place = f"class folders of {self.where}" if classes else self.where
            raise UserError(f"no images in {place}{_instead(self.folders)}")
        counts = [self.count(name) for name in classes] or [len(paths)]
        labels = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        return ImageSet(items=paths, labels=labels, names=paths.printable())

    def classes(self) -> list[str]:
        """The names of the class folders; UserError for one that cannot be trained on."""
        classes = class_order(self.by_class)
        if not classes and self.loose:
            raise UserError(
                f"{self.where} has {self.loose:,} images but no class folders; "
                "put the images of each class into a folder with the class's name"
            )
        if not any(map(self.count, classes)):
            raise UserError(
                f"no images in {self.where}; expected class folders, such as cat/1.jpg"
                f"{_instead(self.folders)}"
            )
        for name in classes:
            if any("\ud800" <= letter <= "\udfff" for letter in name):  # bytes that are no UTF-8
                raise UserError(
                    f"class folder {name!r} in {self.where} has no readable name; rename it"
                )
            if not self.count(name):
                raise UserError(
                    f"class folder {os.path.join(self.where, name)} has no images; "
                    f"add some or remove it{_instead(self.by_class[name])}"
                )
        hint = ""
        if len(classes) == 1 and len(self.by_class[classes[0]]) > 1:
            inner = os.path.join(self.where, self.by_class[classes[0]][0].path)
            hint = f"; if its subfolders are the classes, use --data.root {inner}"
        check_classes(classes, self.where, hint)
        return classes

    def notes(self, labelled: bool) -> list[str]:
        notes = left_out_note(self.where, self.folders)
        if self.loose and labelled:
            notes.append(f"{self.where}: images outside class folders left out: {self.loose:,}")
        return notes


def _instead(folders: list[Folder]) -> str:
    return "".join(f"; {note}" for note in left_out_note("there", folders))


def _split_folders(root: str) -> tuple[dict[SplitName, str], list[str]]:
    """Where each split is, and notes; {"train": root} for a folder without split folders."""
    if not os.path.isdir(root):
        raise UserError(f"{root} is neither a folder nor a .csv or .parquet file")
    folders: dict[SplitName, str] = {}
    others: list[str] = []
    for entry in entries(root):
        split = SPLIT_NAMES.get(entry.name.lower())
        if not entry.is_dir() or entry.name.startswith(".") or entry.name in LITTER:
            continue
        if split is None:
            others.append(entry.name)
        elif split in folders:
            raise UserError(
                f"{root} has both {os.path.basename(folders[split])}/ and {entry.name}/: "
                "keep one of them"
            )
        else:
            folders[split] = entry.path
    if not folders:
        return {"train": root}, []
    order: tuple[SplitName, ...] = ("train", "val", "test")
    notes = [f"{root}: folders beside train/ left out: {some_of(map(repr, others))}"]
    return {split: folders[split] for split in order if split in folders}, notes * bool(others)
