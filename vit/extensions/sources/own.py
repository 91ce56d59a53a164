"""Images that a Python program has, as splits: pairs of path and label, Datasets, folders.

Pairs and Datasets become rows of names and labels for `vit.data.manifest.Listing`.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch.utils.data import IterableDataset

from vit.console import note
from vit.data.cut import complete
from vit.data.find import check_source, find_splits
from vit.data.labelling import Labelled
from vit.data.manifest import Listing, Table
from vit.data.settings import ModelClasses, Reading
from vit.data.sources import SPLIT_WORDS, SPLITS, ImageSet, Splits, all_of_one, by_split
from vit.errors import UserError, shorten, some_of
from vit.extensions.sources.opened import OpenedImages, plain


class OwnImages:
    """Images and labels as objects of Python.

    Each of `train`, `val` and `test` is a folder or CSV file, a list of (path, label), or a
    map-style Dataset. A label is text, a number, or a list of those. `train` may be a mapping of
    splits, such as a DatasetDict.

    Raises UserError for another type, and for no images.
    """

    def __init__(self, train: Any, val: Any = None, test: Any = None) -> None:
        self.notes: list[str] = []
        sets: dict[Any, Any] = {"train": train}
        if isinstance(train, Mapping):
            words = sorted(name for name in train if name in SPLIT_WORDS)
            sets = {split: train[word] for split, word in by_split("data", words).items()}
            others = some_of(repr(name) for name in train if name not in SPLIT_WORDS)
            self.notes += [f"left out, as neither train, val nor test: {others}"] if others else []
        more = {"val": val, "test": test}
        self.given = sets | {name: images for name, images in more.items() if images is not None}
        for name, images in self.given.items():
            indexed = hasattr(images, "__len__") and hasattr(images, "__getitem__")
            if _is_path(images):
                check_source(None, os.fspath(images))
            elif not indexed or isinstance(images, IterableDataset):
                problem = f"{name} is of type {type(images).__name__}; give a folder, a list of"
                raise UserError(f"{problem} (path, label), or a map-style Dataset")
            elif not len(images):
                raise UserError(f"{name} has no images")

    def splits(self, reading: Reading) -> Splits:
        """The splits that are given, and those that `cut` takes from train.

        The classes are those that a Dataset of train names, in its order, or else the labels in
        natural order.

        Raises UserError if there is no train, an image or its label is none, a file does not exist,
        there is one class only, or a split has a label that train, or the model, lacks.
        """
        if reading.model is not None:
            name = max(self.given, key=SPLITS.index)
            split = "val" if name == "val" else "test"
            return all_of_one(self._held_out(name, reading, []), reading.model, split)
        if "train" not in self.given:
            raise UserError(f"data has {some_of(map(repr, self.given)) or 'nothing'}, but no train")
        train, held = self.given["train"], [name for name in self.given if name != "train"]
        if _is_path(train):  # cut as the commands do: by the same keys, and by whole groups
            less = {"val_fraction": 0.0} if "val" in held else {}
            cut = replace(reading.cut, test_fraction=0.0, **less) if held else reading.cut
            splits = find_splits(None, os.fspath(train), replace(reading, cut=cut))
            model = ModelClasses(names=splits.classes, multilabel=splits.multilabel)
            more = {name: self._held_out(name, replace(reading, model=model), []) for name in held}
            more |= {f"{name}_origin": "given" for name in held}
            return replace(splits, **more, notes=[*self.notes, *splits.notes])
        reading.refuse_columns("train")
        rows = _Rows("train", train, reading)
        classes = rows.classes() if reading.labelled else []
        model = ModelClasses(names=classes, multilabel=rows.several)
        sets: dict[Any, Any] = {"train": (images := rows.images(model))}
        for name in held:
            sets[name] = self._held_out(name, replace(reading, model=model), rows.names)
        return complete(model.names, sets, images.names, reading, where="train", notes=self.notes)

    def _held_out(self, name: Any, reading: Reading, names: Sequence[str]) -> Any:
        """The images of a split, labelled by the classes of a model."""
        images, model = self.given[name], reading.model
        if _is_path(images):
            inside = os.path.join(images, name)  # of a folder with splits that one, not its test
            place = inside if os.path.isdir(inside) else os.fspath(images)
            splits = find_splits(None, place, reading)
            return splits.get(splits.scored)
        assert model is not None
        return _Rows(name, images, reading, names).images(model)


def _is_path(images: Any) -> bool:
    return isinstance(images, str | os.PathLike)


class _Rows(Table):
    """The paths of a split, or names such as train/17, and the names of their labels.

    `names`: the classes by number, of a Dataset that does not name them.
    """

    def __init__(self, split: str, items: Any, reading: Reading, names: Sequence[str] = ()) -> None:
        self.path, self.folder, labelled = split, os.getcwd(), reading.has_classes
        self.header = ["path", "label"] if labelled else ["path"]
        self.several = False
        """A label is a list."""
        self.names, self._given = names, items
        self._name = getattr(items, "row_name", f"{split}/{{}}".format)
        self._opened: OpenedImages | None = None
        self._labels: Sequence[Any] = [None] * len(items)
        if not isinstance(items, list | tuple) or not _is_path(_parts(items[0])[0]):
            self._opened = OpenedImages(items, split, labelled=labelled, arrays=reading.arrays)
            if labelled:
                self._labels, changed = self._opened.labels()
                self.names = [] if changed else self._opened.class_names() or names
                if changed:
                    text = "its items have other labels than its `targets`, so `classes` names none"
                    note(f"{split}: {text}: the labels are the names")
        listing = Listing(self, Reading(labelled=labelled))
        listing.multilabel = self.several
        if self._opened is None:
            self._part = listing.part("train")
        else:
            rows = listing.names, listing.labels, listing.entries
            self._part = Labelled(split, self._opened, *rows)

    def place(self, number: int) -> str:
        return f"{self.path}[{number}]"

    def rows(self, columns: Sequence[int]) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Number, name and, if there are two columns, names of the labels of each image."""
        for number in range(len(self._given)):
            name, label = self._name(number), self._labels[number]
            if self._opened is None:
                name, label = self._pair(number)
            yield number, (name, self._texts(label, number)) if len(columns) > 1 else (name,)

    def _pair(self, number: int) -> tuple[str, Any]:
        path, *label = _parts(self._given[number])
        if not _is_path(path) or len(label) != len(self.header) - 1:
            shown = shorten(repr(self._given[number]))
            raise UserError(f"{self.place(number)} is {shown}; give ({', '.join(self.header)})")
        return os.path.expanduser(os.fspath(path)), label[0] if label else None

    def _texts(self, label: Any, number: int) -> tuple[str, ...]:
        """The names of the labels of an image."""
        if not isinstance(label, list | tuple):
            return (self._text(label, number),)
        self.several = True
        texts = tuple(self._text(each, number) for each in label)
        if len(set(texts)) < len(texts):
            problem = f"{self.place(number)} has a label twice in {shorten(label)}"
            raise UserError(f"{problem}; give numbers or names, not a row of zeros and ones")
        return texts

    def _text(self, label: object, number: int) -> str:
        value, known = plain(label), len(self.names)
        if isinstance(value, str) and value.strip():
            return value
        if not isinstance(value, int) or (known and not 0 <= value < known):
            rule = f"a number below {known:,}" if known else "a whole number"
            problem = f"{self.place(number)} has the label {shorten(repr(value))}"
            raise UserError(f"{problem}; a label is text, {rule}, or a list of those")
        return self.names[value] if known else str(int(value))

    def classes(self) -> list[str]:
        """Classes that the Dataset names, or else the labels."""
        used = self._part.class_names()
        return list(self.names) if set(used) <= set(self.names) else used

    def images(self, model: ModelClasses) -> ImageSet:
        """The images, labelled by the classes of train."""
        if self.several and not model.multilabel:
            raise UserError(f"{self.path} has lists of labels, and train has one label per image")
        return self._part.images(model.names, model.multilabel, "train or the model lacks")[0]


def _parts(item: object) -> Sequence[Any]:
    return item if isinstance(item, tuple | list) and len(item) else (item,)
