"""Cuts by whole groups, by their rule written out, and lists with a column of groups."""

import csv
import random
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vit.data.find import find_splits
from vit.data.folder import load_folder
from vit.data.settings import Columns, ModelClasses, Reading, Splitting
from vit.data.sources import Splits
from vit.errors import UserError
from vit.extensions.datacheck.check import Pictures, file_findings, write_fixed
from vit.extensions.sources.groups import cut_groups

SHARES = {"val_fraction": 0.1, "test_fraction": 0.2}


def members(count: int = 40) -> list[str]:
    """Groups of 1 to 7 images, mixed."""
    groups = [f"patient {g}" for g in range(count) for _ in range(1 + g % 7)]
    random.Random(0).shuffle(groups)
    return groups


def names(groups: list[str], parts: Any) -> list[set[str]]:
    return [{groups[index] for index in part} for part in parts]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_cut_takes_whole_groups_in_the_order_of_their_hashes(seed: int) -> None:
    groups = members()
    labels = np.zeros(len(groups), np.int64)
    parts = cut_groups(groups, labels, seed=seed, **SHARES)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(groups)))
    expected: list[set[str]] = [set(), set(), set()]
    left = sorted(
        set(groups), key=lambda g: blake2b(f"{seed}\0{g}".encode(), digest_size=16).digest()
    )
    for number, share in ((2, 0.2), (1, 0.1)):
        count = 0
        while count < round(share * len(groups)):
            count += groups.count(left[0])
            expected[number].add(left.pop(0))
    expected[0] = set(left)
    assert names(groups, parts) == expected
    sizes = np.array([len(part) for part in parts[1:]]) / len(groups)
    assert (sizes >= [0.1 - 0.005, 0.2 - 0.005]).all()
    assert (sizes < [0.1 + 7 / len(groups), 0.2 + 7 / len(groups)]).all()


def test_the_cut_does_not_depend_on_the_order_and_test_not_on_the_val_fraction() -> None:
    groups = members()
    order = np.random.default_rng(1).permutation(len(groups))
    labels = np.arange(len(groups)) % 3
    first = cut_groups(groups, labels, seed=0, **SHARES)
    again = cut_groups([groups[i] for i in order], labels[order], seed=0, **SHARES)
    for one, other in zip(first, again, strict=True):
        assert set(one.tolist()) == set(order[other].tolist())
    more = cut_groups(groups, labels, seed=0, val_fraction=0.3, test_fraction=0.2)
    assert more[2].tolist() == first[2].tolist()
    assert cut_groups(groups, labels, seed=9, **SHARES)[2].tolist() != first[2].tolist()


@pytest.mark.parametrize("several", [False, True])
def test_train_keeps_a_group_of_each_class(several: bool) -> None:
    groups = [f"g{i}" for i in range(20)]
    labels = np.array([0] * 9 + [1] * 10 + [2])  # one group alone has class 2
    given = np.eye(3, dtype=np.float32)[labels] if several else labels
    for seed in range(30):
        train, val, test = cut_groups(groups, given, seed=seed, val_fraction=0.4, test_fraction=0.4)
        assert set(labels[train]) == {0, 1, 2} and len(val) == len(test) == 8


def test_nothing_is_cut_from_two_groups_or_if_each_class_is_a_group() -> None:
    for groups, labels in (("aabb", [0, 1, 0, 1]), ("aabbccdd", [0, 0, 1, 1, 2, 2, 3, 3])):
        train, val, test = cut_groups(groups, np.array(labels), seed=0, **SHARES)
        assert len(train) == len(groups) and not len(val) and not len(test)
    assert [len(p) for p in cut_groups("aabbcc", np.zeros(6, int), seed=0, **SHARES)] == [2, 2, 2]


@pytest.fixture
def bursts(tmp_path: Path) -> Path:
    """30 bursts of four pictures, of two classes."""
    rows = ["file,label,Patient"]
    for burst in range(30):
        for shot in range(4):
            rows.append(f"{burst}-{shot}.png,{'cat' if burst % 2 else 'dog'},p{burst}")
            Image.new("RGB", (40, 40), (8 * burst, shot, 0)).save(tmp_path / f"{burst}-{shot}.png")
    (tmp_path / "list.csv").write_text("\n".join(rows))
    return tmp_path / "list.csv"


