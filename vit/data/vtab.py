"""VTAB-1k: 19 tasks of 1,000 training images (arXiv:1910.04867), as lists of files.

ROOT/cifar/train800.txt          lines such as `images/1.jpg 12`: a path in the folder, and a label
ROOT/cifar/val200.txt            on which a learning rate is chosen
ROOT/cifar/train800val200.txt    both of these
ROOT/cifar/test.txt
ROOT/svhn/train800.txt           and so on

NOAH, SSF and others pass the tasks around like this. vtab.json has a row per task, in the order of
the ViT paper's Table 9: group, classes, images of the test set that papers report, other names of
the folder without numbers at their ends, what reads its originals (a class of torchvision.datasets,
its root, its arguments by split), and the share of them that we draw as a test set.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vit.data.catalog import Protocol
from vit.data.manifest import Listing
from vit.data.options import ModelClasses, Reading
from vit.data.sources import Splits
from vit.data.table import Table
from vit.errors import UserError, some_of

TASKS: dict[str, Any] = json.loads(Path(__file__).with_name("vtab.json").read_text())
PROTOCOL = Protocol(2_500, (0.01,), 0.2)
"""arXiv:2010.11929, section B.1.1."""
LINES = {"train800": 800, "val200": 200, "train800val200": 1_000, "test": None}
"""Lists, and how many images they have."""


def _stem(name: str) -> str:
    """cifar of cifar, cifar100, cifar_100 and vtab-cifar."""
    return re.sub(r"^vtab[-_]|[-_]?\d+$", "", name.lower())


_NAMES = {_stem(each): name for name, task in TASKS.items() for each in (name, *task["also"])}


def is_task(folder: str | os.PathLike[str]) -> bool:
    """The folder has lists of VTAB-1k."""
    return (Path(folder).expanduser() / "train800val200.txt").is_file()


def task_folders(root: str) -> dict[str, str]:
    """Name -> folder of the tasks in `root`. UserError if there is none, or an unknown one."""
    folders = sorted(place for place in Path(root).expanduser().glob("[!.]*") if place.is_dir())
    found: dict[str, str] = {}
    for place in folders:
        if is_task(place) or _stem(place.name) in _NAMES:
            if (name := _task_name(place)) in found:
                raise UserError(f"{found[name]} and {place} are both {name}; remove one")
            found[name] = str(place)
    if not found:
        layout = "such as a folder cifar with train800.txt and other lists (docs/vtab.md)"
        raise UserError(f"{root} has no task of VTAB-1k, {layout}")
    return {name: found[name] for name in TASKS if name in found}


def _task_name(folder: Path) -> str:
    if (name := _NAMES.get(_stem(folder.name))) is None:
        known = ", ".join(TASKS)
        raise UserError(f"{folder} is the folder of no task of VTAB-1k; known are {known}")
    return name


def load_task(folder: str, *, search: bool) -> Splits:
    """The splits of a task: train800, val200 and test to `search`, else train800val200 and test.

    The classes are those of the task; some may have no training image, as in the benchmark.

    Raises UserError for an unknown task, lists and images that are missing, other numbers of lines,
    labels that are none of the classes, a train800val200.txt that is not both of its parts, and
    images of test among them.
    """
    folder = os.path.abspath(os.path.expanduser(folder))
    task = TASKS[_task_name(Path(folder))]
    classes, notes = [str(number) for number in range(task["classes"])], []
    tables = (_Lines(f"{folder}/{name}.txt", count) for name, count in LINES.items())
    listings = (Listing(table, Reading()) for table in tables)
    model = ModelClasses(names=classes)
    train, val, both, test = (listing.images("train", model) for listing in listings)
    parts, whole, tested = (
        {*names} for names in ([*train.names, *val.names], both.names, test.names)
    )
    if parts != whole:
        raise UserError(f"{folder}/train800val200.txt is not train800.txt and val200.txt together")
    if copies := some_of(sorted(whole & tested)):
        raise UserError(f"{folder}/test.txt has images of train800val200.txt: {copies}")
    if len(test) != task["test"]:
        where = f"{folder}/test.txt is not the test set of papers"
        notes = [f"{where}: {len(test):,} images, not {task['test']:,}"]
    splits = Splits(classes, both, test=test, test_origin="given", notes=notes)
    return replace(splits, train=train, val=val, val_origin="of the task") if search else splits


class _Lines(Table):
    """A list as rows of path and label. UserError if it has another number of lines."""

    def __init__(self, path: str, count: int | None) -> None:
        self.path, self.folder, self.header = path, os.path.dirname(path), ["path", "label"]
        try:
            self._lines = Path(path).read_text("utf-8", "surrogateescape").rstrip().splitlines()
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from error
        if not self._lines:
            raise UserError(f"{path} is empty")
        if count is not None and len(self._lines) != count:
            raise UserError(f"{path} has {len(self._lines):,} lines, not {count:,}")

    def rows(self, columns: Sequence[int]) -> Iterator[tuple[int, tuple[str, ...]]]:
        for number, line in enumerate(self._lines, 1):
            path, _, label = line.strip().rpartition(" ")
            yield number, (path, label)
