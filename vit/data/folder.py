"""Folders of class folders, with or without train/, val/ and test/ above.

root/cat/1.jpg                      one folder: val and test are cut from it
root/train/cat/1.jpg  root/val/...  split folders: train/ and any of val/, test/
root/pet/cat/1.jpg                  a tree: the class is pet/cat
"""

import os
import re
import unicodedata
from collections.abc import Iterable
from functools import partial

import numpy as np

from vit.data.labelling import Labelled, Readers, class_order, make_splits
from vit.data.scan import LITTER, entries, left_out_note, scan
from vit.data.settings import Reading
from vit.data.sources import SPLIT_NAMES, PathList, SplitName, Splits, by_split, split_of
from vit.errors import UserError, some_of


def load_folder(root: str | os.PathLike[str], reading: Reading) -> Splits:
    """The splits below `root`; the classes are those of train, in natural order (1, 2, 10).

    Folders below a class folder belong to the class; of a tree, a class is a folder of images at
    any depth. With one folder or with train/ alone, val and test are cut from it; with train/ and
    test/, val; with train/ and val/ there is no test.

    Raises UserError if `root` is missing, a class of train has no images, there is one class only,
    or a split has a class that train, or the model, lacks.
    """
    reading.refuse_columns(str(root))
    place = os.path.abspath(os.path.expanduser(root))
    folders, notes = _split_folders(place)
    readers: Readers = {n: partial(_read, where, n, place, reading) for n, where in folders.items()}
    named = folders != {"train": place}
    return make_splits(str(root), readers, reading, notes=notes, named=named)


def _read(where: str, split: SplitName, root: str, reading: Reading) -> Labelled:
    """The images in the folder of a split. UserError if there are none that can be used."""
    folders, left_out = scan(where, arrays=reading.arrays)
    inside, notes = left_out_note("there", left_out), left_out_note(where, left_out)
    inner = {os.path.dirname(path) for path in folders} if reading.tree else set()
    counts: dict[str, int] = {}
    labels: list[tuple[str, ...]] = []
    chosen: list[tuple[str, str, list[str]]] = []  # what names and keys begin with, and files
    for path, images in folders.items():
        label, below = class_of(path, reading)
        if not reading.has_classes or (label and (images or path not in inner)):
            counts[label] = counts.get(label, 0) + len(images)
            labels.append((label,))
            above = "" if where == root else os.path.basename(where)
            chosen.append((os.path.join(above, path, ""), os.path.join(below, ""), images))
    if reading.has_classes and (loose := len(folders[""])):
        if not counts:
            text = f"{where} has {loose:,} images but no class folders"
            raise UserError(f"{text}; put those of each class into a folder with its name")
        notes.append(f"{where}: images outside class folders left out: {loose:,}")
    if reading.labelled and reading.model is None and split == "train":
        _check_classes(where, counts, inside)
        if not reading.tree and all(below for _, below, images in chosen if images):
            notes.append(
                f"{where}: all images lie two or more folders deep, and the upper ones are the "
                "classes; --data.labels tree makes classes of the inner ones"
            )
    if not any(counts.values()):
        place = f"class folders of {where}" if reading.has_classes else where
        raise UserError("; ".join([f"no images in {place}", *inside]))
    names = (above + name for above, _, images in chosen for name in images)
    paths = PathList(names, where if where == root else os.path.dirname(where))
    keys = PathList(below + name for _, below, images in chosen for name in images)
    entries_of = np.arange(len(labels)).repeat([len(images) for _, _, images in chosen])
    more = {"keys": keys, "in_class_order": True, "notes": notes}
    return Labelled(where, paths, paths, labels, entries_of, **more)


def class_of(folder: str, reading: Reading, label: str = "") -> tuple[str, str]:
    """The class of the images in a folder, if they have no label, and what keys of the cut begin
    with: the path below the class folder, which stays when that is renamed or moved."""
    # macOS stores é as two characters, Linux usually as one: the same class.
    inner, label = (unicodedata.normalize("NFC", text) for text in (folder, label))
    name, depth = label or inner.partition("/")[0], label.count("/") + 1
    if not f"{inner}/".startswith(f"{name}/"):  # a label that is no folder
        depth = 0
    elif reading.tree and depth == 1:  # also in shards: a packed tree has its outermost folders
        name, depth = inner, inner.count("/") + 1
    return name, "/".join(folder.split("/")[depth:]) if reading.labelled else folder


def _check_classes(where: str, counts: dict[str, int], inside: Iterable[str]) -> None:
    """UserError for a class folder without images."""
    for name in class_order(counts):
        if not counts[name]:
            remedy = "; ".join(["add some or remove it", *inside])
            raise UserError(f"class folder {os.path.join(where, name)} has no images; {remedy}")


def _split_folders(root: str) -> tuple[dict[SplitName, str], list[str]]:
    """The folder of each split, and notes; {"train": root} without split folders."""
    if not os.path.isdir(root):
        raise UserError(f"{root} is neither a folder nor a .csv, .parquet or .tar file")
    names = _folders(root)
    words = [name for name in names if name.lower() in SPLIT_NAMES] or _by_words(root, names)
    if not words:
        return {"train": root}, []
    others = some_of(repr(name) for name in names if name not in words)
    notes = [f"{root}: folders beside train/ left out: {others}"] if others else []
    places: dict[SplitName, str] = {}
    for split, word in by_split(root, sorted(words)).items():
        place = os.path.join(root, word)
        inner = [entry.name for entry in entries(place) if not entry.name.startswith(".")]
        places[split] = os.path.join(place, word) if inner == [word] else place
        if word.lower() not in SPLIT_NAMES:
            notes.append(f"{root}: {word}/ is taken as {split}")
    if len({*map(os.path.realpath, places.values())}) < len(places):
        both = " and ".join(f"{word}/" for word in words)
        raise UserError(f"{root}: {both} are one folder by a link; give each images of its own")
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
