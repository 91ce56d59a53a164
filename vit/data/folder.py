"""Folders of class folders, with or without train/, val/ and test/ above them.

root/cat/1.jpg                      one folder: val and test are cut from it
root/train/cat/1.jpg  root/val/...  split folders: train/ and any of val/, test/
"""

import os
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from vit.data.scan import LITTER, Folder, Tree, ignored_note, scan
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
    *,
    val_fraction: float = 0.1,
    test_fraction: float = 0.1,
    seed: int = 0,
    arrays: bool = False,
) -> Splits:
    """The splits below `root`; the classes and their order are those of train.

    Folders below a class folder belong to the class. Class names sort naturally (1, 2, 10). With
    one folder or with train/ alone, val and test are cut from it, class by class, by `seed`; with
    train/ and test/, val is cut from train; with train/ and val/ there is no test.

    Args:
        root: The folder.
        val_fraction: Share of each class that becomes val where val is cut; 0 for none.
        test_fraction: The same for test.
        seed: Of the cut.
        arrays: Whether .npy files are images, too.

    Raises:
        UserError: `root` or a class of train is missing or empty, there is one class only, or val
            or test has a class that train lacks.
    """
    root = os.path.abspath(os.path.expanduser(os.fspath(root)))
    folders, notes = _split_folders(root)
    parts: dict[SplitName, _Part] = {
        name: _Part(root, folder, scan(folder, arrays=arrays)) for name, folder in folders.items()
    }
    train = parts["train"]
    classes = _train_classes(train)
    sets: dict[SplitName, ImageSet] = {}
    notes += look_alikes(classes, train.where)
    for name, part in parts.items():
        notes += part.notes()
        if name != "train":
            part.check_against(classes, train.where)
        sets[name] = part.images(classes)
    return complete(
        classes,
        sets,
        train.keys(classes),
        notes=notes,
        seed=seed,
        val_fraction=val_fraction,
        test_fraction=test_fraction,
        where=train.where,
    )


def load_held_out(
    root: str | os.PathLike[str],
    classes: list[str],
    *,
    arrays: bool = False,
) -> Splits:
    """Images for a model that exists: all of them are test, labelled by the model's `classes`.

    Takes test/ or else val/ where there are split folders, and the whole folder where not. A class
    without images is fine here; train is empty. Raises UserError for a class the model lacks.
    """
    root = os.path.abspath(os.path.expanduser(os.fspath(root)))
    folders, notes = _split_folders(root, train_needed=False)
    where = next(folders[split] for split in EVALUATION_ORDER if split in folders)
    part = _Part(root, where, scan(where, arrays=arrays))
    part.check_against(classes, "the model")
    return all_as_test(part.images(classes), classes, [*notes, *part.notes()])


def load_unlabelled(
    root: str | os.PathLike[str],
    *,
    val_fraction: float = 0.1,
    test_fraction: float = 0.1,
    seed: int = 0,
    held_out: bool = False,
    arrays: bool = False,
) -> Splits:
    """All images below `root` without labels: loose ones, and those of any folders.

    train/, val/ and test/ are used and cut as by `load_folder`, as if all images were of one class.
    With `held_out`, all images are test, as by `load_held_out`. `classes` is empty, and so are the
    labels: zeros. Raises UserError where a split has no images.
    """
    root = os.path.abspath(os.path.expanduser(os.fspath(root)))
    folders, notes = _split_folders(root, train_needed=not held_out)
    if held_out:
        wanted = next(split for split in EVALUATION_ORDER if split in folders)
        for split in folders.keys() - {wanted}:
            del folders[split]
    sets: dict[SplitName, ImageSet] = {}
    keys: dict[SplitName, list[str]] = {}
    for name, where in folders.items():
        part = _Part(root, where, scan(where, arrays=arrays))
        part.loose = 0  # they are not left out here
        notes += part.notes()
        keys[name] = list(part.tree.images())
        if not keys[name]:
            ignored = "".join(f"; {note}" for note in ignored_note("there", part.tree.folders))
            raise UserError(f"no images in {where} or its folders{ignored}")
        paths = PathList((part.prefix + path for path in keys[name]), root)
        labels = np.zeros(len(paths), dtype=np.int64)
        sets[name] = ImageSet(items=paths, labels=labels, names=paths.printable())
    if held_out:
        [images] = sets.values()
        return all_as_test(images, [], notes)
    return complete(
        [],
        sets,
        keys["train"],
        notes=notes,
        seed=seed,
        val_fraction=val_fraction,
        test_fraction=test_fraction,
        where=folders["train"],
    )


