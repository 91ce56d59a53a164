import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from vit.data import folder
from vit.data.find import check_source, find_splits
from vit.data.settings import ModelClasses, Reading, Splitting
from vit.data.sources import ImageSet, Splits
from vit.errors import UserError
from vit.extensions.sources.pack import pack


def load_folder(root: Path, labelled: bool = True, tree: bool = False, **cut: Any) -> Splits:
    splits = folder.load_folder(root, Reading(cut=Splitting(**cut), labelled=labelled, tree=tree))
    assert all(note.isprintable() for note in splits.notes)
    return splits


def load_held_out(
    root: Path, classes: list[str], multilabel: bool = False, tree: bool = False
) -> Splits:
    model = ModelClasses(names=classes, multilabel=multilabel)
    return folder.load_folder(root, Reading(model=model, tree=tree))


def names(images: ImageSet | None) -> list[str]:
    assert images is not None
    return list(images.names)


def by_class(images: ImageSet | None) -> dict[int, int]:
    assert images is not None
    return {label: (images.labels == label).sum() for label in images.labels.tolist()}


def test_one_folder_is_cut_into_three(tmp_path, make_tree):
    splits = load_folder(make_tree(tmp_path / "photos", {"cat": 20, "dog": 40}))
    assert splits.classes == ["cat", "dog"]
    assert by_class(splits.train) == {0: 16, 1: 32}
    assert by_class(splits.val) == {0: 2, 1: 4}
    assert by_class(splits.test) == {0: 2, 1: 4}
    everything = names(splits.train) + names(splits.val) + names(splits.test)
    assert len(set(everything)) == 60
    assert splits.val_origin == splits.test_origin == "cut from train"


def test_paths_open_and_labels_are_those_of_their_folders(tmp_path, make_tree):
    splits = load_folder(make_tree(tmp_path / "my phötos", {"ein Hund": 4, "猫": 4}))
    for images in (splits.train, splits.val, splits.test):
        assert images is not None
        for path, label, name in zip(images.items, images.labels, images.names, strict=True):
            assert name.split("/")[0] == splits.classes[label]
            assert path == str(tmp_path / "my phötos" / name)
            Image.open(path).load()


def test_moving_the_classes_into_train_keeps_the_cut(tmp_path, make_tree):
    one = load_folder(make_tree(tmp_path / "one", {"cat": 20, "dog": 20}))
    two = load_folder(make_tree(tmp_path / "two", {"train/cat": 20, "train/dog": 20}))
    assert ["train/" + name for name in names(one.val)] == names(two.val)
    assert ["train/" + name for name in names(one.test)] == names(two.test)


@pytest.mark.parametrize("val", ["val", "validation", "Val"])
def test_val_folder_is_used_and_then_there_is_no_test(val, tmp_path, make_tree):
    tree = {"train/cat": 3, "train/dog": 3, f"{val}/cat": 2, f"{val}/dog": 1}
    splits = load_folder(make_tree(tmp_path / "photos", tree))
    assert names(splits.val) == [f"{val}/cat/0.jpg", f"{val}/cat/1.jpg", f"{val}/dog/0.jpg"]
    assert len(splits.train) == 6 and splits.test is None
    assert (splits.val_origin, splits.test_origin) == ("given", "none")


def test_with_train_and_test_val_is_cut_from_train(tmp_path, make_tree):
    tree = {"train/cat": 10, "train/dog": 10, "test/cat": 3, "test/dog": 3}
    splits = load_folder(make_tree(tmp_path / "photos", tree))
    assert by_class(splits.train) == {0: 9, 1: 9}
    assert (by_class(splits.val), by_class(splits.test)) == ({0: 1, 1: 1}, {0: 3, 1: 3})
    assert (splits.val_origin, splits.test_origin) == ("cut from train", "given")


def test_classes_are_those_of_train_in_natural_order(tmp_path, make_tree):
    tree = {f"train/{n}": 1 for n in range(1, 12)} | {"val/11": 1, "val/2": 1, "test/1": 1}
    splits = load_folder(make_tree(tmp_path / "photos", tree))
    assert splits.classes == [str(n) for n in range(1, 12)]
    assert by_class(splits.val) == {10: 1, 1: 1} and by_class(splits.test) == {0: 1}


