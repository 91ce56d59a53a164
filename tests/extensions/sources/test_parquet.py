"""Parquet files with pictures, as Hugging Face's library writes them (datasets 4, arrow_writer)."""

import io
import json
import pickle
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet as arrow

from tests.data.conftest import MakeTree
from tests.grouped import image_data
from vit.data.decode import ImageError
from vit.data.find import find_splits
from vit.data.module import ImageData
from vit.data.settings import Columns, ModelClasses, Reading, Splitting
from vit.data.sources import Splits
from vit.errors import UserError
from vit.extensions.sources import parquet
from vit.extensions.sources.blocks import Blocks

NAMES = ["cat", "dog", "emu"]


def table(
    contents: list[bytes | None], labels: list[Any], names: list[str] | None = NAMES
) -> pyarrow.Table:
    """The columns image and label of a data set with these classes."""
    images = [{"bytes": content, "path": f"{at}.jpg"} for at, content in enumerate(contents)]
    kind = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
    columns = {"image": pyarrow.array(images, kind), "label": labels}
    features: dict[str, Any] = {"image": {"_type": "Image"}}
    if names is not None:
        features["label"] = {"names": names, "_type": "ClassLabel"}
    described = {"huggingface": json.dumps({"info": {"features": features}})}
    return pyarrow.table(columns).replace_schema_metadata(described)


def stored(folder: Path, to: Path, files: int = 2, rows: int = 3) -> Path:
    """The images of the splits below `folder` in its order, in files of row groups of `rows`."""
    (to / "data").mkdir(parents=True)
    for split in sorted(folder.iterdir()):
        paths = sorted(split.rglob("*.jpg"))
        for number, part in enumerate(np.array_split(np.arange(len(paths)), files)):
            labels = [NAMES.index(paths[at].parent.name) for at in part]
            content = table([paths[at].read_bytes() for at in part], labels)
            name = f"{split.name}-{number:05d}-of-{files:05d}.parquet"
            arrow.write_table(content, to / "data" / name, row_group_size=rows)
    return to


@pytest.fixture
def folder(tmp_path: Path, make_tree: MakeTree) -> Path:
    counts = {"train/cat": 9, "train/dog": 8, "train/emu": 7, "validation/cat": 2}
    return make_tree(tmp_path / "folder", {**counts, "validation/emu": 2})


def splits_of(root: Path | str, **options: Any) -> Splits:
    return find_splits(None, str(root), Reading(**options))


def epoch(root: Path, **options: Any) -> list[torch.Tensor]:
    data = image_data(root=str(root), image_size=8, batch_size=4, cache="none", **options)
    return [part for batch in data.train_dataloader() for part in batch]


def test_batches_are_those_of_the_same_files_in_folders(folder: Path, tmp_path: Path) -> None:
    root = stored(folder, tmp_path / "stored")
    found, files = splits_of(root), splits_of(folder)
    assert found.classes == files.classes == NAMES and found.val_origin == "given"
    assert found.train.names.name(12) == "train-00001-of-00002.parquet/0"
    assert list(found.train.labels) == list(files.train.labels)
    for workers in (0, 2):
        options = {"num_workers": workers}
        pairs = zip(epoch(root, **options), epoch(folder, **options), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)
    files = {f"memory:///p/data/{p.name}": p.read_bytes() for p in root.glob("data/*")}
    fsspec.filesystem("memory").pipe(files)
    for address in ("memory:///p", "memory:///p/data/{train-00000,train-00001,val}*.parquet"):
        remote = splits_of(address)
        assert remote.train.digest(NAMES) == found.train.digest(NAMES)
        assert list(remote.train.items) == list(found.train.items)
    copied = pickle.loads(pickle.dumps(found.train.items))  # as spawned workers get it
    assert copied[5] == found.train.items[5] and copied[5].name == found.train.items[5].name
    whole = Splitting(val_fraction=0, test_fraction=0)
    for part in (root / "data", root / "data" / "*.parquet", root / "data" / "train-*.parquet"):
        assert splits_of(part, cut=whole).train.digest(NAMES) == found.train.digest(NAMES)


