import os
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from vit.data.manifest import load_held_out_manifest, load_manifest
from vit.data.sources import Splits
from vit.errors import UserError


@pytest.fixture
def photos(tmp_path: Path, make_tree) -> Path:
    """A folder of 12 images, 0.jpg to 11.jpg, in `pictures`."""
    make_tree(tmp_path / "photos", {"pictures": 12})
    return tmp_path / "photos"


def write(photos: Path, text: str, name: str = "list.csv") -> Path:
    (photos / name).write_text(text, encoding="utf-8")
    return photos / name


def rows(labels: list[str], header: str = "path,label") -> str:
    listed = [f"pictures/{index}.jpg,{label}" for index, label in enumerate(labels)]
    return "\n".join([header, *listed]) + "\n"


def sizes(splits: Splits) -> list[int | None]:
    parts = (splits.train, splits.val, splits.test)
    return [None if part is None else len(part) for part in parts]


def test_relative_paths_start_at_the_manifest(photos, monkeypatch):
    absolute = photos / "pictures" / "3.jpg"
    text = f"path,label\npictures/0.jpg,cat\n{absolute},dog\n"
    monkeypatch.chdir(photos)
    splits = load_manifest(write(photos, text).name, val_fraction=0.0, test_fraction=0.0)
    monkeypatch.chdir("/")
    assert list(splits.train.items) == [str(photos / "pictures/0.jpg"), str(absolute)]
    assert splits.classes == ["cat", "dog"] and splits.train.labels.tolist() == [0, 1]
    for path in splits.train.items:
        Image.open(path).load()


def test_without_a_split_column_val_and_test_are_cut(photos):
    splits = load_manifest(write(photos, rows(["cat", "dog"] * 6)))
    assert sizes(splits) == [8, 2, 2]
    assert splits.val is not None and sorted(splits.val.labels) == [0, 1]
    again = load_manifest(photos / "list.csv", seed=1)
    assert again.val is not None and list(again.val.names) != list(splits.val.names)


def test_split_names_and_their_synonyms_are_used(photos):
    names = ["train"] * 4 + ["val", "valid", "validation", "Test", "test"]
    labels = [f"{'cat' if index % 2 else 'dog'},{name}" for index, name in enumerate(names)]
    splits = load_manifest(write(photos, rows(labels, "path,label,split")))
    assert sizes(splits) == [4, 3, 2]
    assert (splits.val_origin, splits.test_origin) == ("given", "given")
    assert splits.val is not None
    assert list(splits.val.names) == [f"pictures/{index}.jpg" for index in (4, 5, 6)]


def test_val_without_test_gives_no_test(photos):
    labels = ["cat,train", "dog,train", "cat,val"]
    assert sizes(load_manifest(write(photos, rows(labels, "path,label,split")))) == [2, 1, None]


def test_numeric_labels_are_class_names_in_natural_order(photos):
    labels = [str(index % 11 + 1) for index in range(12)]
    splits = load_manifest(write(photos, rows(labels)), val_fraction=0.0, test_fraction=0.0)
    assert splits.classes == [str(index) for index in range(1, 12)]
    assert splits.train.labels.tolist() == [*range(11), 0]


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        (
            "path,label\npictures/0.jpg,a|c\npictures/1.jpg,b\npictures/2.jpg,\n",
            [[1, 0, 1], [0, 1, 0], [0, 0, 0]],
        ),
        (
            "path,label,label\npictures/0.jpg,a,c\npictures/1.jpg,b,\npictures/2.jpg,c,b\n",
            [[1, 0, 1], [0, 1, 0], [0, 1, 1]],
        ),
    ],
)
def test_several_labels_become_rows_of_zeros_and_ones(text, labels, photos):
    splits = load_manifest(write(photos, text), val_fraction=0.0, test_fraction=0.0)
    assert splits.multilabel and splits.classes == ["a", "b", "c"]
    assert splits.train.labels.dtype == np.float32
    assert splits.train.labels.tolist() == labels


def test_multilabel_sets_are_cut_as_a_whole(photos):
    labels = [f"a|x{index}" for index in range(12)]
    assert sizes(load_manifest(write(photos, rows(labels)), val_fraction=0.25)) == [8, 3, 1]


