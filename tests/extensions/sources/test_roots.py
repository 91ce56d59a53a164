"""Roots that could be read in several ways: which reading answers, with what classes and images."""

import importlib
import io
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import Table, parquet

from tests.data.conftest import MakeTree, make_tree
from tests.processes import together
from vit.data.find import find_splits
from vit.data.settings import ModelClasses, Reading, Splitting
from vit.errors import UserError

__all__ = ["make_tree"]

PLAIN = Reading(Splitting(val_fraction=0, test_fraction=0))
CAT_DOG = {"cat": 2, "dog": 2}


def answer(root: Any, reading: Reading = PLAIN) -> tuple[list[str], dict[str, int], str]:
    """Classes, images of each split, and the name of the first image of train or test."""
    splits = find_splits(None, str(root), reading)
    sizes = {name: len(images) for name, images in splits.present().items()}
    return splits.classes, sizes, splits.get(splits.scored).names.name(0)  # pyright: ignore


def tar(root: Path, name: str, source: Path) -> None:
    """A shard of the class folders in a folder."""
    with tarfile.open(root / name, "w") as shard:
        for path in sorted(source.rglob("*.jpg")):
            shard.add(path, path.relative_to(source).as_posix())


def pictures(root: Path, name: str, source: Path) -> None:
    """A file of Parquet that holds the images of class folders."""
    paths = sorted(source.rglob("*.jpg"))
    rows = [{"bytes": path.read_bytes(), "path": path.name} for path in paths]
    labels = [path.parent.name for path in paths]
    parquet.write_table(Table.from_pydict({"image": rows, "label": labels}), root / name)


def listing(root: Path, name: str, source: Path, head: str = "path,label") -> Path:
    """A list of the images of class folders, those of cat as `wild`."""
    rows = [f"{path},{'wild' if path.parent.name == 'cat' else 'tame'}" for path in images(source)]
    (root / name).write_text("\n".join([head, *rows]))
    return root / name


def images(source: Path) -> list[Path]:
    return sorted(source.rglob("*.jpg"))


@pytest.fixture
def photos(tmp_path: Path, make_tree: MakeTree) -> Path:
    return make_tree(tmp_path / "photos", CAT_DOG)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def test_class_folders(photos: Path) -> None:
    assert answer(photos) == (["cat", "dog"], {"train": 4}, "cat/0.jpg")


def test_shards_are_left_out_beside_class_folders(photos: Path) -> None:
    tar(photos, "train-0.tar", photos)
    splits = find_splits(None, str(photos), PLAIN)
    assert len(splits.train) == 4 and splits.train.names.name(0) == "cat/0.jpg"
    assert any("1 .tar" in note for note in splits.notes)


def test_shards_alone(photos: Path, root: Path) -> None:
    tar(root, "train-0.tar", photos)
    tar(root, "val-0.tar", photos)
    shards = (["cat", "dog"], {"train": 4, "val": 4}, "val/cat/0.jpg")
    assert answer(root) == answer(root / "*-0.tar") == answer(root / "*-0.t?r") == shards
    assert answer(root / "train-{0..0}.tar")[1] == {"train": 4}


def test_shards_win_over_parquet_and_lists_beside_them(photos: Path, root: Path) -> None:
    tar(root, "train-0.tar", photos)
    pictures(root, "train-0.parquet", photos)
    listing(root, "list.csv", photos)
    assert answer(root) == (["cat", "dog"], {"train": 4}, "train/cat/0.jpg")


def test_parquet_with_pictures(photos: Path, root: Path) -> None:
    pictures(root, "train-0.parquet", photos)
    listing(root, "list.csv", photos)
    stored = (["cat", "dog"], {"train": 4}, "train-0.parquet/0")
    assert answer(root) == answer(root / "train-0.parquet") == answer(root / "*.parquet") == stored


def test_parquet_with_paths_is_a_list_by_its_name_alone(photos: Path, root: Path) -> None:
    rows = {"path": [str(path) for path in images(photos)], "label": [*"abab"]}
    parquet.write_table(Table.from_pydict(rows), root / "list.parquet")
    first = str(photos / "cat/0.jpg")
    assert answer(root / "list.parquet") == (["a", "b"], {"train": 4}, first)
    with pytest.raises(UserError, match=r"left out: 1 .parquet"):
        answer(root)


def test_a_list_beside_folders_is_read_by_its_name_alone(photos: Path) -> None:
    file = listing(photos, "list.csv", photos)
    assert answer(photos) == (["cat", "dog"], {"train": 4}, "cat/0.jpg")
    assert answer(file)[0] == ["tame", "wild"]


def test_a_folder_named_as_a_list_is_a_folder(tmp_path: Path, make_tree: MakeTree) -> None:
    assert answer(make_tree(tmp_path / "photos.csv", CAT_DOG))[0] == ["cat", "dog"]


def test_split_folders_win_over_a_list_and_shards_beside_them(
    root: Path, photos: Path, make_tree: MakeTree
) -> None:
    make_tree(root, {"train/cat": 2, "train/dog": 2, "test/cat": 1, "test/dog": 1})
    listing(root, "list.csv", photos)
    tar(root, "val-0.tar", photos)
    folders = (["cat", "dog"], {"train": 4, "test": 2}, "test/cat/0.jpg")
    assert answer(root) == folders


