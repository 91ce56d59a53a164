import os
import pickle
import random

import numpy as np
import pytest

from vit.data.cut import complete, held_out
from vit.data.labelling import class_order
from vit.data.settings import Reading, Splitting
from vit.data.sources import ImageSet, PathList, Splits
from vit.errors import UserError


def test_path_list_returns_what_went_in():
    names = ["a.jpg", "b/ä ö.png", "", "日本.gif", os.fsdecode(b"latin\xe9.jpg")]
    paths = PathList(names, "/root")
    assert list(paths) == [os.path.join("/root", name) for name in names]
    assert paths[-1] == "/root/" + names[-1]
    assert list(pickle.loads(pickle.dumps(paths))) == list(paths)
    assert list(paths.select(np.array([3, 0]))) == ["/root/日本.gif", "/root/a.jpg"]
    with pytest.raises(IndexError):
        paths[5]


def test_names_that_are_not_utf8_can_be_printed():
    paths = PathList([os.fsdecode(b"latin\xe9.jpg")], "/root")
    assert list(paths.printable()) == ["latin\N{REPLACEMENT CHARACTER}.jpg"]
    assert list(PathList(["b/ä", "a"], "/root").printable()) == ["b/ä", "a"]
    assert list(PathList(["b", "a"], "/root").printable()) == ["b", "a"]


def test_numeric_classes_come_in_natural_order():
    assert class_order(["10", "2", "1"]) == ["1", "2", "10"]
    assert class_order(["img12", "img2", "b", "B", "img"]) == ["B", "b", "img", "img2", "img12"]
    assert class_order(["2", "a", "02"]) == ["02", "2", "a"]


def _keys(count: int) -> list[str]:
    return [f"{index}.jpg" for index in range(count)]


def test_cut_is_stratified_and_complete():
    strata = ["a"] * 100 + ["b"] * 30
    train, val, test = held_out(_keys(130), strata, seed=0, val_fraction=0.1, test_fraction=0.2)
    assert sorted([*train, *val, *test]) == list(range(130))
    labels = np.array(strata)
    assert [(labels[part] == "a").sum() for part in (train, val, test)] == [70, 10, 20]
    assert [(labels[part] == "b").sum() for part in (train, val, test)] == [21, 3, 6]


def test_cut_depends_on_names_and_seed_but_not_on_order():
    keys = _keys(50)
    shuffled = random.Random(1).sample(keys, k=50)

    def val_names(names: list[str], seed: int) -> set[str]:
        parts = held_out(names, ["a"] * 50, seed=seed, val_fraction=0.2, test_fraction=0.0)
        return {names[index] for index in parts[1]}

    assert val_names(keys, 0) == val_names(shuffled, 0)
    assert val_names(keys, 0) != val_names(keys, 1)


def test_test_split_does_not_depend_on_the_val_fraction():
    def test_of(val_fraction: float) -> list[int]:
        strata = ["a"] * 50
        options = {"seed": 3, "val_fraction": val_fraction, "test_fraction": 0.2}
        return held_out(_keys(50), strata, **options)[2].tolist()

    assert test_of(0.0) == test_of(0.3)


def test_an_added_image_leaves_the_others_where_they_are():
    before = held_out(_keys(50), ["a"] * 50, seed=0, val_fraction=0.2, test_fraction=0.2)
    after = held_out(_keys(51), ["a"] * 51, seed=0, val_fraction=0.2, test_fraction=0.2)
    assert len(set(before[2].tolist()) & set(after[2].tolist())) >= len(before[2]) - 1


@pytest.mark.parametrize(
    ("count", "expected"), [(1, (1, 0, 0)), (2, (1, 1, 0)), (3, (1, 1, 1)), (20, (16, 2, 2))]
)
def test_train_keeps_an_image_of_every_class(count: int, expected: tuple[int, int, int]):
    parts = held_out(_keys(count), ["a"] * count, seed=0, val_fraction=0.1, test_fraction=0.1)
    assert tuple(map(len, parts)) == expected


def _complete(labels: list[int], val_fraction: float = 0.1, test_fraction: float = 0.1) -> Splits:
    pixels, keys = np.zeros((len(labels), 2, 2), np.uint8), _keys(len(labels))
    images = ImageSet(pixels, np.array(labels), PathList(keys))
    cut = Splitting(val_fraction=val_fraction, test_fraction=test_fraction)
    return complete(["a", "b"], {"train": images}, keys, Reading(cut=cut), where="photos")


def test_a_class_with_one_image_is_noted():
    notes = _complete([0] * 10 + [1]).notes
    assert notes == ["photos: too few images or groups to hold one out of 'b'"]


def test_too_few_images_for_test_is_noted_and_too_few_for_val_an_error():
    without_test = _complete([0, 0, 1, 1])
    assert without_test.test is None and without_test.test_origin == "none"
    assert "a test split" in without_test.notes[0]
    with pytest.raises(UserError, match=r"no class of photos has two images.*val_fraction 0"):
        _complete([0, 1])
    assert _complete([0, 1], 0.0, 0.0).val is None


def test_fractions_that_leave_no_train_are_refused():
    with pytest.raises(UserError, match=r"val_fraction \+ splits.test_fraction=1.0 must"):
        _complete([0, 1], 0.5, 0.5)


def test_counts_of_many_classes_show_both_ends():
    few = _complete([0] * 1200 + [1] * 3, 0.0, 0.0)
    assert few.class_counts == [1200, 3]
    assert few.per_class() == "train images per class: a 1,200, b 3"
    labels = np.repeat(np.arange(20), np.arange(1, 21))
    images = ImageSet(np.zeros((210, 1, 1), np.uint8), labels, PathList(_keys(210)))
    line = Splits(classes=[f"c{i}" for i in range(20)], train=images).per_class()
    assert "fewest c0 1, c1 2, c2 3; most c19 20, c18 19" in line
