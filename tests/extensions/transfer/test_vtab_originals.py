"""VTAB-1k from originals: each miniature is a gray picture whose brightness is its label."""

import json
import os
import pickle
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat
from torchvision.datasets import CIFAR100, cifar, flowers102, svhn

from tests.command import Vit, vit
from vit.extensions.transfer.vtab import COVERED, LABELS, TASKS, draw, load_task

__all__ = ["vit"]


def picture(path: Path, label: int) -> Path:
    """The label's picture at a path, whatever its suffix."""
    top = next(folder for folder in path.parents if folder.name == "originals")
    if not (known := top / f"{label}.png").exists():
        Image.new("RGB", (4, 4), (label, label, label)).save(known)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.link(known, path)
    return path


def class_folders(root: Path, per_class: Iterable[int], name: str = "{}.jpg") -> None:
    for label, count in enumerate(per_class):
        for number in range(count):
            picture(root / f"c{label:02}" / name.format(number), label)


def arrays(root: Path) -> None:
    """CIFAR-100, SVHN, dSprites, and PatchCamelyon as `h5py` reads it."""
    folder = root / CIFAR100.base_folder
    folder.mkdir()
    for name, count in (("train", 1_200), ("test", 30)):
        labels = np.arange(count) % 100
        data = np.repeat(labels[:, None], 3072, axis=1).astype(np.uint8)
        entry = {"data": data, "fine_labels": labels.tolist()}
        (folder / name).write_bytes(pickle.dumps(entry))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": [str(i) for i in range(100)]}))
    (root / "svhn").mkdir()
    for name, count in (("train", 1_100), ("test", 20)):
        labels = np.arange(count) % 10
        pixels = np.broadcast_to(labels.astype(np.uint8), (32, 32, 3, count))
        file = root / "svhn" / f"{name}_32x32.mat"
        savemat(file, {"X": pixels, "y": np.where(labels == 0, 10, labels)[:, None]})
    (root / "pcam").mkdir()
    for word, count in (("train", 900), ("valid", 300), ("test", 40)):
        labels = np.arange(count, dtype=np.uint8) % 2
        images = np.broadcast_to(labels[:, None, None, None], (count, 8, 8, 3))
        file = str(root / "pcam" / f"camelyonpatch_level_2_split_{word}_{{}}.h5")
        with open(file.format("x"), "wb") as stream:
            np.savez(stream, x=images)
        with open(file.format("y"), "wb") as stream:
            np.savez(stream, y=labels[:, None, None, None])
    (root / "dsprites").mkdir()
    classes = np.zeros((1_280, 6), dtype=np.int64)
    classes[:, 3], classes[:, 4] = np.arange(1_280) % 40, np.arange(1_280) // 40
    file = root / "dsprites" / "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"
    images = np.repeat(np.arange(1_280) % 2, 64).reshape(-1, 8, 8).astype(np.uint8)
    np.savez(file, imgs=images, latents_classes=classes)


def files(root: Path) -> None:
    """The sets that torchvision or nobody lists, in folders of their own layouts."""
    class_folders(root / "caltech101" / "101_ObjectCategories", range(31, 66))
    class_folders(root / "eurosat" / "2750", [130] * 10)
    class_folders(root / "NWPU-RESISC45", [30] * 45)
    class_folders(root / "SUN397" / "c", [320] * 4, "sun_{}.jpg")
    (root / "SUN397" / "ClassName.txt").write_text("".join(f"/c/c0{i}\n" for i in range(4)))
    labels = root / "dtd" / "dtd" / "labels"
    labels.mkdir(parents=True)
    for split, count in (("train", 850), ("val", 250), ("test", 30)):
        names = [f"c{i % 5}/{split}{i}.jpg" for i in range(count)]
        for i, name in enumerate(names):
            picture(root / "dtd" / "dtd" / "images" / name, i % 5)
        (labels / f"{split}1.txt").write_text("".join(f"{name}\n" for name in names))
    flowers, ends = root / "flowers-102", {"trnid": 850, "valid": 1_060, "tstid": 1_080}
    for number in range(1, 1_081):
        picture(flowers / "jpg" / f"image_{number:05d}.jpg", number % 7)
    savemat(flowers / "imagelabels.mat", {"labels": [[i % 7 + 1 for i in range(1, 1_081)]]})
    begin, parts = 1, {}
    for name, end in ends.items():
        parts[name], begin = np.arange(begin, end + 1)[None], end + 1
    savemat(flowers / "setid.mat", parts)
    notes = root / "oxford-iiit-pet" / "annotations"
    notes.mkdir(parents=True)
    for split, count in (("trainval", 1_050), ("test", 25)):
        lines = [f"a_{split}{i}_{i} {i % 3 + 1} 1 1\n" for i in range(count)]
        (notes / f"{split}.txt").write_text("".join(lines))
        for i in range(count):
            picture(root / "oxford-iiit-pet" / "images" / f"a_{split}{i}_{i}.jpg", i % 3)


