import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vit.data.find import find_splits
from vit.data.settings import Columns, ModelClasses, Reading, Splitting
from vit.data.sources import Splits
from vit.errors import UserError

COLUMNS = Columns()


def load_manifest(
    path: Path,
    labelled: bool = True,
    separator: str | None = None,
    columns: Columns = COLUMNS,
    tree: bool = False,
    **cut: Any,
) -> Splits:
    given = {"labelled": labelled, "separator": separator, "columns": columns, "tree": tree}
    return find_splits(None, str(path), Reading(cut=Splitting(**cut), **given))


def load_held_out_manifest(
    path: Path, classes: list[str], multilabel: bool = False, **given: Any
) -> Splits:
    model = ModelClasses(names=classes, multilabel=multilabel)
    return find_splits(None, str(path), Reading(model=model, **given))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 12 images, 0.jpg to 11.jpg, in `pictures`."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "pictures").mkdir()
    for index in range(12):
        Image.new("RGB", (10, 8), (index, 0, 0)).save(folder / "pictures" / f"{index}.jpg")
    (folder / "link.jpg").symlink_to("pictures/1.jpg")
    return folder


def write(photos: Path, text: str) -> Path:
    (photos / "list.csv").write_text(text, encoding="utf-8")
    return photos / "list.csv"


def rows(labels: list[str], header: str = "path,label") -> str:
    listed = [f"pictures/{index}.jpg,{label}" for index, label in enumerate(labels)]
    return "\n".join([header, *listed]) + "\n"


def uncut(path: Path, **options: Any) -> Splits:
    return load_manifest(path, val_fraction=0.0, test_fraction=0.0, **options)


def sizes(splits: Splits) -> list[int | None]:
    parts = (splits.train, splits.val, splits.test)
    return [None if part is None else len(part) for part in parts]


def test_relative_paths_start_at_the_manifest(photos, monkeypatch):
    absolute = photos / "pictures" / "3.jpg"
    text = f"path,label\npictures/0.jpg,cat\n{absolute},dog\nlink.jpg,dog\n"
    monkeypatch.chdir(photos)
    splits = uncut(Path(write(photos, text).name))
    monkeypatch.chdir("/")
    assert list(splits.train.items) == [
        *(str(photos / "pictures/0.jpg"), str(absolute), str(photos / "link.jpg"))
    ]
    assert splits.classes == ["cat", "dog"] and splits.train.labels.tolist() == [0, 1, 1]


def test_without_a_split_column_val_and_test_are_cut(photos):
    splits = load_manifest(write(photos, rows(["cat", "dog"] * 6)))
    assert sizes(splits) == [8, 2, 2]
    assert splits.val is not None and sorted(splits.val.labels) == [0, 1]
    again = load_manifest(photos / "list.csv", seed=1)
    assert again.val is not None and list(again.val.names) != list(splits.val.names)


def test_split_names_and_their_synonyms_are_used(photos):
    names = "train Training training train val valid validation dev EVAL Test testing".split()
    labels = [f"{'cat' if index % 2 else 'dog'},{name}" for index, name in enumerate(names)]
    splits = load_manifest(write(photos, rows(labels, "path,label,split")))
    assert sizes(splits) == [4, 5, 2]
    assert (splits.val_origin, splits.test_origin) == ("given", "given")
    assert splits.val is not None
    assert list(splits.val.names) == [f"pictures/{index}.jpg" for index in range(4, 9)]
    without_test = write(photos, rows(labels[:5], "path,label,split"))
    assert sizes(load_manifest(without_test)) == [4, 1, None]


@pytest.mark.parametrize(
    ("text", "separator", "labels"),
    [
        (rows(["a|c", "b", ""]), None, [[1, 0, 1], [0, 1, 0], [0, 0, 0]]),
        (rows(["a,c", "b,", "c,b"], "path,label,label"), None, [[1, 0, 1], [0, 1, 0], [0, 1, 1]]),
        (rows(["a;c", "b", "c ; b"]), ";", [[1, 0, 1], [0, 1, 0], [0, 1, 1]]),
        (rows(['"a, c"', "b", '"b,c"']), ",", [[1, 0, 1], [0, 1, 0], [0, 1, 1]]),
    ],
)
def test_several_labels_become_rows_of_zeros_and_ones(text, separator, labels, photos):
    splits = uncut(write(photos, text), separator=separator)
    assert splits.multilabel and splits.classes == ["a", "b", "c"] and splits.notes == []
    assert splits.train.labels.dtype == np.float32
    assert splits.train.labels.tolist() == labels


