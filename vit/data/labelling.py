"""Images of any source with the names of their labels, and the splits that are made of them.

Shapes: n images, k classes.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from vit.data.cut import Divide, by_class, complete
from vit.data.items import Opened
from vit.data.settings import Reading
from vit.data.sources import SPLITS, ImageSet, PathList, SplitName, Splits, all_of_one
from vit.errors import UserError, some_of


@dataclass
class Labelled:
    """The images of one split, and the names of their labels."""

    where: str
    """Their folder, file or shards, in messages."""
    items: PathList | Opened
    names: PathList
    labels: Sequence[tuple[str, ...]]
    """Distinct entries, each with the names of an image's labels; empty without labels."""
    entries: np.ndarray
    """int `n`: the place of each image's labels in `labels`."""
    keys: PathList | None = None
    """Texts by which val and test are cut; `names` by default."""
    classes: Sequence[str] = ()
    """The classes by number, if the source lists them; by default the labels in natural order."""
    groups: PathList | None = None
    multilabel: bool = False
    in_class_order: bool = False
    """The images are put in the order of their classes."""
    notes: Sequence[str] = ()

    def class_names(self) -> list[str]:
        """The classes to train on. UserError for fewer than two, and for labels without images."""
        classes = [*self.classes] or class_order(chain(*self._used()))
        for name in classes:
            if any("\ud800" <= letter <= "\udfff" for letter in name):  # bytes that are no UTF-8
                raise UserError(f"class {name!r} in {self.where} is not text; rename it")
        if not classes:
            raise UserError(f"{self.where} has no labels")
        if len(classes) == 1:
            raise UserError(f"{self.where} has one class only, {classes[0]!r}; two are needed")
        return classes

    def images(
        self, classes: Sequence[str], multilabel: bool, lacking: str
    ) -> tuple[ImageSet, PathList]:
        """The images with numbers of `classes`, if there are any, and the keys of their cut.

        Raises UserError for a label that is none of the classes, which, say, "the model lacks".
        """
        names, items, keys = self.names, self.items, self.keys or self.names
        groups, labels = self.groups, np.zeros(len(names), dtype=np.int64)
        if classes:
            labels = self._numbers(classes, multilabel, lacking)
        if classes and self.in_class_order:
            rows = np.argsort(labels.argmax(1) if multilabel else labels, kind="stable")
            names, items, keys = names.select(rows), items.select(rows), keys.select(rows)
            labels, groups = labels[rows], groups and groups.select(rows)
        return ImageSet(items, labels, names.printable(), groups), keys

    def _used(self) -> list[tuple[str, ...]]:
        """The entries that images have."""
        return [self.labels[at] for at in np.unique(self.entries)]

    def _numbers(self, classes: Sequence[str], multilabel: bool, lacking: str) -> np.ndarray:
        """int64 `n`, or float32 `n k` of zeros and ones."""
        number = {name: at for at, name in enumerate(classes)}
        if unknown := class_order({*chain(*self._used())} - number.keys()):
            names = some_of(map(repr, unknown))
            raise UserError(f"{self.where} has classes that {lacking}: {names}")
        if not multilabel:
            if any(len(names) != 1 for names in self._used()):
                raise UserError(f"{self.where} has images of no label or several; give each one")
            first = [number.get("".join(names), -1) for names in self.labels]
            return np.array(first, dtype=np.int64)[self.entries]
        rows = np.zeros((len(self.labels), len(classes)), dtype=np.float32)
        for row, names in zip(rows, self.labels, strict=True):
            row[[number[name] for name in names if name in number]] = 1
        return rows[self.entries]


Readers = dict[SplitName, Callable[[], Labelled]]
"""A reader of each split, called at most once."""


def make_splits(
    root: str,
    readers: Readers,
    reading: Reading,
    *,
    notes: Sequence[str] = (),
    named: bool = True,
    divide: Divide = by_class,
) -> Splits:
    """The splits of a source, and those that are cut from train.

    Args:
        root: The source in messages.
        readers: For a model that exists only one is called.
        named: The source names its splits; all images of another one are test for such a model.
        divide: Cuts val and test from train.

    Raises UserError without train, and as `Labelled` and `complete` do.
    """
    if (model := reading.model) is not None:
        split = max(readers, key=SPLITS.index)
        part = readers[split]()
        several = bool(model.names) and (model.multilabel or part.multilabel)
        images, _ = part.images(model.names, several, "the model lacks")
        model = replace(model, multilabel=several)
        return all_of_one(images, model, split if named else "test", [*notes, *part.notes])
    if "train" not in readers:
        raise UserError(f"{root} has {' and '.join(readers)}, but no train; name its images train")
    parts: dict[SplitName, Labelled] = {name: read() for name, read in readers.items()}
    train = parts["train"]
    classes = train.class_names() if reading.labelled else []
    notes, sets = [*notes], dict[SplitName, ImageSet]()
    keys = train.names
    for name, part in parts.items():
        sets[name], order = part.images(classes, train.multilabel, f"{train.where} lacks")
        keys, notes = order if name == "train" else keys, [*notes, *part.notes]
    return complete(classes, sets, keys, reading, where=train.where, notes=notes, divide=divide)


def class_order(names: Iterable[str]) -> list[str]:
    """The names once each, in natural order: 1, 2, 10; other characters by code point."""
    return sorted(set(names), key=_natural)


def _natural(name: str) -> list[tuple[int, int, str]]:
    parts = re.split(r"([0-9]+)", name)
    return [(0, int(p), p) if p.isdecimal() and p.isascii() else (1, 0, p) for p in parts if p]