def test_both_spellings_of_an_accent_are_one_class(tmp_path, make_tree):
    tree = {"train/caf\u00e9": 2, "train/bar": 2, "train/bar/b/c": 3, "val/cafe\u0301": 1}
    splits = load_folder(make_tree(tmp_path / "photos", tree))
    assert by_class(splits.val) == {1: 1}
    assert by_class(splits.train) == {0: 5, 1: 2}  # folders below a class belong to it


NESTED = {"animal/bird/gull": 9, "animal/bird/auk": 9, "animal b": 9, "animal/cat": 10}


@pytest.mark.parametrize("parts", [("",), ("train/", "val/")])
def test_of_a_tree_the_innermost_folders_are_classes_with_their_paths(parts, tmp_path, make_tree):
    counts = {part + name: count for part in parts for name, count in NESTED.items()}
    splits = load_folder(make_tree(tmp_path / "photos", counts), tree=True)
    assert splits.classes == ["animal b", "animal/bird/auk", "animal/bird/gull", "animal/cat"]
    assert splits.notes == []
    assert splits.val is not None and set(by_class(splits.val)) == {0, 1, 2, 3}
    for name, label in zip(splits.train.names, splits.train.labels, strict=True):
        assert os.path.dirname(name).endswith(splits.classes[label])
    scored = load_held_out(tmp_path / "photos", splits.classes, tree=True)
    assert scored.scored == ("val" if "val/" in parts else "test")
    held = scored.get(scored.scored)
    assert held is not None and by_class(held) == {0: 9, 1: 9, 2: 9, 3: 10}


def test_a_folder_that_is_no_tree_is_one_line(tmp_path, make_tree):
    root = make_tree(tmp_path / "photos", {"a/b/c": 3, "a/b": 2, "d": 3})
    with pytest.raises(UserError, match=r"a/b/0.jpg has the label 'a/b', .* 'a/b/c' is below it"):
        load_folder(root, tree=True)


def test_images_that_all_lie_deeper_get_a_note_on_trees(tmp_path, make_tree):
    deep = {"animal/cat": 3, "animal/dog": 3, "car/red/old": 4}
    splits = load_folder(make_tree(tmp_path / "photos", deep))
    assert splits.classes == ["animal", "car"]
    [note] = splits.notes
    assert "two or more folders deep" in note and "--data.labels tree" in note
    make_tree(tmp_path / "photos", {"car": 1})
    assert load_folder(tmp_path / "photos").notes == []


def test_what_is_left_out_is_noted(tmp_path, make_tree):
    root = make_tree(
        tmp_path / "p", {"train/a": 4, "train/b": 4, "val/a": 1, "train": 2, "r\x1baw": 3}
    )
    (root / "train" / "a" / "x.psd").touch()
    assert load_folder(root).notes == [
        f"{root}: folders beside train/ left out: 'r\\x1baw'",
        f"{root}/train: left out: 1 .psd",
        f"{root}/train: images outside class folders left out: 2",
    ]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"cat": 0, "dog": 0}, "class folder .*photos/cat has no images"),
        ({".": 3}, "photos has 3 images but no class folders"),
        ({"cat": 3}, "photos has one class only, 'cat'; two are needed$"),
        (
            {"train/a": 2, "train/b": 2, "val/c": 1},
            "photos/val has classes that .*train lacks: 'c'",
        ),
        ({"train/a": 2, "train/b": 2, "val": 0}, "no images in class folders of .*photos/val"),
        ({"val/a": 2, "test/a": 2}, "photos has val and test, but no train"),
        ({"train/a": 1, "val/a": 1, "valid/a": 1}, "photos has train, val, valid: keep one name"),
        ({"train": 0}, "no images in .*photos/train"),
        ({"a": 1, "b": 1}, "no class of .*photos has two images"),
    ],
)
def test_an_unusable_folder_is_one_line_that_names_it(tree, message, tmp_path, make_tree):
    with pytest.raises(UserError, match=message) as caught:
        load_folder(make_tree(tmp_path / "photos", tree))
    assert "\n" not in str(caught.value)


def test_a_class_whose_name_is_not_text_is_an_error_before_training(tmp_path, make_tree):
    make_tree(tmp_path, {"cat": 2, os.fsdecode(b"d\xffg"): 2})
    with pytest.raises(UserError, match=r"class 'd\\udcffg' in .* is not text; rename it"):
        load_folder(tmp_path)


def test_an_empty_class_says_what_its_files_are(tmp_path, make_tree):
    root = make_tree(tmp_path / "photos", {"cat/tom": 3, "dog": 0})
    (root / "dog" / "1.psd").touch()
    for tree in (False, True):
        with pytest.raises(UserError, match=r"photos/dog has no images.*1 \.psd"):
            load_folder(root, tree=tree)


