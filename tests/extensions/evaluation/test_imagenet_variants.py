"""Files and folders of ReaL, V2, A and R; test_imagenet.py has their scores."""

from pathlib import Path

import numpy as np
import pytest

from vit.data.sources import PathList
from vit.errors import UserError
from vit.extensions.evaluation.imagenet_variants import (
    class_folders,
    read_real,
    real_labels,
    score_real,
)

IDS = [f"n{10_000_000 + 37 * i}" for i in range(1000)]


def test_class_folders_are_also_found_in_val(tmp_path: Path) -> None:
    (tmp_path / "val" / IDS[3]).mkdir(parents=True)
    (tmp_path / "val" / "other").mkdir()
    assert (
        class_folders(tmp_path / "val") == class_folders(tmp_path) == (tmp_path / "val", [IDS[3]])
    )
    with pytest.raises(UserError, match="has no folders named by WordNet id"):
        class_folders(tmp_path / "val" / "other")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "cannot read the ReaL labels"),
        ("[[1], 2]", "not iterable"),
        ("[[1000]]", "labels from 0 to 999"),
    ],
)
def test_a_file_that_is_not_real_is_refused(tmp_path: Path, content: str, complaint: str) -> None:
    file = tmp_path / "real.json"
    file.write_text(content)
    with pytest.raises(UserError, match=complaint):
        read_real(file)
    with pytest.raises(UserError, match=r"No such file.*reassessed-imagenet"):
        read_real(tmp_path / "none.json")


def names(*numbers: int) -> PathList:
    return PathList(f"n0144/ILSVRC2012_val_{number:08d}.JPEG" for number in numbers)


def test_real_labels_go_by_the_number_in_the_name() -> None:
    assert real_labels([[1], [], [2, 3]], names(3, 1, 2), "real.json") == [[2, 3], [1], []]
    whole = [[i % 1000] for i in range(50_000)]
    assert real_labels(whole, names(50_000, 7), "real.json") == [[999], [6]]


def test_real_needs_the_numbers_of_val() -> None:
    with pytest.raises(UserError, match=r"a/1\.JPEG is not named as ImageNet's val"):
        real_labels([[0]], PathList(["a/1.JPEG"]), "real.json")
    with pytest.raises(UserError, match="no label for image 50001"):
        real_labels([[0]] * 50_000, names(50_001), "real.json")
    with pytest.raises(UserError, match="no image of val has a ReaL label"):
        score_real(np.zeros((2, 7)), [[], []])