# Distance of the nearest object -> class, at and around the published thresholds.
CLEVR = {7.0: 0, 8.0: 0, 8.1: 1, 8.5: 1, 8.6: 2, 9.0: 2, 9.1: 3, 9.5: 3, 9.6: 4, 10.0: 4, 10.1: 5}
KITTI: dict[float | None, int] = {2.0: 0, 8.0: 0, 8.1: 1, 20.0: 1, 20.1: 2, 90.0: 2, None: 3}


def scenes(root: Path) -> None:
    """CLEVR, where pictures show the class of distance; KITTI in 6 videos."""
    place = root / "clevr" / "CLEVR_v1.0"
    (place / "scenes").mkdir(parents=True)
    for split, count in (("train", 1_100), ("val", 22)):
        listed = []
        for number in range(count):
            distance, label = list(CLEVR.items())[number % len(CLEVR)]
            name = f"CLEVR_{split}_{number:06d}.png"
            picture(place / "images" / split / name, label)
            depths = [distance, *np.linspace(distance, 15, 2 + number % 8)]
            objects = [{"pixel_coords": [1, 2, depth]} for depth in depths]
            listed.append({"image_filename": name, "objects": objects})
        text = json.dumps({"scenes": listed})
        (place / "scenes" / f"CLEVR_{split}_scenes.json").write_text(text)
    raw, mapping = root / "Kitti" / "raw" / "training", root / "Kitti" / "mapping"
    (raw / "label_2").mkdir(parents=True)
    for number in range(1_500):
        distance, label = list(KITTI.items())[number % len(KITTI)]
        picture(raw / "image_2" / f"{number:06d}.png", label)
        cells = {"Pedestrian": 1.0, "DontCare": -1000.0, "Van": distance, "Truck": 95.0}
        cells = cells if distance else {"Cyclist": 3.0}
        (raw / "label_2" / f"{number:06d}.txt").write_text(
            "".join(f"{kind} 0 0 0 0 0 1 1 1 1 1 5 1 {z} 0\n" for kind, z in cells.items())
        )
    mapping.mkdir()
    lines = [f"2011_09_26 drive_{i % 6:04d} {i:010d}\n" for i in range(1_500)]
    (mapping / "train_mapping.txt").write_text("".join(lines))
    (mapping / "train_rand.txt").write_text(",".join(map(str, mixed())))


def mixed() -> list[int]:
    """The line of each picture of KITTI, from 1 on."""
    return (np.random.default_rng(1).permutation(1_500) + 1).tolist()


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("vtab") / "originals"
    root.mkdir()
    for write in (arrays, files, scenes):
        write(root)
    return root


