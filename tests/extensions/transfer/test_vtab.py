"""The lists of VTAB-1k: what they are read as, whose folders are known, and what is refused."""

import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.vtab_miniatures import vtab_root
from vit.data.find import find_splits
from vit.data.settings import Reading, Splitting
from vit.data.sources import ImageSet, PathList, Splits
from vit.errors import UserError
from vit.extensions.transfer.vtab import TASKS, task_folders

__all__ = ["vtab_root"]


def load(folder: Path, val_fraction: float = 0.2) -> Splits:
    cut = Splitting(val_fraction=val_fraction)
    return find_splits(None, str(folder), Reading(cut=cut))


def read(images: ImageSet | None, folder: Path) -> list[str]:
    """The lines of a list."""
    assert images is not None and isinstance(images.items, PathList)
    assert all(Path(path).is_file() for path in images.items)
    below = (Path(path).relative_to(folder) for path in images.items)
    return [f"{path} {label}" for path, label in zip(below, images.labels, strict=True)]


def test_splits_are_the_lines_of_the_lists(vtab_root: Path) -> None:
    assert list(task_folders(str(vtab_root))) == list(TASKS)
    for name, folder in task_folders(str(vtab_root)).items():
        place = Path(folder)
        lists = {p.stem: p.read_text().splitlines() for p in place.glob("*.txt")}
        searching, final = load(place), load(place, val_fraction=0)
        assert read(searching.train, place) == lists["train800"]
        assert read(searching.val, place) == lists["val200"]
        assert read(final.train, place) == lists["train800val200"] and final.val is None
        for splits in (searching, final):
            assert read(splits.test, place) == lists["test"] and splits.test_origin == "given"
            # Sun397 has fewer training images than would show all of its classes.
            assert splits.classes == [str(label) for label in range(TASKS[name]["classes"])]
            test = TASKS[name]["test"]
            assert f"test set of papers: 100 images, not {test:,}" in splits.notes[0]


def test_the_groups_are_those_of_the_benchmark() -> None:
    groups = Counter(task["group"] for task in TASKS.values())
    assert groups == {"natural": 7, "specialized": 4, "structured": 8}
    classes = (102, 100, 47, 102, 37, 397, 10, 2, 10, 45, 5, 8, 6, 6, 16, 16, 4, 18, 9)
    assert tuple(task["classes"] for task in TASKS.values()) == classes


@pytest.mark.parametrize(
    "names",
    [
        "cifar caltech101 dtd oxford_flowers102 oxford_iiit_pet svhn sun397 patch_camelyon eurosat "
        "resisc45 diabetic_retinopathy clevr_count clevr_dist dmlab kitti dsprites_loc "
        "dsprites_ori smallnorb_azi smallnorb_ele",  # NOAH, SSF, FacT, RepAdapter
        "cifar_100 caltech_102 dtd_47 oxford_flowers_102 oxford_iiit_pets_37 svhn_10 sun_397 "
        "patch_camelyon_2 eurosat_10 resisc_45 diabetic_retinopathy_5 clevr_count_8 clevr_dist_8 "
        "dmlab_6 kitti_2 dsprites_loc_16 dsprites_ori_16 smallnorb_azi_18 smallnorb_ele_18",
        "vtab-cifar vtab-caltech101 vtab-dtd vtab_flowers vtab_pets vtab-svhn vtab-sun397 "
        "vtab_pcam vtab-eurosat vtab-resisc45 vtab-diabetic_retinopathy vtab_clevr_count_all "
        "vtab_clevr_closest_object_distance vtab_dmlab vtab_kitti_closest_vehicle_distance "
        "vtab_dsprites_label_x_position vtab_dsprites_label_orientation "
        "vtab_smallnorb_label_azimuth vtab_smallnorb_label_elevation",
    ],
)
def test_folders_may_have_the_names_that_others_give(names: str, tmp_path: Path) -> None:
    for name in names.split():
        (tmp_path / name).mkdir()
    found = task_folders(str(tmp_path))
    assert list(found) == list(TASKS)
    assert sorted(Path(folder).name for folder in found.values()) == sorted(names.split())


MISTAKES = [
    ("train800.txt", lambda text: None, "cannot read {}: No such file"),
    ("train800val200.txt", lambda text: text.split("\n", 1)[1], "{} has 999 lines, not 1,000"),
    ("val200.txt", lambda text: text + text, "{} has 400 lines, not 200"),
    ("test.txt", lambda text: "../images/gone.png 3\n", "{} row 1 names '../images/gone.png'"),
    (
        "test.txt",
        lambda text: "../images/1.png 0\n../images/2.png 4\n",
        "{} has classes that the task lacks: '4'",
    ),
    ("test.txt", lambda text: "../images/1.png\n", "{} row 1 has no path"),
    ("test.txt", lambda text: "../images/1.png -1\n", "{} has classes that the task lacks: '-1'"),
    ("test.txt", lambda text: "", "{} is empty"),
]


@pytest.mark.parametrize(("name", "change", "message"), MISTAKES)
def test_a_damaged_list_is_refused(vtab_root: Path, tmp_path: Path, name, change, message) -> None:
    folder = shutil.copytree(vtab_root / "kitti", tmp_path / "kitti")
    (tmp_path / "images").symlink_to(vtab_root / "images")
    text = change((folder / name).read_text())
    (folder / name).unlink()
    if text is not None:
        (folder / name).write_text(text)
    with pytest.raises(UserError) as caught:
        load(folder)
    assert message.format(folder / name) in str(caught.value)


def test_images_of_test_are_not_learned(vtab_root: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(vtab_root / "kitti", tmp_path / "kitti")
    (tmp_path / "images").symlink_to(vtab_root / "images")
    lists = {name: (folder / f"{name}.txt").read_text() for name in ("train800", "test")}
    (folder / "test.txt").write_text(lists["test"] + "\n\n")  # blank lines at the end are none
    assert len(load(folder).test or ()) == 100
    (folder / "test.txt").write_text(lists["train800"].splitlines()[0])
    with pytest.raises(UserError, match=r"test.txt has images of train800val200.txt: \.\./images"):
        load(folder)
    both = folder / "train800val200.txt"
    lines = both.read_text().splitlines()
    both.write_text("\n".join([lists["test"].splitlines()[0], *lines[1:]]))
    with pytest.raises(UserError, match=r"train800val200.txt is not train800.txt and val200.txt"):
        load(folder)


def test_unknown_tasks_and_folders_without_tasks_are_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()  # left alone
    with pytest.raises(UserError, match=r"no task of VTAB-1k, such as cifar/train800\.txt"):
        task_folders(str(tmp_path))
    for name in ("cifar", "cifar_100"):
        (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=r"cifar and .*cifar_100 are both cifar; remove one"):
        task_folders(str(tmp_path))
    shutil.rmtree(tmp_path / "cifar")
    (tmp_path / "catlech101").mkdir()
    (tmp_path / "catlech101" / "train800val200.txt").touch()
    with pytest.raises(UserError, match=r"folder of no task .*known are caltech101, cifar"):
        task_folders(str(tmp_path))