def test_split_folders_of_shards(photos: Path, root: Path) -> None:
    for split in ("train", "test"):
        (root / split).mkdir()
        tar(root / split, "0.tar", photos)
    assert answer(root) == (["cat", "dog"], {"train": 4, "test": 4}, "test/cat/0.jpg")
    (root / "train" / "bird").mkdir()
    with pytest.raises(UserError, match="has test, but no train"):  # of shards
        answer(root)


def test_lists_of_a_task_win_over_folders_unless_a_model_is_scored(
    root: Path, make_tree: MakeTree
) -> None:
    root = make_tree(root / "patch_camelyon", {"images": 4, "no": 3})
    lines = [f"images/{at}.jpg {at % 2}" for at in range(4)]
    (root / "train800val200.txt").write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"cannot read .*/train800.txt"):
        answer(root)
    model = ModelClasses(names=["images", "no"])
    assert answer(root, Reading(model=model))[1] == {"train": 0, "test": 7}


def test_lists_of_a_task(root: Path, make_tree: MakeTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vit.extensions.transfer.vtab.LINES", {"train800": 2, "val200": 1} | WHOLE)
    root = make_tree(root / "patch_camelyon", {"images": 4})
    lines = [f"images/{at}.jpg {at % 2}" for at in range(4)]
    rows = {"train800": (0, 2), "val200": (2, 3), "train800val200": (0, 3), "test": (3, 4)}
    for name, (first, end) in rows.items():
        (root / f"{name}.txt").write_text("\n".join(lines[first:end]))
    assert answer(root) == (["0", "1"], {"train": 3, "test": 1}, "images/3.jpg")
    searched = answer(root, Reading(Splitting(val_fraction=0.1)))
    assert searched[1] == {"train": 2, "val": 1, "test": 1}


WHOLE = {"train800val200": 3, "test": None}


@pytest.mark.parametrize("folders", ["a", "train", "data/train"])
def test_shards_below_folders_are_seen(folders: str, photos: Path, root: Path) -> None:
    (root / folders).mkdir(parents=True)
    tar(root / folders, "0.tar", photos)
    if folders == "a":  # a folder of a class has pictures
        with pytest.raises(UserError, match=r"(has )?no images"):
            answer(root)
    else:
        assert answer(root)[:2] == (["cat", "dog"], {"train": 4})


def no_source(root: Path) -> None:
    """Reads class folders by modules that this call imports; AssertionError for an extension."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "vit"]:
        del sys.modules[name]
    find = importlib.import_module("vit.data.find").find_splits
    reading = importlib.import_module("vit.data.settings").Reading()
    assert len(find(None, str(root), reading).train)
    assert not [name for name in sys.modules if name.startswith("vit.extensions.")]


def test_no_source_is_imported_for_class_folders(photos: Path, tmp_path: Path) -> None:
    ended = together(1, tmp_path / "alone", no_source, photos)
    assert ended == [0], (tmp_path / "alone" / "0.err").read_text()


def test_a_tree(root: Path, make_tree: MakeTree) -> None:
    make_tree(root, {"pet/cat": 2, "pet/dog": 2, "wild/fox": 2})
    assert answer(root)[0] == ["pet", "wild"]
    assert answer(root, Reading(tree=True))[0] == ["pet/cat", "pet/dog", "wild/fox"]


def test_arrays(root: Path, photos: Path) -> None:
    for name in ("a", "b"):
        (root / name).mkdir()
        np.save(root / name / "0.npy", np.zeros((2, 2)))
    reading = Reading(PLAIN.cut, arrays=True)
    assert answer(root, reading) == (["a", "b"], {"train": 2}, "a/0.npy")
    with pytest.raises(UserError, match=r"data.channels N reads .npy"):
        answer(root)


def in_memory(name: str, write: Callable[[Path], None], folder: Path) -> str:
    """The address of a file in fsspec's memory."""
    import fsspec

    write(folder)
    address = f"memory:///{folder.name}/{name}"
    content = io.BytesIO((folder / name).read_bytes())
    fsspec.filesystem("memory").pipe(address.removeprefix("memory://"), content.getvalue())
    return f"memory:///{folder.name}"


def test_addresses(photos: Path, root: Path) -> None:
    address = in_memory("train-0.tar", lambda folder: tar(folder, "train-0.tar", photos), root)
    for place in (address, f"{address}/train-0.tar", f"{address}/train-{{0..0}}.tar"):
        assert answer(place)[:2] == (["cat", "dog"], {"train": 4})
    with pytest.raises(UserError, match=r"has neither .tar nor .parquet files"):
        answer("memory:///nothing")


def test_what_is_not_there_and_what_has_a_separator(photos: Path, root: Path) -> None:
    with pytest.raises(UserError, match="neither a folder"):
        answer(root / "none")
    tar(root, "train-0.tar", photos)
    for place in (photos, root):
        with pytest.raises(UserError, match="is no list of files: leave out"):
            answer(place, Reading(separator=";"))
