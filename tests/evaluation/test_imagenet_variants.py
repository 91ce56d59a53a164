"""ReaL, V2, A and R on small examples with results computed by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from vit.data.sources import PathList
from vit.errors import UserError
from vit.evaluation.imagenet_variants import (
    class_folders,
    is_wordnet,
    ranks,
    read_real,
    read_wordnet_ids,
    real_labels,
    score,
    score_real,
    shifted_classes,
)

IDS = [f"n{10_000_000 + 37 * i}" for i in range(1000)]

LOGITS = np.array(
    [
        [5.0, 1.0, 2.0, 0.0, 0.0, 0.0, 3.0],  # 0, then 6, 2
        [0.0, 1.0, 2.0, 4.0, 5.0, 6.0, 7.0],  # 6, then 5, 4, 3, 2
        [9.0, 1.0, 8.0, 0.0, 0.0, 0.0, 7.0],  # 0, then 2, 6
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0],  # all equal: the first, 0
    ]
)


def test_accuracy_by_hand() -> None:
    found = score("val", LOGITS, np.array([0, 1, 2, 4]))
    assert (found.images, found.acc1, found.acc5) == (4, 0.25, 0.75)


def test_only_the_classes_of_a_shifted_set_can_be_answered() -> None:
    among = np.array([2, 4, 6])
    labels = np.array([6, 4, 2, 2])
    found = score("A", LOGITS, labels, among=among)
    # Of classes 2, 4 and 6 the largest are 6 (right), 6 (wrong), 2 (right), 2 (right).
    assert found.acc1 == 0.75
    assert score("A", LOGITS, labels).acc1 == 0.0
    restricted = torch.from_numpy(LOGITS[:, among]).softmax(1).max(1).values.numpy()
    error = 0.0
    for low in range(15):
        chosen = (restricted > low / 15) & (restricted <= (low + 1) / 15)
        right = np.array([True, False, True, True])[chosen]
        error += abs(right.sum() - restricted[chosen].sum()) / 4
    assert found.ece == pytest.approx(error)


def test_a_temperature_changes_calibration_alone() -> None:
    labels = np.array([0, 1, 2, 4])
    one, two = score("V2", LOGITS, labels), score("V2", LOGITS, labels, temperature=3.0)
    assert (one.acc1, one.acc5) == (two.acc1, two.acc5) and one.ece != two.ece


def test_real_counts_any_of_its_labels_and_leaves_images_without_one_out() -> None:
    found = score_real(LOGITS, [[3, 0], [], [2, 6], [0]])
    assert (found.name, found.images, found.acc1) == ("ReaL", 3, pytest.approx(2 / 3))
    with pytest.raises(UserError, match="no image of val has a ReaL label"):
        score_real(LOGITS, [[], [], [], []])


def test_wordnet_ids_are_read_from_any_of_the_usual_files(tmp_path: Path) -> None:
    shuffled = IDS[::-1]
    mapping = tmp_path / "LOC_synset_mapping.txt"
    mapping.write_text("\n".join(f"{name} tench, Tinca tinca" for name in shuffled))
    index = tmp_path / "imagenet_class_index.json"
    index.write_text(json.dumps({str(i): [name, "a_class"] for i, name in enumerate(IDS)}))
    for file in (mapping, index):
        assert read_wordnet_ids(file) == IDS
    mapping.write_text(IDS[0])
    with pytest.raises(UserError, match=r"has 1 WordNet ids such as n01440764, not 1000"):
        read_wordnet_ids(mapping)
    with pytest.raises(UserError, match="cannot read the classes from"):
        read_wordnet_ids(tmp_path / "none.txt")


def test_lists_of_ids_are_distinguished_from_other_names() -> None:
    assert is_wordnet(IDS)
    assert not is_wordnet(IDS[:-1]) and not is_wordnet([*IDS[:-1], "tench"])
    assert not is_wordnet([*IDS[:-1], IDS[0]])
    assert ranks(["n03", "n01", "n02"]) == [2, 0, 1]


def test_class_folders_are_also_found_in_val(tmp_path: Path) -> None:
    (tmp_path / "val" / IDS[3]).mkdir(parents=True)
    (tmp_path / "val" / "other").mkdir()
    assert (
        class_folders(tmp_path / "val") == class_folders(tmp_path) == (tmp_path / "val", [IDS[3]])
    )
    with pytest.raises(UserError, match="has no folders named by WordNet id"):
        class_folders(tmp_path / "val" / "other")


def test_a_and_r_have_200_classes() -> None:
    labels = np.repeat(np.arange(0, 1000, 5), 2)
    assert shifted_classes(labels, "a").tolist() == list(range(0, 1000, 5))
    with pytest.raises(UserError, match="images of 199 classes, ImageNet-A and -R have 200"):
        shifted_classes(labels[2:], "a")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("{}", "not a list of lists"),
        ("[[1], 2]", "not a list of lists"),
        ("[[1000]]", "labels from 0 to 999"),
        ("[[true]]", "labels from 0 to 999"),
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


@pytest.mark.parametrize("length", [2, 4, 49_999])
def test_real_of_another_length_than_val_is_refused(length: int) -> None:
    with pytest.raises(UserError, match=f"has labels for {length:,} images, val has 50,000"):
        real_labels([[0]] * length, names(1, 2, 3), "real.json")


def test_real_needs_the_numbers_of_val() -> None:
    with pytest.raises(UserError, match=r"a/1\.JPEG is not named as ImageNet's val"):
        real_labels([[0]], PathList(["a/1.JPEG"]), "real.json")
    with pytest.raises(UserError, match="no label for image 50001"):
        real_labels([[0]] * 50_000, names(50_001), "real.json")