def test_a_given_separator_takes_the_place_of_the_usual_one(photos):
    listed = write(photos, rows(["cat;sky", "a|b"] * 6))
    assert uncut(listed, separator=";").classes == ["a|b", "cat", "sky"]
    with pytest.raises(UserError, match="label_separator='/' occurs in no label of"):
        uncut(listed, separator="/")
    # Images of a model that exists need not have it.
    plain = write(photos, rows(["cat", "dog"] * 6))
    held_out = load_held_out_manifest(plain, ["cat", "dog"], separator=";", multilabel=True)
    assert held_out.multilabel and held_out.train.labels.shape == (0, 2)


def test_multilabel_sets_are_cut_as_a_whole(photos):
    labels = [f"a|x{index}" for index in range(12)]
    assert sizes(load_manifest(write(photos, rows(labels)), val_fraction=0.25)) == [8, 3, 1]


def test_semicolons_byte_order_mark_and_capitals_are_understood(photos):
    text = "\ufeffPath; Label ;Other\npictures/0.jpg;ein, Hund;1\n\npictures/1.jpg;Katze;2\n"
    assert uncut(write(photos, text)).classes == ["Katze", "ein, Hund"]


HEAD = "path,label,split\npictures/0.jpg,cat,train\npictures/1.jpg,dog,train\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no column 'path'"),
        ("path,label\n", "has a header but no rows"),
        ("path,lable\na,b\n", "no column 'label', but path, lable"),
        ("file,label\na,b\n", "no column 'path', but file, label"),
        (HEAD + "pictures/2.jpg,cat\n", "row 4 has 2 of 3 columns"),
        (
            HEAD + "pictures/2.jpg,crane, bird,train\n",
            "row 4 has 4 cells for 3 columns: put ' bird,train' into quotes if it is one cell",
        ),
        (
            '"path","label"\n"1","pictures/0.jpg","cat"\n"2","pictures/1.jpg","dog"\n',
            r"row 2 has 3 cells for 2 columns.*\(R's write.table: row.names = FALSE\)$",
        ),
        (HEAD + "pictures\\\\2.jpg,cat,val\n", "is no file .*; did you mean 'pictures/2.jpg'\\?$"),
        (HEAD + "pictures/2,cat,val\n", "is no file .*; did you mean 'pictures/2.jpg'\\?$"),
        (HEAD + "pictures/20.jpg,cat,val\n", r"is no file .* missing\)$"),
        (HEAD + ",cat,train\n", "row 4 has no path"),
        (HEAD + "pictures/2.jpg,,train\n", "row 4 has no label"),
        (HEAD + "pictures/2.jpg,cat,trian\n", "row 4 has split 'trian'; known are train, val"),
        (HEAD + "pictures/2.jpg,cow,val\n", "has classes that .* lacks: 'cow'"),
        (HEAD + "pictures/0.jpg,cat,val\n", "row 4 lists pictures/0.jpg again"),
        (HEAD + "../{folder}/pictures/0.jpg,cat,val\n", "row 4 lists .*0.jpg again"),
        (
            HEAD + "gone.jpg,cat,val\n",
            "row 4 names 'gone.jpg', which is no file below .*photos\\d+ ",
        ),
        (HEAD + "pic\0tures/1.jpg,cat,val\n", r"row 4 names 'pic\\x00tures/1.jpg'"),
        (
            HEAD + 'pictures/2.jpg,"cat,train\npictures/3.jpg,cat,train\n',
            "begins in line 4: .*quot",
        ),
        ("path,label,split\npictures/0.jpg,cat,val\n", "has val, but no train"),
        (rows(["cat", "cat"]), "one class only, 'cat'"),
    ],
)
def test_a_mistake_is_one_line_with_file_and_row(text, message, photos):
    with pytest.raises(UserError, match=message) as caught:
        load_manifest(write(photos, text.replace("{folder}", photos.name)))
    assert "\n" not in str(caught.value) and "list.csv" in str(caught.value)


