"""Lists in files of Parquet, and with columns of zeros and ones or of the parents in a tree."""

import sys
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from tests.data.test_manifest import (
    load_held_out_manifest,
    load_manifest,
    photos,
    rows,
    uncut,
    write,
)
from vit.data.settings import Columns
from vit.errors import UserError

__all__ = ["photos"]


def write_parquet(photos: Path, **columns: Any) -> Path:
    """The first images of `photos`, and these columns."""
    number = len(next(iter(columns.values())))
    paths = [f"pictures/{index}.jpg" for index in range(number)]
    parquet.write_table(pyarrow.table({"path": paths, **columns}), photos / "list.parquet")
    return photos / "list.parquet"


def test_parquet_equals_csv(photos):
    labels = ["cat", "dog"] * 6
    # A folder name like a Hive partition must not become a column.
    (photos / "split=val").mkdir()
    one = load_manifest(write(photos, rows(labels)))
    two = load_manifest(write_parquet(photos, other=[1] * 12, label=labels))
    assert list(one.train.items) == list(two.train.items)
    assert one.train.labels.tolist() == two.train.labels.tolist()


def test_parquet_lists_are_several_labels(photos):
    splits = uncut(write_parquet(photos, label=[["a", "b"], ["b"], []]))
    assert splits.train.labels.tolist() == [[1, 1], [0, 1], [0, 0]]


def test_missing_numbers_of_parquet_are_empty(photos):
    assert uncut(write_parquet(photos, label=[1.0, 2.0])).classes == ["1.0", "2.0"]
    with pytest.raises(UserError, match="row 3 has no label"):
        uncut(write_parquet(photos, label=[1.0, 2.0, float("nan"), None]))


def test_parquet_without_pyarrow_is_one_line(photos, monkeypatch):
    path = write_parquet(photos, label=["a", "b"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"vitkit\[parquet\]"):
        load_manifest(path)


def test_a_parquet_file_cut_anywhere_is_one_line(photos):
    path = write_parquet(photos, label=["cat", "dog"] * 6)
    whole = path.read_bytes()
    for end in range(0, len(whole), 97):
        path.write_bytes(whole[:end])
        with pytest.raises(UserError, match=r"list\.parquet") as caught:
            load_manifest(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("header", "labels"),
    [
        ("path,label", ["pet/cat", " pet//dog/", "wild/feline/lynx", "carp"]),
        ("path,label,Parent", ["cat,pet", "dog,pet /", "lynx, wild/feline", "carp,"]),
    ],
)
def test_in_a_tree_labels_are_paths_or_below_their_parent(header, labels, photos):
    splits = uncut(write(photos, rows(labels * 3, header)), tree=True)
    expected = ["pet/cat", "pet/dog", "wild/feline/lynx", "carp"]
    assert splits.classes == sorted(expected) and splits.notes == []
    assert [splits.classes[k] for k in splits.train.labels] == expected * 3
    held = load_held_out_manifest(photos / "list.csv", splits.classes, tree=True).test
    assert held is not None and held.labels.tolist() == splits.train.labels.tolist()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["cat,pet", "cat,wild", "dog,pet"], "label 'cat' with parents 'pet' and 'wild'"),
        (["a,b", "b,a"], "has '[ab]' as a label and as the parent of '[ab]'"),
        (["a,a", "c,"], "has 'a' as a label and as the parent of 'a'"),
        (["lynx,wild/cat", "cat,pet"], "has 'cat' as a label and as the parent of 'lynx'"),
        (["cat|pet,", "dog,"], "data.labels=tree needs one label per image; this set has several"),
        (
            ["pet,", "pet/cat,", "dog,"],
            "0.jpg has the label 'pet', .* 'pet/cat' is below it",
        ),
    ],
)
def test_a_manifest_that_is_no_tree_is_one_line(labels, message, photos):
    with pytest.raises(UserError, match=message):
        load_manifest(write(photos, rows(labels, "path,label,parent")), tree=True)


ONE_HOT = """path,Split,width,Cat,dog,sky
pictures/0.jpg,train,640,1,0,1
pictures/1.jpg,train,800,0,1.0,
pictures/2.jpg,val,1,true,0,False
pictures/3.jpg,test,0,0,0,0
"""


def test_columns_of_zeros_and_ones_are_classes(photos):
    splits = load_manifest(write(photos, ONE_HOT))
    assert splits.multilabel and splits.classes == ["Cat", "dog", "sky"]
    assert splits.train.labels.tolist() == [[1, 0, 1], [0, 1, 0]]
    assert splits.val and splits.val.labels.tolist() == [[1, 0, 0]]
    assert splits.test and splits.test.labels.tolist() == [[0, 0, 0]]
    [note] = splits.notes
    assert "Cat, dog, sky" in note and note.endswith("left out: width")
    held_out = load_held_out_manifest(photos / "list.csv", ["sky", "Cat", "dog"], multilabel=True)
    assert held_out.test and held_out.test.labels.tolist() == [[0, 0, 0]]


def test_one_hot_rows_of_one_class_each_are_single_labels_in_csv_and_parquet(photos):
    csv = write(photos, rows([f"{1 - i % 2},{i % 2}" for i in range(4)], "path,MEL,NV"))
    table = write_parquet(photos, MEL=[1.0, 0.0] * 2, NV=[False, True] * 2)
    for splits in (uncut(csv), uncut(table)):
        assert not splits.multilabel and splits.train.labels.tolist() == [0, 1, 0, 1]
        assert splits.classes == ["MEL", "NV"]


def test_a_named_column_of_labels_is_not_replaced_by_columns_of_zeros_and_ones(photos):
    text = rows(["cat,1,0", "dog,0,1"], "path,diagnosis,male,smoker")
    with pytest.raises(UserError, match="no column 'diagnose', but path, diagnosis"):
        load_manifest(write(photos, text), columns=Columns(label="diagnose"))
    columns = Columns(label="diagnosis")
    named = load_manifest(write(photos, text), columns=columns, val_fraction=0, test_fraction=0)
    assert named.classes == ["cat", "dog"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ONE_HOT.replace("640,1,", "640,0,"), "'Cat' has a 1 in no row"),
        (rows(["1"], "path,a"), "no column 'label', but path"),
    ],
)
def test_a_mistake_in_columns_of_classes_is_named(text, message, photos):
    with pytest.raises(UserError, match=message) as caught:
        load_manifest(write(photos, text))
    assert "\n" not in str(caught.value)