def test_semicolons_byte_order_mark_and_capitals_are_understood(photos):
    text = "\ufeffPath; Label ;Other\npictures/0.jpg;ein, Hund;1\n\npictures/1.jpg;Katze;2\n"
    splits = load_manifest(write(photos, text), val_fraction=0.0, test_fraction=0.0)
    assert splits.classes == ["Katze", "ein, Hund"]


def test_parquet_equals_csv(photos):
    labels = ["cat", "dog"] * 6
    table = {"other": [1] * 12, "path": [f"pictures/{n}.jpg" for n in range(12)], "label": labels}
    # A folder name like a Hive partition must not become a column.
    (photos / "split=val").mkdir()
    parquet.write_table(pyarrow.table(table), photos / "list.parquet")
    one = load_manifest(write(photos, rows(labels)))
    two = load_manifest(photos / "list.parquet")
    assert list(one.train.items) == list(two.train.items)
    assert one.train.labels.tolist() == two.train.labels.tolist()


def test_parquet_lists_are_several_labels(photos):
    table = {"path": ["pictures/0.jpg", "pictures/1.jpg"], "label": [["a", "b"], ["b"]]}
    parquet.write_table(pyarrow.table(table), photos / "list.parquet")
    splits = load_manifest(photos / "list.parquet", val_fraction=0.0, test_fraction=0.0)
    assert splits.train.labels.tolist() == [[1, 1], [0, 1]]


def test_parquet_without_pyarrow_is_one_line(photos, monkeypatch):
    (photos / "list.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"needs pyarrow: pip install 'vitkit\[parquet\]'"):
        load_manifest(photos / "list.parquet")


def test_a_broken_parquet_file_is_one_line(photos):
    (photos / "list.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(UserError, match=r"list\.parquet is not a Parquet file"):
        load_manifest(photos / "list.parquet")


HEAD = "path,label,split\npictures/0.jpg,cat,train\npictures/1.jpg,dog,train\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; expected columns path,label"),
        ("path,label\n", "has a header but no rows"),
        ("path,lable\na,b\n", "columns path, lable, but none called 'label'; did you mean 'lable'"),
        ("file,label\na,b\n", "columns file, label, but none called 'path'"),
        ("path,label,split,split\na,b,c,d\n", "has 2 columns 'split'; keep one"),
        (HEAD + "pictures/2.jpg,cat\n", "row 4 has 2 of 3 columns"),
        (HEAD + ",cat,train\n", "row 4 has no path"),
        (HEAD + "pictures/2.jpg,,train\n", "row 4 has no label"),
        (HEAD + "pictures/2.jpg,cat,trian\n", "row 4 has split 'trian'.*did you mean 'train'"),
        (HEAD + "pictures/2.jpg,cow,val\n", r"row 4 \(val\) has label 'cow', which no train row"),
        (HEAD + "./pictures/0.jpg,cat,val\n", "lists ./pictures/0.jpg twice, in rows 2 and 4"),
        (HEAD + "gone.jpg,cat,val\n", r"do not exist: 'gone.jpg' \(row 4\); relative paths start"),
        ("path,label,split\npictures/0.jpg,cat,val\n", "has no rows of split train"),
        ("path,label\npictures/0.jpg,cat\npictures/1.jpg,cat\n", "one class only, 'cat'"),
        ("path,label,label\npictures/0.jpg,,\n", "has no labels in its train rows"),
    ],
)
def test_a_mistake_is_one_line_with_file_and_row(text, message, photos):
    with pytest.raises(UserError, match=message) as caught:
        load_manifest(write(photos, text))
    assert "\n" not in str(caught.value) and "list.csv" in str(caught.value)


def test_files_that_are_no_csv_are_one_line(photos):
    (photos / "list.csv").write_bytes(b"path,label\n\xff\xfe\x00\n")
    with pytest.raises(UserError, match="not a CSV file in UTF-8"):
        load_manifest(photos / "list.csv")
    with pytest.raises(UserError, match=r"cannot read .*gone\.csv: No such file"):
        load_manifest(photos / "gone.csv")


