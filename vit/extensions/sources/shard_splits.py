"""Images in tar shards as the splits of a data set, as those in folders with the same paths."""

import os
from collections import Counter
from contextlib import suppress
from functools import partial

import numpy as np

from vit.data.folder import class_of
from vit.data.labelling import Labelled, Readers, class_order
from vit.data.scan import left_out_note
from vit.data.settings import Reading
from vit.data.sources import SPLIT_WORDS, PathList
from vit.errors import UserError, some_of
from vit.extensions.sources.addresses import reaching, words_by_split
from vit.extensions.sources.shards import CLASSES, PLAN, ShardImages, listed_names, load_indices


def shard_parts(root: str, reading: Reading, shards: dict[str, list[str]]) -> Readers:
    """Reader of each split in shards of `find_shards`."""
    names = _class_names(root, {os.path.dirname(file) for each in shards.values() for file in each})
    readers: Readers = {}
    for split, word in words_by_split(root, shards).items():
        above, where = (f"{word}/", f"{word} of {root}") if word else ("", root)
        readers[split] = partial(_read, where, shards[word], names, above, reading)
    return readers


def _read(
    where: str, shards: list[str], names: list[str], above: str, reading: Reading
) -> Labelled:
    """Images of one split. UserError for an unreadable shard, or a label that `names` lacks."""
    indices = load_indices(shards)
    images = ShardImages(shards, indices)
    labels = [label for index in indices for label in index["label"].tolist()]
    # As in a folder: by folder, and then by name.
    paths = [b"\0".join(name.rpartition(b"/")[::2]) for name in images.names.encoded()]
    entries: dict[tuple[bytes, bytes], tuple[int, str, bytes]] = {}
    rows: list[tuple[int, int, bytes]] = []  # of the store; in `entries`; key of the cut
    for row in sorted(range(len(paths)), key=paths.__getitem__):
        folder, _, name = paths[row].partition(b"\0")
        place = (folder, labels[row] if reading.has_classes else b"")
        if place not in entries:
            label = _named(place[1].decode(), names, where)
            of_class, below = class_of(os.fsdecode(folder), reading, label)
            below = os.fsencode(f"{below}/" if below else "")
            entries[place] = len(entries), of_class, below
        number, label, below = entries[place]
        if label or not reading.has_classes:
            rows.append((row, number, below + name))
    counts = Counter(kind.decode() for index in indices for kind in index["left_out"].tolist())
    if not paths:
        raise UserError("; ".join([f"no images in {where}", *left_out_note("there", counts)]))
    notes = left_out_note(where, counts) + _loose_note(where, len(paths) - len(rows), bool(rows))
    classes = [label for _, label, _ in entries.values()]
    if reading.has_classes and not names:
        _check_words(where, class_order(filter(None, classes)))
    order = np.array([row for row, _, _ in rows], dtype=np.int64)
    numbers = np.array([number for _, number, _ in rows], dtype=np.int64)
    keys = PathList(key for _, _, key in rows)
    shown = PathList(os.fsencode(above) + name for name in images.names.select(order).encoded())
    texts, items = [(label,) for label in classes], images.select(order)
    more = {"classes": [] if reading.tree else names, "in_class_order": True, "notes": notes}
    return Labelled(where, items, shown, texts, numbers, keys, **more)


def _check_words(where: str, classes: list[str]) -> None:
    """UserError for classes that are splits."""
    if {*map(str.lower, classes)} <= {*SPLIT_WORDS}:
        text = f"{where} has the folders {some_of(classes)}"
        raise UserError(f"{text}; pack each into shards of its own, such as val-000.tar")


def _loose_note(where: str, loose: int, labelled: bool) -> list[str]:
    """A note on images without a label; UserError if there are no others."""
    if loose and not labelled:
        text = f"{where} has {loose:,} images but no class folders or .cls files"
        raise UserError(f"{text}; put those of each class into a folder with its name")
    return [f"{where}: images outside class folders left out: {loose:,}"] if loose else []


def _named(label: str, names: list[str], where: str) -> str:
    """The class of a label, which may be its number; the label itself without `names`."""
    if not names or not label:
        return label
    count, numerals = len(names), [int(name) for name in names if name.isdecimal()]
    if label.isdecimal() and int(label) < count:
        return names[int(label)]
    if label not in names or (label.isdecimal() and min(numerals) < count):  # names or numbers
        raise UserError(f"{where} has the label {label!r}; {CLASSES} has numbers 0 to {count - 1}")
    return label


def _class_names(root: str, folders: set[str]) -> list[str]:
    """The names in the lists of the shards' folders; none without a list. UserError where lists
    differ, and for a folder whose packing was interrupted."""
    lists = {tuple(_listed(folder)) for folder in folders} - {()}
    if len(lists) > 1:
        text = f"{root} has shards with different names in {CLASSES}, by which numbers are read"
        raise UserError(f"{text}; pack their images together: vit data pack FOLDER NEW")
    return [*next(iter(lists), ())]


def _listed(folder: str) -> list[str]:
    """The names in the list beside shards, or else beside their split folder."""
    above = os.path.basename(folder).lower() in SPLIT_WORDS
    for place in (folder, os.path.dirname(folder))[: 1 + above]:
        with suppress(FileNotFoundError), reaching(f"{place}/{CLASSES}") as (files, path):
            return listed_names(files.cat_file(path))
    if os.path.exists(f"{folder}/{PLAN}"):
        raise UserError(f"{folder} is not packed to its end: type the same `vit data pack` again")
    return []