def test_in_blocks_a_process_reads_each_row_group_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, reads = stored(folder, tmp_path / "stored"), []
    opened = parquet.open_parquet
    monkeypatch.setattr(parquet, "open_parquet", lambda *a: reads.append(a) or opened(*a))
    monkeypatch.setattr(parquet, "MAX_KEPT", 8_000)  # some of the eight row groups
    data = image_data(root=str(root), image_size=8, batch_size=3, cache="none", num_workers=0)
    counts = {}
    for shuffle in ("images", "blocks"):
        data.shuffle = shuffle
        loader = data.train_dataloader()
        reads.clear()
        assert sorted(int(i) for batch in loader for i in batch[2]) == list(range(24))
        counts[shuffle] = len(reads)
    order = Blocks(data.splits.train)
    blocks, most = order.blocks, order.mixed
    assert 1 < most < 8 and blocks.tolist() == [row // 3 for row in range(24)]
    assert counts["blocks"] == 8 < counts["images"]


def test_classes_are_those_listed_or_those_in_the_column(folder: Path, tmp_path: Path) -> None:
    contents = [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))[:4]]
    file = tmp_path / "train.parquet"
    for labels, names, classes, numbers in (
        ([2, 0, 2, 0], NAMES, NAMES, [2, 0, 2, 0]),
        ([0, 1, 1, 0], ["crane", "crane"], ["crane (0)", "crane (1)"], [0, 1, 1, 0]),
        (["b", "a", "b", "a"], None, ["a", "b"], [1, 0, 1, 0]),
        ([7, 10, 7, 10], None, ["7", "10"], [0, 1, 0, 1]),
    ):
        arrow.write_table(table(contents, labels, names), file)
        found = splits_of(file, cut=Splitting(val_fraction=0, test_fraction=0))
        assert found.classes == classes and found.train.labels.tolist() == numbers
        model = ModelClasses(names=classes[::-1], multilabel=False)
        held = splits_of(file, model=model).test
        assert held is not None
        assert held.labels.tolist() == [len(classes) - 1 - n for n in numbers]
    more = file.with_name("train-1.parquet")
    arrow.write_table(table(contents, [0, 1, 2, 0], NAMES[::-1]), more)
    arrow.write_table(table(contents, [0, 1, 2, 0]), file.with_name("train-0.parquet"))
    with pytest.raises(UserError, match="other classes than"):
        splits_of(tmp_path / "train-*.parquet")
    more.unlink()
    several = table(contents, [[0], [0, 2], [], [1]])
    arrow.write_table(several, file)
    found = splits_of(file, cut=Splitting(val_fraction=0, test_fraction=0))
    assert found.multilabel and found.train.labels.sum(0).tolist() == [2, 1, 1]


@pytest.mark.parametrize("kind", ["binary", "large_binary"])
@pytest.mark.parametrize("fields", [["bytes"], ["path", "bytes"], []])
def test_pictures_are_bytes_wherever_they_stand(
    kind: str, fields: list[str], folder: Path, tmp_path: Path
) -> None:
    contents = [path.read_bytes() for path in sorted((folder / "train").rglob("*.jpg"))]
    column = pyarrow.array(contents, getattr(pyarrow, kind)())
    if fields:
        names = pyarrow.array(["a"] * len(contents))
        parts = [column if name == "bytes" else names for name in fields]
        column = pyarrow.StructArray.from_arrays(parts, fields)
    labels = [str(at % 2) for at in range(len(contents))]
    file = tmp_path / "train.parquet"
    arrow.write_table(pyarrow.table({"label": labels, "photo": column}), file, row_group_size=5)
    found = splits_of(file, cut=Splitting(val_fraction=0, test_fraction=0))
    assert [bytes(item) for item in found.train.items] == contents