def test_a_held_out_manifest_gets_the_labels_of_the_model(tmp_path, make_tree):
    make_tree(tmp_path, {"x": 2})
    listed = tmp_path / "list.csv"
    listed.write_text("path,label\nx/0.jpg,hen\nx/1.jpg,cat\n")
    splits = load_held_out_manifest(listed, ["cat", "dog", "hen"])
    assert splits.test is not None and splits.test.labels.tolist() == [2, 0]
    listed.write_text("path,label\nx/0.jpg,cow\nx/1.jpg,cat\n")
    with pytest.raises(UserError, match="cow"):
        load_held_out_manifest(listed, ["cat", "dog", "hen"])


def test_a_manifest_without_labels(tmp_path, make_tree):
    make_tree(tmp_path, {"x": 9})
    listed = tmp_path / "list.csv"
    rows = [f"x/{i}.jpg,{'test' if i == 8 else 'train'}" for i in range(9)]
    listed.write_text("\n".join(["path,split", *rows]) + "\n")
    splits = load_manifest(listed, labelled=False, val_fraction=0.25)
    assert splits.classes == [] and splits.val is not None and splits.test is not None
    assert (len(splits.train), len(splits.val), len(splits.test)) == (6, 2, 1)
    assert not splits.train.labels.any()
    held = load_held_out_manifest(listed, [])
    assert held.test is not None and list(held.test.names) == ["x/8.jpg"]
    with pytest.raises(UserError, match="none called 'label'"):
        load_manifest(listed)


def test_labels_that_are_not_wanted_are_not_read(tmp_path, make_tree):
    make_tree(tmp_path, {"x": 3})
    listed = tmp_path / "list.csv"
    listed.write_text("path,label,split\nx/0.jpg,cat,train\nx/1.jpg,,train\nx/2.jpg,dog,val\n")
    splits = load_manifest(listed, labelled=False)
    assert splits.classes == [] and not splits.multilabel and len(splits.train) == 2


def test_the_same_file_under_two_spellings_is_refused(photos):
    absolute = photos / "pictures" / "0.jpg"
    for again in (absolute, "./pictures/0.jpg", f"../{photos.name}/pictures/0.jpg"):
        text = f"path,label\npictures/0.jpg,cat\npictures/1.jpg,dog\n{again},dog\n"
        with pytest.raises(UserError, match="twice, in rows 2 and 4"):
            load_manifest(write(photos, text))


@pytest.mark.parametrize("name", ["list.csv", "list.parquet"])
def test_a_manifest_that_is_a_pipe_is_refused_before_it_is_opened(name, photos):
    os.mkfifo(photos / name)
    with pytest.raises(UserError, match=rf"cannot read .*{name}: it is a named pipe"):
        load_manifest(photos / name)


@pytest.mark.parametrize(
    ("file", "kind"),
    [("pipe.jpg", "a named pipe"), ("folder.jpg", "a directory"), ("/dev/zero", "a device")],
)
def test_a_row_that_names_no_regular_file_is_refused(file, kind, photos):
    os.mkfifo(photos / "pipe.jpg")
    (photos / "folder.jpg").mkdir()
    text = f"path,label\npictures/0.jpg,cat\n{file},dog\n"
    with pytest.raises(UserError, match=rf"row 3 names '{file}', which is .*: it is {kind}$"):
        load_manifest(write(photos, text))


def test_links_to_images_are_images(photos):
    (photos / "link.jpg").symlink_to("pictures/1.jpg")
    text = "path,label\npictures/0.jpg,cat\nlink.jpg,dog\n"
    splits = load_manifest(write(photos, text), val_fraction=0.0, test_fraction=0.0)
    assert len(splits.train) == 2


@pytest.mark.parametrize("separator", [";", ",", "/"])
def test_labels_with_another_separator_in_every_row_get_a_note(separator, photos):
    labels = [separator.join(["plane", "sky"]), separator.join(["car", "road"])] * 6
    cells = [f'"{label}"' for label in labels]
    splits = load_manifest(write(photos, rows(cells)))
    assert splits.classes == sorted(set(labels)) and not splits.multilabel
    [note] = splits.notes
    assert f"12 of 12 labels contain '{separator}'" in note
    assert f"'plane{separator}sky' is one class" in note
    assert note.endswith(f"add --data.label_separator '{separator}'")
    # What the note recommends works.
    again = load_manifest(write(photos, rows(cells)), separator=separator)
    assert again.multilabel and again.classes == ["car", "plane", "road", "sky"]
    assert again.notes == []


