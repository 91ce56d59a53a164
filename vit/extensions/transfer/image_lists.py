"""Lists of the images of a data set, for runs that divide them in their own way."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from vit.data.manifest import SEPARATOR
from vit.data.sources import PathList, Splits
from vit.errors import UserError


def listed_images(splits: Splits, columns: Mapping[str, Sequence[object]]) -> str:
    """A CSV with path, label, group if there are any, and `columns`.

    A column has a cell for each image of train, then of val and of test, as far as they are there.
    UserError for images that are no files, and for names of classes that a list cannot hold.
    """
    lost = [name for name in splits.classes if SEPARATOR in name or name != name.strip()]
    if lost:
        raise UserError(f"class names with {SEPARATOR!r} or outer blanks cannot be listed: {lost}")
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    grouped = splits.train.groups is not None
    writer.writerow(["path", "label", *(["group"] if grouped else []), *columns])
    cells = zip(*columns.values(), strict=True)
    for images in splits.present().values():
        if not isinstance(images.items, PathList):
            raise UserError(
                "the images are listed, and these are no files, but in shards or in memory; unpack "
                "them into a folder for each class"
            )
        groups = [[name] for name in images.groups or ()] or [[]] * len(images)
        for path, label, group in zip(images.items, images.labels, groups, strict=True):
            numbers = label.nonzero()[0] if splits.multilabel else [label]
            labels = SEPARATOR.join(splits.classes[i] for i in numbers)
            alone = splits.multilabel and len(numbers) == 1  # one of perhaps several
            writer.writerow([path, labels + SEPARATOR * alone, *group, *next(cells)])
    return file.getvalue()


def csv_of(splits: Splits, val: str) -> str:
    """A CSV of the images for `vit fit`; `val` is the split of those in val."""
    sizes = ((val if name == "val" else name, len(s)) for name, s in splits.present().items())
    return listed_images(splits, {"split": [name for name, size in sizes for _ in range(size)]})


def reading_options(splits: Splits, file: Path, split: str = "split") -> list[str]:
    """The options of `vit fit` that read a list with this column of splits."""
    columns = {"path": "path", "label": "label", "split": split}
    columns |= {"group": "group"} if splits.train.groups is not None else {}
    options = [f"--data.root={file}", "--data.splits.val_fraction=0"]
    options += [f"--data.columns.{role}={name}" for role, name in columns.items()]
    return options + [f"--data.label_separator={SEPARATOR}"] * splits.multilabel