def test_a_missing_folder_names_the_nearest(tmp_path, make_tree):
    make_tree(tmp_path, {"photos/cat": 1})
    with pytest.raises(UserError, match=r"fotos does not exist; did you mean 'photos'"):
        check_source(None, str(tmp_path / "fotos"))
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file is neither a folder nor"):
        load_folder(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_an_unreadable_folder_is_named(tmp_path: Path, make_tree):
    root = make_tree(tmp_path / "photos", {"cat": 3, "dog": 3})
    (root / "dog").chmod(0)
    with pytest.raises(UserError, match=r"cannot read folder .*photos/dog: Permission denied"):
        load_folder(root)


@pytest.mark.parametrize(
    ("tree", "split", "labels"),
    [
        ({"hen": 2, "cat": 1}, "test", [0, 2, 2]),
        ({"hen": 2}, "test", [2, 2]),
        ({"train/cat": 3, "val/cat": 1, "test/hen": 2}, "test", [2, 2]),
        ({"train/cat": 3, "val/dog": 1}, "val", [1]),
        ({"train/cat": 3}, "train", [0, 0, 0]),
    ],
)
def test_held_out_images_get_the_labels_of_the_model(tree, split, labels, tmp_path, make_tree):
    splits = load_held_out(make_tree(tmp_path / "new", tree), ["cat", "dog", "hen"])
    assert splits.scored == split
    sizes = {name: len(images) for name, images in splits.present().items()}
    assert sizes == {"train": 0, split: len(labels)}
    assert splits.get(split).labels.tolist() == labels
    rows = load_held_out(tmp_path / "new", ["cat", "dog", "hen"], multilabel=True)
    assert rows.multilabel and rows.get(split).labels.argmax(1).tolist() == labels
    assert rows.get(split).labels.sum() == len(labels)


def test_a_held_out_class_unknown_to_the_model_is_an_error(tmp_path, make_tree):
    root = make_tree(tmp_path / "new", {"cat": 1, "cow": 1})
    with pytest.raises(UserError, match="classes that the model lacks: 'cow'"):
        load_held_out(root, ["cat", "dog"])


def test_unlabelled_images_may_lie_loose_in_class_folders_or_deeper(tmp_path, make_tree):
    root = make_tree(tmp_path / "photos", {".": 10, "cat": 5, "trips/2019/rome": 5})
    splits = load_folder(root, labelled=False, val_fraction=0.2, test_fraction=0.1)
    parts = [splits.train, splits.val, splits.test]
    assert [len(names(part)) for part in parts] == [14, 4, 2]
    everything = [name for part in parts for name in names(part)]
    assert len(set(everything)) == 20
    assert {"0.jpg", "cat/4.jpg", "trips/2019/rome/0.jpg"} <= set(everything)
    assert splits.classes == [] and not splits.train.labels.any()
    assert splits.notes == []
    assert "20 images without labels: train 14" in splits.summary(0)
    for path in splits.train.items:
        Image.open(path).load()
    other = load_folder(root, labelled=False, val_fraction=0.2, test_fraction=0.1, seed=1)
    assert names(other.val) != names(splits.val)


def test_unlabelled_images_keep_the_split_folders(tmp_path, make_tree):
    root = make_tree(tmp_path / "photos", {"train": 6, "train/a": 2, "test/b": 3})
    splits = load_folder(root, labelled=False, val_fraction=0.25)
    assert len(splits.train) == 6 and len(names(splits.val)) == 2
    assert names(splits.test) == ["test/b/0.jpg", "test/b/1.jpg", "test/b/2.jpg"]
    held = load_held_out(root, [])
    assert names(held.test) == names(splits.test) and not len(held.train)


def test_a_folder_without_any_image_is_one_line(tmp_path, make_tree):
    root = make_tree(tmp_path / "photos", {"a": 0})
    (root / "a" / "notes.txt").write_text("x")
    with pytest.raises(UserError, match=r"no images in .*photos; there: .*1 .txt"):
        load_folder(root, labelled=False)
    one = make_tree(tmp_path / "one", {".": 1})
    with pytest.raises(UserError, match="one has two images to cut a val from train"):
        load_folder(one, labelled=False)


def parts(root) -> dict:
    """The images of each split that is given, by class."""
    whole = Splitting(val_fraction=0.0, test_fraction=0.0)
    splits = find_splits(None, str(root), Reading(cut=whole))
    return {
        name: {c: images.labels.tolist().count(at) for at, c in enumerate(splits.classes)}
        for name, images in splits.present().items()
    }


@pytest.mark.parametrize(
    ("train", "held"),
    [
        ("Training", {"Testing": "test"}),
        ("seg_train", {"seg_test": "test"}),
        ("train2017", {"val2017": "val"}),
        ("TRAIN images", {"Test images": "test", "dev-images": "val"}),
        ("my.training", {"my.eval": "val"}),
    ],
)
def test_folders_with_a_whole_word_for_their_split_are_splits(train, held, tmp_path, make_tree):
    tree = {f"{train}/cat": 3, f"{train}/dog": 4}
    for name in held:
        tree |= {f"{name}/cat": 2, f"{name}/dog": 1}
    root = make_tree(tmp_path / "photos", tree | {"seg_pred/seg_pred": 2, "unlabeled/x": 1, "c": 2})
    expected = {"train": {"cat": 3, "dog": 4}, **{of: {"cat": 2, "dog": 1} for of in held.values()}}
    assert parts(root) == expected
    splits = load_folder(root, val_fraction=0.0, test_fraction=0.0)
    assert splits.notes[0].endswith("folders beside train/ left out: 'c', 'seg_pred', 'unlabeled'")
    assert f"{root}: {train}/ is taken as train" in splits.notes
    assert names(splits.train)[0] == f"{train}/cat/0.jpg" and Path(splits.train.items[0]).is_file()
    (tmp_path / "shards").mkdir()
    pack(str(root), tmp_path / "shards")
    assert parts(tmp_path / "shards") == expected


@pytest.mark.parametrize(
    "tree",
    [
        {"trainers/a": 3, "testudo/a": 3, "devil/a": 3},
        {"cat/2023": 2, "dog/2023": 2},
        {"train_station": 2, "test_tube": 2},
        {"Training/cat": 2, "Testing/cat": 2, "more/cat": 2},
        {"Training/cat": 2, "train_2/cat": 2, "Testing/cat": 2},
        {"seg_train/cat": 2, "train_test/cat": 2},
        {"Training/cat": 2, "walking/cat": 2},
    ],
)
def test_other_folders_with_such_names_are_classes(tree, tmp_path, make_tree):
    root = make_tree(tmp_path / "photos", tree)
    expected = {name.partition("/")[0]: count for name, count in tree.items()}
    assert parts(root) == {"train": dict(sorted(expected.items()))}


def test_exact_names_are_splits_whatever_is_beside_them(tmp_path, make_tree):
    tree = {"train/cat": 2, "train/dog": 2, "Testing/cat": 2, "more/cat": 1}
    root = make_tree(tmp_path / "photos", tree)
    assert parts(root) == {"train": {"cat": 2, "dog": 2}}
    assert "left out: 'Testing', 'more'" in load_folder(root).notes[0]


def test_a_split_that_holds_one_folder_of_its_name_is_entered(tmp_path, make_tree):
    tree = {
        f"seg_{name}/seg_{name}/{c}": 2 for name in ("train", "test") for c in ("sea", "street")
    }
    root = make_tree(tmp_path / "photos", tree | {"seg_pred/seg_pred": 3})
    both = {"sea": 2, "street": 2}
    assert parts(root) == {"train": both, "test": both}
    splits = load_folder(root)
    assert names(splits.test)[0] == "seg_test/sea/0.jpg" and Path(splits.test.items[0]).is_file()
    more = make_tree(tmp_path / "more", {"train/train": 2, "train/plane": 2, "val/train": 1})
    assert parts(more) == {"train": {"plane": 2, "train": 2}, "val": {"plane": 0, "train": 1}}


def test_splits_that_are_one_folder_or_loose_images_are_refused(tmp_path, make_tree):
    root = make_tree(tmp_path / "photos", {"train/cat": 2, "train/dog": 2})
    (root / "val").symlink_to("train")
    with pytest.raises(UserError, match="train/ and val/ are one folder by a link"):
        load_folder(root)
    loose = make_tree(tmp_path / "loose", {"train/cat": 2, "train/dog": 2, "val": 3})
    remedy = "val has 3 images but no class folders; put"
    with pytest.raises(UserError, match=remedy):
        load_folder(loose)
    with pytest.raises(UserError, match=remedy):
        load_held_out(loose, ["cat", "dog"])