def test_labels_joined_in_some_rows_get_a_note_if_their_parts_are_labels_too(photos):
    labels = ["cat;dog", "cat", "dog"] * 4
    [note] = load_manifest(write(photos, rows(labels))).notes
    assert "4 of 12 labels contain ';'" in note


def test_joined_labels_that_share_a_part_get_a_note(photos):
    labels = ["cat;animal", "tree", "zebra;animal", "cat;animal"] * 3
    [note] = load_manifest(write(photos, rows(labels))).notes
    assert "9 of 12 labels contain ';'" in note and "label_separator ';'" in note


def test_single_names_with_a_comma_get_no_note(photos):
    labels = ['"tench, Tinca tinca"', "goldfish", "hen", "cock"] * 3
    assert load_manifest(write(photos, rows(labels))).notes == []


def test_class_names_that_differ_in_spelling_only_get_a_note(photos):
    labels = ["1", "01", "1.0", "2", "Cat", "cat", "e\u0301", "\u00e9"]
    splits = load_manifest(write(photos, rows(labels)), val_fraction=0.0, test_fraction=0.0)
    assert len(splits.classes) == 8
    [note] = splits.notes
    for group in ("'01' and '1' and '1.0'", "'Cat' and 'cat'", r"'e\u0301' and '\xe9'"):
        assert group in note


def test_an_unknown_label_of_known_parts_says_how_to_separate_them(photos):
    labels = ["cat,train", "dog,train", "cat;dog,test"]
    with pytest.raises(UserError, match=r"has label 'cat;dog', .*write several labels as cat\|dog"):
        load_manifest(write(photos, rows(labels, "path,label,split")))


def test_a_quote_that_is_never_closed_does_not_swallow_rows(photos):
    text = 'path,label\npictures/0.jpg,cat\npictures/1.jpg,"dog\npictures/2.jpg,cat\n'
    with pytest.raises(UserError, match=r'quote \("\) in the row that begins in line 3'):
        load_manifest(write(photos, text))


def test_a_header_that_is_not_one_line_is_shown_in_one_line(photos):
    text = '"a\nb",' + ",".join("x" * 500 for _ in range(50)) + "\n1\n"
    with pytest.raises(UserError, match="none called 'path'") as caught:
        load_manifest(write(photos, text))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 3000


def test_a_null_character_in_a_path_is_one_line(photos):
    text = "path,label\npictures/0.jpg,cat\npic\0tures/1.jpg,dog\n"
    with pytest.raises(UserError, match=r"row 3 names 'pic\\x00tures/1.jpg'"):
        load_manifest(write(photos, text))


def test_a_parquet_file_cut_anywhere_is_one_line(photos):
    table = {"path": [f"pictures/{n}.jpg" for n in range(12)], "label": ["cat", "dog"] * 6}
    parquet.write_table(pyarrow.table(table), photos / "list.parquet")
    whole = (photos / "list.parquet").read_bytes()
    for end in range(0, len(whole), 37):
        (photos / "list.parquet").write_bytes(whole[:end])
        with pytest.raises(UserError) as caught:
            load_manifest(photos / "list.parquet")
        assert "\n" not in str(caught.value)


def test_bytes_and_missing_numbers_of_parquet_are_read_as_text(photos):
    names = [f"pictures/{n}.jpg".encode() for n in range(4)]
    table = {"path": names, "label": pyarrow.array([1.0, 2.0, 1.0, 2.0])}
    parquet.write_table(pyarrow.table(table), photos / "list.parquet")
    splits = load_manifest(photos / "list.parquet", val_fraction=0.0, test_fraction=0.0)
    assert splits.classes == ["1.0", "2.0"]
    assert list(splits.train.names) == [f"pictures/{n}.jpg" for n in range(4)]
    table["label"] = pyarrow.array([1.0, 2.0, float("nan"), 2.0])
    parquet.write_table(pyarrow.table(table), photos / "list.parquet")
    with pytest.raises(UserError, match="row 3 has no label"):
        load_manifest(photos / "list.parquet")