@dataclass
class _Part:
    """One split on disk."""

    root: str
    where: str
    tree: Tree

    def __post_init__(self) -> None:
        self.by_class: dict[str, list[Folder]] = {}
        self.loose = 0
        for folder in self.tree.folders:
            if folder.path:
                name = folder.path.split("/", 1)[0]
                # macOS stores é as two characters, Linux usually as one: the same class.
                self.by_class.setdefault(unicodedata.normalize("NFC", name), []).append(folder)
            else:
                self.loose = len(folder.images)

    def count(self, name: str) -> int:
        return sum(len(folder.images) for folder in self.by_class.get(name, ()))

    def _files(self, classes: Iterable[str]) -> Iterable[tuple[str, str]]:
        for name in classes:
            for folder in self.by_class.get(name, ()):
                for image in folder.images:
                    yield folder.path, image

    def keys(self, classes: list[str]) -> list[str]:
        """Paths below the class folder, which stay when a class folder is renamed or moved."""
        return ["/".join([*folder.split("/")[1:], image]) for folder, image in self._files(classes)]

    @property
    def prefix(self) -> str:
        """What comes before a path below this split to make it one below the root."""
        above = os.path.relpath(self.where, self.root).replace(os.sep, "/")
        return "" if above == "." else f"{above}/"

    def images(self, classes: list[str]) -> ImageSet:
        prefix = self.prefix
        paths = PathList(
            (f"{prefix}{folder}/{image}" for folder, image in self._files(classes)), self.root
        )
        counts = [self.count(name) for name in classes]
        labels = np.repeat(np.arange(len(classes), dtype=np.int64), counts)
        return ImageSet(items=paths, labels=labels, names=paths.printable())

    def check_against(self, classes: list[str], train: str) -> None:
        unknown = [
            name for name in class_order(self.by_class) if name not in classes and self.count(name)
        ]
        if unknown:
            near = did_you_mean(unknown[0], classes)
            raise UserError(
                f"{self.where} has classes that {train} lacks: {some_of(map(repr, unknown))}{near}"
            )
        if not sum(self.count(name) for name in classes):
            raise UserError(f"{self.where} has no images in class folders; fill it or remove it")

    def notes(self) -> list[str]:
        notes = ignored_note(self.where, self.tree.folders)
        if self.loose:
            notes.append(f"{self.where}: images outside class folders left out: {self.loose:,}")
        if self.tree.repeats:
            notes.append(
                f"{self.where}: links to what is listed already left out: {self.tree.repeats:,}"
            )
        if self.tree.dangling:
            notes.append(
                f"{self.where}: broken links left out: {some_of(map(repr, self.tree.dangling))}"
            )
        return notes


def _split_folders(
    root: str, *, train_needed: bool = True
) -> tuple[dict[SplitName, str], list[str]]:
    """Where each split is, and notes; {"train": root} for a folder without split folders."""
    if not os.path.isdir(root):
        parent, name = os.path.split(root)
        siblings = os.listdir(parent) if os.path.isdir(parent) else []
        if os.path.exists(root):
            raise UserError(f"{root} is neither a folder nor a .csv or .parquet file")
        raise UserError(f"data folder {root} does not exist{did_you_mean(name, siblings)}")
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if entry.is_dir()]
    except OSError as error:
        raise UserError(f"cannot read folder {root}: {error.strerror}") from error
    found: dict[SplitName, str] = {}
    others: list[str] = []
    for name in sorted(names):
        split = SPLIT_NAMES.get(name.lower())
        if split is None:
            if not name.startswith(".") and name not in LITTER:
                others.append(name)
        elif split in found:
            raise UserError(
                f"{root} has both {os.path.basename(found[split])}/ and {name}/: keep one of them"
            )
        else:
            found[split] = os.path.join(root, name)
    if not found:
        return {"train": root}, []
    if "train" not in found and train_needed:
        held = ", ".join(f"{os.path.basename(path)}/" for path in found.values())
        raise UserError(f"{root} has {held} but no train/; put the training class folders there")
    order: tuple[SplitName, ...] = ("train", "val", "test")
    notes = (
        [f"{root}: folders beside train/ left out: {some_of(map(repr, others))}"] if others else []
    )
    return {split: found[split] for split in order if split in found}, notes


def _train_classes(train: _Part) -> list[str]:
    classes = class_order(train.by_class)
    if not classes and train.loose:
        raise UserError(
            f"{train.where} has {train.loose:,} images but no class folders; "
            "put the images of each class into a folder with the class's name"
        )
    if not any(train.count(name) for name in classes):
        ignored = "".join(f"; {note}" for note in ignored_note("there", train.tree.folders))
        raise UserError(
            f"no images in {train.where}; expected class folders, such as cat/1.jpg{ignored}"
        )
    for name in classes:
        if any("\ud800" <= letter <= "\udfff" for letter in name):  # bytes that are no UTF-8
            raise UserError(
                f"class folder {name!r} in {train.where} has no readable name; rename it"
            )
        if not train.count(name):
            ignored = "".join(f"; {note}" for note in ignored_note("there", train.by_class[name]))
            raise UserError(
                f"class folder {os.path.join(train.where, name)} has no images; "
                f"add some or remove it{ignored}"
            )
    hint = ""
    if len(classes) == 1 and len(train.by_class[classes[0]]) > 1:
        inner = os.path.join(train.where, train.by_class[classes[0]][0].path)
        hint = f"; if its subfolders are the classes, use --data.root {inner}"
    check_classes(classes, train.where, hint)
    return classes