def test_another_file_at_the_same_address_is_copied_again(folder: Path) -> None:
    paths, whole = sorted(folder.rglob("*.jpg")), Splitting(val_fraction=0, test_fraction=0)
    for chosen in (paths[:6], paths[6:14]):
        contents = [path.read_bytes() for path in chosen]
        arrow.write_table(table(contents, [0, 1] * (len(chosen) // 2)), stream := io.BytesIO())
        fsspec.filesystem("memory").pipe("/again/train.parquet", stream.getvalue())
        for _ in range(2):
            found = splits_of("memory:///again/train.parquet", cut=whole).train
            assert [bytes(item) for item in found.items] == contents


def test_a_split_with_hidden_labels_is_left_out(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = stored(folder, tmp_path / "stored")
    hidden = table([path.read_bytes() for path in sorted(folder.rglob("*.jpg"))[:3]], [-1] * 3)
    arrow.write_table(hidden, root / "data" / "test-00000-of-00001.parquet")
    assert splits_of(root).test is None
    assert f"{root}: test left out: its labels are hidden (-1)" in capsys.readouterr().err


def test_what_cannot_be_read_is_named(folder: Path, tmp_path: Path) -> None:
    root = stored(folder, tmp_path / "stored")
    first = root / "data" / "train-00000-of-00002.parquet"
    whole, content = first.read_bytes(), table([b"x", None], [0, 5])
    arrow.write_table(content, first)
    with pytest.raises(UserError, match=r"train\[1\] has the label 5"):
        splits_of(root)
    arrow.write_table(table([b"x", None], [0, 1]), first)
    images = splits_of(root).train
    with pytest.raises(ImageError, match=r"00002.parquet/1 .*image.bytes"):
        images.items[1]
    data = ImageData(root=str(root), image_size=8)  # whose images of one size stay in memory
    with pytest.raises(ImageError, match=r"00002.parquet/0: "):
        data._image_dataset("train", training=False)[0]
    first.write_bytes(whole)
    images = splits_of(root).train
    first.write_bytes(bytes(len(whole) - 3000) + whole[-3000:])
    with pytest.raises(ImageError, match=r"train-00000-of-00002.parquet"):
        images.items[3]  # the first row group has been read
    first.write_bytes(whole[:-50])
    with pytest.raises(UserError, match=r"train-00000-of-00002.parquet .*Pa"):
        splits_of(root)
    first.write_bytes(whole)
    arrow.write_table(
        content.drop_columns(["image"]), root / "data" / "train-00001-of-00002.parquet"
    )
    with pytest.raises(UserError, match=r"train-00001-of-00002.parquet .*image.b"):
        splits_of(root)


@pytest.mark.parametrize("option", ["path", "group"])
def test_columns_of_lists_are_refused_beside_pictures(
    option: str, folder: Path, tmp_path: Path
) -> None:
    columns = Columns(**{option: "other"})
    with pytest.raises(UserError, match=rf"leave out data\.columns\.{option}='other'"):
        splits_of(stored(folder, tmp_path / "data"), columns=columns)


@pytest.mark.parametrize("name", ["Split", "Part", "parent"])
def test_a_column_that_divides_the_pictures_otherwise_is_refused(
    name: str, folder: Path, tmp_path: Path
) -> None:
    root = stored(folder, tmp_path / "data")
    before = splits_of(root)
    for file in sorted(root.rglob("*.parquet")):
        content = arrow.read_table(file)
        word = "validation" if file.name.startswith("validation") else "train"
        arrow.write_table(content.append_column(name, [[word] * len(content)]), file)
    if name == "parent":
        assert splits_of(root).classes == before.classes
        with pytest.raises(UserError, match="with a column 'parent'; write animal/cat"):
            splits_of(root, tree=True)
        return
    columns = Columns(split=name.lower())
    same = splits_of(root, columns=columns).present()
    assert {split: len(images) for split, images in same.items()} == {
        split: len(images) for split, images in before.present().items()
    }
    content = arrow.read_table(file).drop_columns([name])
    words = ["test"] + ["validation"] * (len(content) - 1)
    arrow.write_table(content.append_column(name, [words]), file)
    with pytest.raises(
        UserError, match=f"val has test, validation in column '{name.lower()}'; write a"
    ):
        splits_of(root, columns=columns)
    assert splits_of(root, columns=Columns(split="none")).classes == before.classes


def test_lists_of_paths_stay_lists(folder: Path) -> None:
    lists = {"path": ["train/cat/0.jpg", "train/dog/0.jpg"] * 1, "label": ["a", "b"]}
    stream = io.BytesIO()
    arrow.write_table(pyarrow.table(lists), stream)
    (folder / "list.parquet").write_bytes(stream.getvalue())
    cut = Splitting(val_fraction=0, test_fraction=0)
    assert splits_of(folder / "list.parquet", cut=cut).classes == ["a", "b"]
    assert splits_of(folder).classes == NAMES, "nor does one hide the folders beside it"
    with pytest.raises(UserError, match=r"list.parquet .*path, lab"):
        splits_of(f"{folder}/*.parquet")