def test_a_million_rows_are_no_objects(tmp_path, monkeypatch):
    """Memory a row: far below that of one Python object with a path, a label and a split."""
    count = 50_000
    lines = [f"images/{i % 200}/{i:08}_photo.jpg,class {i % 200},train\n" for i in range(count)]
    (tmp_path / "list.csv").write_text("path,label,split\n" + "".join(lines))
    del lines
    monkeypatch.setattr("vit.data.manifest.missing_files", lambda paths: [])
    tracemalloc.start()
    try:
        splits = load_manifest(tmp_path / "list.csv", val_fraction=0.0, test_fraction=0.0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(splits.train) == count
    assert peak < 250 * count


@pytest.mark.parametrize("separator", [";", ",", "/", " ", ", ", "|"])
def test_a_given_separator_splits_labels_and_takes_the_place_of_the_usual_one(separator, photos):
    cells = [separator.join(["cat", "big animal" if separator.strip() else "x"]), "dog"] * 6
    text = rows([f'"{cell}"' for cell in cells])
    splits = load_manifest(write(photos, text), separator=separator)
    assert splits.multilabel and splits.notes == [] and len(splits.classes) == 3
    if separator != "|":
        joined = load_manifest(write(photos, text.replace("dog", "a|b")), separator=separator)
        assert "a|b" in joined.classes


def test_a_separator_that_never_occurs_is_refused_with_the_one_that_does(photos):
    listed = write(photos, rows(["cat|sky", "dog"] * 6))
    with pytest.raises(UserError, match=r"label_separator=';' occurs in none .* contain '\|'"):
        load_manifest(listed, separator=";")
    plain = write(photos, rows(["cat", "dog"] * 6), "plain.csv")
    with pytest.raises(UserError, match=r"label_separator='\|' occurs in none .*; leave it out"):
        load_manifest(plain, separator="|")
    # Images of a model that exists need not have it.
    held_out = load_held_out_manifest(plain, ["cat", "dog"], separator=";", multilabel=True)
    assert held_out.multilabel and held_out.train.labels.shape == (0, 2)


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
    assert "3 columns of zeros and ones are the classes: Cat, dog, sky" in note
    assert note.endswith("other columns are left out: width")
    held_out = load_held_out_manifest(photos / "list.csv", ["sky", "Cat", "dog"], multilabel=True)
    assert held_out.test and held_out.test.labels.tolist() == [[0, 0, 0]]


def test_one_hot_rows_of_one_class_each_are_single_labels_in_csv_and_parquet(photos):
    table = {
        "path": [f"pictures/{i}.jpg" for i in range(4)],
        "MEL": [1.0, 0.0, 1.0, 0.0],
        "NV": [False, True, False, True],
    }
    parquet.write_table(pyarrow.table(table), photos / "list.parquet")
    for file in (
        photos / "list.parquet",
        write(photos, "\n".join(["path,MEL,NV", *(f"pictures/{i}.jpg,{1 - i % 2},{i % 2}"
        for i in range(4))])),
    ):  # fmt: skip
        splits = load_manifest(file, val_fraction=0.0, test_fraction=0.0)
        assert not splits.multilabel and splits.train.labels.tolist() == [0, 1, 0, 1]
        assert splits.classes == ["MEL", "NV"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ONE_HOT.replace("640,1,", "640,0,"), "'Cat' has a 1 in no train row"),
        (ONE_HOT.replace("dog", "Cat"), "has 2 columns 'Cat'; keep one"),
        ("path,a\npictures/0.jpg,1\n", "none called 'label', nor columns of zeros and ones"),
        (
            "path,a,b\n" + "".join(f"pictures/{i}.jpg,{i % 2},1\n" for i in range(11))
            + "pictures/11.jpg,-1,1\n",
            "row 13 has '-1' in column 'a', whose other values are 0 and 1",
        ),
    ],
)  # fmt: skip
def test_a_mistake_in_columns_of_classes_is_named(text, message, photos):
    with pytest.raises(UserError, match=message) as caught:
        load_manifest(write(photos, text))
    assert "\n" not in str(caught.value)