@pytest.fixture(autouse=True)
def files_as_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the right names are taken for the right files; h5py reads .npz."""
    for module in (cifar, flowers102, svhn):
        monkeypatch.setattr(module, "check_integrity", lambda path, *_: Path(path).is_file())
    monkeypatch.setitem(sys.modules, "h5py", SimpleNamespace(File=np.load))


TESTS = {
    **{"caltech101": sum(range(1, 36)), "cifar": 30, "dtd": 30, "oxford_flowers102": 20},
    **{"oxford_iiit_pet": 25, "sun397": 256, "svhn": 20, "patch_camelyon": 40, "eurosat": 260},
    **{"resisc45": 270, "clevr_count": 22, "clevr_dist": 22, "dsprites_loc": 128},
    **{"dsprites_ori": 128, "kitti": 250},
}


def test_the_written_tasks_have_the_pictures_of_their_labels(
    vit: Vit, originals: Path, tmp_path: Path
) -> None:
    done = vit("data", "vtab", originals, "root")
    assert done.status == 0 and not [line for line in done.err.splitlines() if "note" in line]
    assert done.out == "15 tasks, next: vit transfer MODEL --data vtab=root\n"
    for name in COVERED:
        splits = load_task(f"root/{name}", search=True)
        assert splits.val is not None and splits.test is not None
        sizes = [len(images) for images in (splits.train, splits.val, splits.test)]
        assert sizes == [800, 200, TESTS[name]], name
        for images in (splits.train, splits.val, splits.test):
            assert len(np.unique(images.labels)) > 1
            if name.startswith("dsprites") or name == "clevr_count":
                continue  # their pictures do not show these labels
            for path, label in zip(images.items, images.labels, strict=True):
                assert isinstance(path, str)
                assert Image.open(path).convert("L").getpixel((1, 1)) == label, path
    kept = Path("root/kitti/test.txt").stat().st_mtime_ns
    Path("root/svhn/test.txt").unlink()  # as after an interruption
    text = Path("root/svhn/train800.txt").read_text()
    assert vit("data", "vtab", originals, "root").status == 0
    assert Path("root/svhn/train800.txt").read_text() == text
    assert Path("root/kitti/test.txt").stat().st_mtime_ns == kept


@pytest.mark.parametrize("name", COVERED)
def test_no_image_is_in_two_lists(name: str, originals: Path) -> None:
    lists = draw(name, originals)
    found = [(id(images), place) for images, at in lists.values() for place in at.tolist()]
    assert len(found) == len(set(found)) == 1_000 + TESTS[name]


def test_thirty_images_of_each_class_of_caltech_are_for_training(originals: Path) -> None:
    dataset, test = draw("caltech101", originals)["test"]
    counts = np.bincount(dataset.targets) - np.bincount(np.array(dataset.targets)[test])
    assert counts.tolist() == [30] * 35


def test_labels_are_as_published() -> None:
    # num_classes=16 of 40 orientations and 32 places: floor(class / 2.5) and floor(class / 2).
    for label, count, column in (("dsprites_ori", 40, 3), ("dsprites_loc", 32, 4)):
        classes = np.zeros((count, 6), dtype=int)
        classes[:, column] = np.arange(count)
        expected = (np.arange(count) // (count / 16)).astype(int).tolist()
        assert [LABELS[label](row) for row in classes.tolist()] == expected
    assert [LABELS["clevr_count"]([{}] * count) for count in range(3, 11)] == list(range(8))


def test_kitti_is_cut_by_video_as_in_tensorflow_datasets(originals: Path) -> None:
    video_of = [f"drive_{(line - 1) % 6:04d}" for line in mixed()]
    images: dict[str, list[int]] = defaultdict(list)
    for number, video in enumerate(video_of):
        images[video].append(number)
    np.random.seed(123)
    test = set(np.random.choice(sorted(images), 1, replace=False))
    dataset, places = draw("kitti", originals)["test"]
    drawn = {int(Path(dataset.images[place]).stem) for place in places.tolist()}
    assert drawn == {number for video in test for number in images[video]}


def test_a_folder_without_originals_is_one_line(vit: Vit, tmp_path: Path) -> None:
    done = vit("data", "vtab", tmp_path, "root")
    assert done.status == 2 and done.out == ""
    assert done.err.startswith(f"vit: {tmp_path} has the files of no task; docs/vtab.md")
    assert len(done.err.splitlines()) == 1


def test_tasks_without_files_are_named(vit: Vit, originals: Path, tmp_path: Path) -> None:
    (tmp_path / "svhn").symlink_to(originals / "svhn")
    done = vit("data", "vtab", tmp_path, "root")
    assert done.status == 0 and done.out.startswith("1 tasks")
    assert done.err.count("note: left out: ") == 14 and "note: left out: cifar: " in done.err
    assert set(COVERED) | {
        "diabetic_retinopathy",
        "dmlab",
        "smallnorb_azi",
        "smallnorb_ele",
    } == set(TASKS)
