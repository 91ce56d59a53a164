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

Tasks are written with the labels and splits of google-research/task_adaptation. It trains on the
first 800 and 200 images in the order of TensorFlow Datasets, which only that package knows: ours
are drawn, and so are test sets that only that order defines (caltech101, dsprites, eurosat,
resisc45, sun397).
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vit.console import Meter
from vit.data.manifest import Listing, Table
from vit.data.settings import Reading
from vit.data.sources import Splits
from vit.errors import UserError, some_of
from vit.extensions.transfer.vtab_source import is_task
from vit.writing import write_text

TASKS: dict[str, Any] = json.loads(Path(__file__).with_name("vtab.json").read_text())
LINES = {"train800": 800, "val200": 200, "train800val200": 1_000, "test": None}
"""Lists, and how many images they have."""
Sets = dict[str, tuple[Any, np.ndarray]]
"""Split -> (image, label or facts) by place, and the places of its images."""


def _stem(name: str) -> str:
    """cifar of cifar, cifar100, cifar_100 and vtab-cifar."""
    return re.sub(r"^vtab[-_]|[-_]?\d+$", "", name.lower())


_NAMES = {_stem(each): name for name, task in TASKS.items() for each in (name, *task["also"])}


def task_folders(root: str) -> dict[str, str]:
    """Name -> folder of the tasks in `root`. UserError if there is none, or an unknown one."""
    folders = sorted(place for place in Path(root).expanduser().glob("[!.]*") if place.is_dir())
    tasks: dict[str, str] = {}
    for place in folders:
        if is_task(place) or _stem(place.name) in _NAMES:
            if (name := _task_name(place)) in tasks:
                raise UserError(f"{tasks[name]} and {place} are both {name}; remove one")
            tasks[name] = str(place)
    if not tasks:
        raise UserError(f"{root} has no task of VTAB-1k, such as cifar/train800.txt (docs/vtab.md)")
    return {name: tasks[name] for name in TASKS if name in tasks}


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
    lists = (Listing(table, Reading()).part("train") for table in tables)
    sets = (each.images(classes, False, "the task lacks")[0] for each in lists)
    train, val, both, test = sets
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


def write_task(name: str, drawn: Sets, folder: Path) -> None:
    """Writes images as PNG, and then the lists, the last of which is test.txt."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    texts = dict.fromkeys(LINES, "")
    with Meter(f"writing {name}", sum(len(at) for _, at in drawn.values()), "img") as meter:
        for split, (images, places) in drawn.items():
            for number, place in enumerate(places.tolist()):
                image, facts = images[place]
                file = f"images/{split}-{number:05d}.png"
                picture = Image.fromarray(image) if isinstance(image, np.ndarray) else image
                picture.save(folder / file, compress_level=1)
                texts[split] += f"{file} {LABELS.get(name, int)(facts)}\n"
                meter.advance()
    texts["train800val200"] = texts["train800"] + texts["val200"]
    for split, text in texts.items():
        write_text(folder / f"{split}.txt", text)


def draw(name: str, source: Path) -> Sets:
    """The images of each list. OSError, or torchvision's RuntimeError, without their files."""
    random = np.random.default_rng(0)
    sets = SPECIAL[name](source) if name in SPECIAL else _official(name, source)
    train, rest = sets["train"][0], random.permutation(sets["train"][1])
    if name == "caltech101":  # 30 images of each class are train
        labels = np.array(train.targets)[rest]
        chosen = np.concatenate([rest[labels == label][:30] for label in np.unique(labels)])
        sets["test"], rest = (train, np.setdiff1d(rest, chosen)), random.permutation(chosen)
    elif "test" not in sets:
        count = int(TASKS[name]["test_share"] * len(rest))
        sets["test"], rest = (train, rest[:count]), rest[count:]
    val, places = sets.get("val", (train, rest[800:]))
    sets["val200"] = val, random.permutation(places)[:200]
    return {"train800": (train, rest[:800]), "val200": sets["val200"], "test": sets["test"]}


def _official(name: str, source: Path) -> Sets:
    """The splits as torchvision reads them."""
    from torchvision import datasets

    sets: Sets = {}
    files = TASKS[name]["reader"]
    for split, options in files["splits"].items():
        reader = getattr(datasets, files["kind"])
        images = reader(str(source / files["folder"]), **options)
        # Some list a folder in the order of the file system.
        paths = getattr(images, "_image_files", getattr(images, "images", None))
        order = np.arange(len(images)) if paths is None else np.argsort(list(map(str, paths)))
        sets[split] = images, order
    return sets


def _clevr(source: Path) -> Sets:
    """Splits with the distance of each object."""
    sets = _official("clevr_count", source)
    for images, _ in sets.values():
        file = images._data_folder / "scenes" / f"CLEVR_{images._split}_scenes.json"
        scenes = json.loads(file.read_text())["scenes"]
        objects = {scene["image_filename"]: scene["objects"] for scene in scenes}
        images._labels = [objects[image.name] for image in images._image_files]
    return sets


def _kitti(source: Path) -> Sets:
    """Cut by video with TensorFlow Datasets' draw: a tenth of the videos each is val and test."""
    [(images, order)] = _official("kitti", source).values()
    mapping = source / "Kitti" / "mapping"  # of the development kit
    lines = (mapping / "train_mapping.txt").read_text().splitlines()
    numbers = (mapping / "train_rand.txt").read_text().split(",")
    videos = np.array([lines[int(number) - 1].split()[1] for number in numbers])
    left, random, sets = np.unique(videos), np.random.RandomState(123), {}
    tenth = max(1, len(left) // 10)
    for split in ("test", "val"):
        chosen = random.choice(left, tenth, replace=False)
        left = np.setdiff1d(left, chosen)
        sets[split] = images, order[np.isin(videos, chosen)]
    return {"train": (images, order[np.isin(videos, left)]), **sets}


def _dsprites(source: Path) -> Sets:
    content = np.load(source / "dsprites/dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz")
    images, classes = content["imgs"] * np.uint8(255), content["latents_classes"].tolist()
    return {"train": (list(zip(images, classes, strict=True)), np.arange(len(images)))}


def _clevr_distance(objects: list[dict[str, Any]]) -> int:
    nearest = min(thing["pixel_coords"][2] for thing in objects)
    return sum(threshold < nearest for threshold in (8.0, 8.5, 9.0, 9.5, 10.0))


def _kitti_distance(objects: list[dict[str, Any]]) -> int:
    vehicles = (thing for thing in objects if thing["type"] in ("Car", "Van", "Truck"))
    nearest = min((thing["location"][2] for thing in vehicles), default=1_000.0)
    return sum(threshold < nearest for threshold in (8.0, 20.0, 999.0))


SPECIAL = {"clevr_count": _clevr, "clevr_dist": _clevr, "kitti": _kitti}
SPECIAL |= {"dsprites_loc": _dsprites, "dsprites_ori": _dsprites}
COVERED = [name for name, task in TASKS.items() if "reader" in task or name in SPECIAL]
"""Not so diabetic_retinopathy, dmlab and smallnorb, whose files torchvision cannot read."""
LABELS: dict[str, Callable[[Any], int]] = {
    "clevr_count": lambda objects: len(objects) - 3,
    "clevr_dist": _clevr_distance,
    "dsprites_loc": lambda classes: classes[4] * 16 // 32,
    "dsprites_ori": lambda classes: classes[3] * 16 // 40,
    "kitti": _kitti_distance,
}  # what an original says of an image -> label; others say the label