def read(path: Path, group: str | None = "patient", **cut: Any) -> Splits:
    columns = Columns(path="file", group=group)
    return find_splits(None, str(path), Reading(cut=Splitting(**cut), columns=columns))


def test_a_list_is_cut_by_a_column(bursts: Path) -> None:
    splits = read(bursts)
    assert {name: len(images) for name, images in splits.present().items()} == {
        "train": 96, "val": 12, "test": 12
    }  # fmt: skip
    for images in splits.present().values():
        assert images.groups is not None
        assert [f"p{name.partition('-')[0]}" for name in images.names] == list(images.groups)
    sets = [set(images.groups or ()) for images in splits.present().values()]
    assert sum(map(len, sets)) == len(set.union(*sets)) == 30
    assert not splits.notes and splits.val_origin == splits.test_origin == "cut from train"

    by_image = read(bursts, None)
    assert by_image.train.groups is None
    note = "column 'Patient' is not used; if one has several images, --data.columns.group Patient"
    assert [note in text for text in by_image.notes] == [True]
    assert by_image.digests["train"] != splits.digests["train"]

    lines = bursts.read_text().split("\n")
    bursts.write_text("\n".join([lines[0], *reversed(lines[1:])]))
    again = read(bursts)
    for name, images in splits.present().items():
        assert set(images.names) == set(again.get(name).names)  # pyright: ignore


def test_an_empty_cell_is_a_group_of_its_own(bursts: Path) -> None:
    bursts.write_text(bursts.read_text().replace("p0\n", "\n"))
    groups = read(bursts, val_fraction=0.0, test_fraction=0.0).train.groups
    assert groups is not None and list(groups)[:5] == [
        "0-0.png",
        "0-1.png",
        "0-2.png",
        "0-3.png",
        "p1",
    ]


def test_two_groups_are_not_cut_with_a_line(bursts: Path) -> None:
    bursts.write_text("\n".join(bursts.read_text().split("\n")[:9]))
    splits = read(bursts)
    assert splits.present().keys() == {"train"} and splits.val_origin == "none"
    assert "no val or test is cut from it: 3 groups are needed" in splits.notes[0]


def test_a_column_that_is_not_there_is_refused(bursts: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'burst', .*--data.columns.group"):
        read(bursts, "burst")
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "photos" / name / "0.png")
    with pytest.raises(UserError, match=r"data.columns.group='burst'"):
        load_folder(tmp_path / "photos", Reading(columns=Columns(group="burst")))


def test_images_that_are_all_scored_need_no_groups(bursts: Path) -> None:
    columns = Columns(path="file", group="burst")
    model = ModelClasses(names=["cat", "dog"])
    test = find_splits(None, str(bursts), Reading(columns=columns, model=model)).test
    assert test is not None and len(test) == 120 and test.groups is None


def test_groups_in_two_splits_are_found_and_moved(bursts: Path, tmp_path: Path) -> None:
    """To the split with most of their images; of equal ones to the last."""
    lines = bursts.read_text().split("\n")
    splits = ["split", *(["train", "train", "train", "test"] * 29), "train", "train", "val", "val"]
    rows = [f"{line},{split}" for line, split in zip(lines, splits, strict=True)]
    bursts.write_text("\n".join(rows).replace("file", "path"))
    note = "30 groups are in several splits, such as ['p0']; `vit data check --group Patient"
    reading = Reading(columns=Columns(group="Patient"))
    assert note in find_splits(None, str(bursts), reading).notes[0]
    pictures = Pictures(str(bursts), group="Patient")
    pictures.read(0)
    moved = [found for found in file_findings(pictures) if found.kind == "divided"]
    expected = {f"{i}-3.png" for i in range(29)} | {"29-0.png", "29-1.png"}
    assert {found.subject for found in moved} == expected
    assert moved[-1].detail == "most of 'p28' is in train"
    write_fixed(tmp_path / "fixed.csv", pictures, moved, None)
    with (tmp_path / "fixed.csv").open(newline="") as stream:
        fixed = list(csv.DictReader(stream))
    assert len(fixed) == 120 and all(
        row["Patient"] == f"p{row['path'].split('-')[0]}" for row in fixed
    )
    assert {(row["Patient"] == "p29", row["split"]) for row in fixed} == {
        (False, "train"), (True, "val")
    }  # fmt: skip
    again = Pictures(str(tmp_path / "fixed.csv"), group="Patient")
    again.read(0)
    assert not [found for found in file_findings(again) if found.kind == "divided"]