def test_empty_cells_at_the_end_of_a_row_are_none(photos):
    text = "path,label\npictures/0.jpg,cat,,\npictures/1.jpg,dog\npictures/2.jpg,dog, \n"
    assert uncut(write(photos, text)).class_counts == [1, 2]


def test_a_manifest_that_cannot_be_read_is_one_line(tmp_path):
    (tmp_path / "bytes.csv").write_bytes(b"path,label\n\xff\xfe\x00\n")
    for name, message in {
        "bytes.csv": "not in UTF-8",
        "gone.csv": r"cannot read .*gone\.csv: No such file",
    }.items():
        with pytest.raises(UserError, match=message):
            load_manifest(tmp_path / name)


def test_a_held_out_manifest_gets_the_labels_of_the_model(photos):
    listed = write(photos, rows(["hen", "cat"]))
    splits = load_held_out_manifest(listed, ["cat", "dog", "hen"])
    assert splits.test is not None and splits.test.labels.tolist() == [2, 0]
    with pytest.raises(UserError, match="that the model lacks: 'hen'"):
        load_held_out_manifest(listed, ["cat", "dog"])


def test_labels_that_are_not_wanted_are_not_read(photos):
    splits_only = [("test" if i == 8 else "train") for i in range(9)]
    listed = write(photos, rows(splits_only, "path,split"))
    splits = load_manifest(listed, labelled=False, val_fraction=0.25)
    assert splits.classes == [] and sizes(splits) == [6, 2, 1]
    assert not splits.train.labels.any()
    held = load_held_out_manifest(listed, [])
    assert held.test is not None and list(held.test.names) == ["pictures/8.jpg"]
    mixed = write(photos, rows(["cat|x,train", ",train", "dog,val"], "path,label,split"))
    splits = load_manifest(mixed, labelled=False)
    assert splits.classes == [] and not splits.multilabel and len(splits.train) == 2


@pytest.mark.parametrize("separator", [";", ",", "/"])
def test_labels_with_another_separator_in_every_row_get_a_note(separator, photos):
    labels = [separator.join(["plane", "sky"]), separator.join(["car", "road"])] * 6
    text = rows([f'"{label}"' for label in labels])
    splits = load_manifest(write(photos, text))
    assert splits.classes == sorted(set(labels)) and not splits.multilabel
    [note] = splits.notes
    assert f"add --data.label_separator '{separator}'" in note
    # What the note recommends works.
    again = load_manifest(photos / "list.csv", separator=separator)
    assert again.classes == ["car", "plane", "road", "sky"] and again.notes == []


def test_class_names_that_differ_in_spelling_only_are_kept_apart(photos):
    splits = uncut(write(photos, rows(["2", "Cat", "cat", "e\u0301", "\u00e9"])))
    assert len(splits.classes) == 5 and splits.notes == []


def test_a_million_rows_are_no_objects(photos, monkeypatch):
    """Memory a row: far below that of one Python object with a path, a label and a split."""
    count = 20_000
    lines = [f"images/{i % 200}/{i:08}_photo.jpg,class {i % 200},train\n" for i in range(count)]
    listed = write(photos, "path,label,split\n" + "".join(lines))
    del lines
    monkeypatch.setattr("vit.data.manifest.missing_files", lambda paths: [])
    tracemalloc.start()
    try:
        splits = uncut(listed)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(splits.train) == count
    assert peak < 250 * count


def test_columns_have_the_names_that_are_given(photos):
    text = "Filename,class,label,fold\npictures/0.jpg,cat,7,train\npictures/1.jpg,dog,7,test\n"
    text += "pictures/2.jpg,dog,7,train\n"
    columns = Columns(path="filename", label="class", split="FOLD")
    splits = load_manifest(write(photos, text), columns=columns, val_fraction=0)
    assert splits.classes == ["cat", "dog"] and sizes(splits) == [2, None, 1]
    with pytest.raises(UserError, match=r"no column 'path', but Filename.*--data.columns.path"):
        load_manifest(write(photos, text))
    with pytest.raises(UserError, match=r"no column 'patient', but path, label"):
        load_manifest(write(photos, rows(["cat", "dog"])), columns=Columns(group="patient"))
    columns = Columns(path="filename", label="class", split="folds")
    with pytest.raises(UserError, match=r"no column 'folds', but .*--data.columns.split NAME"):
        load_manifest(write(photos, text), columns=columns)
