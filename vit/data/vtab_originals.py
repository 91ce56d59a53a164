"""Tasks of VTAB-1k, written from the files of the data sets that they are made of.

Labels and splits follow google-research/task_adaptation. It trains on the first 800 and 200 images
in the order of TensorFlow Datasets, which only that package knows: ours are drawn, and so are test
sets that only that order defines (caltech101, dsprites, eurosat, resisc45, sun397).
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torchvision.datasets
from PIL import Image

from vit.console import Meter
from vit.data.vtab import LINES, TASKS
from vit.writing import write_text

Sets = dict[str, tuple[Any, np.ndarray]]
"""Split -> (image, label or facts) by place, and the places of its images."""


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
    sets: Sets = {}
    files = TASKS[name]["reader"]
    for split, options in files["splits"].items():
        reader = getattr(torchvision.datasets, files["kind"])
        images = reader(str(source / files["folder"]), **options)
        # Some list a folder in the order of the file system.
        paths = getattr(images, "_image_files", getattr(images, "images", None))
        order = np.arange(len(images)) if paths is None else np.argsort(list(map(str, paths)))
        sets[split] = images, order
    return sets


def _clevr(source: Path) -> Sets:
    """With the distance of each object."""
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
