"""Images as Python objects: the sets of the same files, and one line for each mistake."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
)
from torchvision.datasets import FakeData, ImageFolder

from tests.command import coloured
from vit import ImageData
from vit.data.decode import ImageError
from vit.data.settings import Columns, Loading, Splitting
from vit.errors import UserError
from vit.extensions.sources import opened

DARK = np.zeros((9, 8, 3), np.uint8)
SMALL: dict[str, Any] = {"image_size": 8, "batch_size": 4, "loading": Loading(num_workers=0)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return coloured(tmp_path_factory.mktemp("own") / "photos")


class Typed(Dataset[Any]):
    """A dataset with the interface of Hugging Face's: typed columns, and mappings as items."""

    def __init__(self, kind: Any, **columns: list[Any]) -> None:
        image = type("Image", (), {})()
        self.columns = self.shown = columns
        self.format: dict[str, Any] = {}
        self.features = {name: kind if "label" in name else image for name in columns}
        self.opened: list[int] = []

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def with_format(self, kind: None) -> dict[str, list[Any]]:
        return self.columns

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.opened.append(index)
        return {name: values[index] for name, values in self.shown.items()}


class ClassLabel:
    names = ("cat", "dog", "ape")


def test_pairs_are_the_files_of_their_folder(folder: Path) -> None:
    whole = ImageData(root=str(folder), splits=Splitting(val_fraction=0, test_fraction=0)).splits
    rows = zip(whole.train.items, whole.train.labels, strict=True)
    pairs = [(path, whole.classes[label]) for path, label in rows]
    own = ImageData.of(pairs, val=folder, splits=Splitting(val_fraction=0)).splits
    assert own.classes == whole.classes and [*own.train.items] == [*whole.train.items]
    assert own.val is not None and own.val_origin == "given" and own.test is None
    assert np.array_equal(own.train.labels, whole.train.labels)
    assert np.array_equal(own.val.labels, whole.train.labels)


def test_a_path_is_cut_as_by_the_commands(folder: Path, tmp_path: Path) -> None:
    """By the same keys, and by whole groups."""
    rows = [f"{p},{p.parent.name},{i % 8}" for i, p in enumerate(sorted(folder.rglob("*.jpg")))]
    listed = tmp_path / "list.csv"
    listed.write_text("\n".join(["path,label,patient", *rows]) + "\n")
    for root, options in ((folder, {}), (listed, {"columns": Columns(group="patient")})):
        theirs = ImageData(root=str(root), **options).splits
        own = ImageData.of(root, **options).splits
        assert own.digests == theirs.digests and own.test_origin == "cut from train"
        held = ImageData.of(root, test=folder, **options).splits
        assert (held.test_origin, held.val_origin) == ("given", "cut from train")
        assert held.test is not None and len(held.test) == len(rows)
        both = ImageData.of(root, val=folder, **options).splits
        assert both.test is None and len(both.train) == len(rows)


def test_val_of_a_folder_with_splits_is_its_val(folder: Path, tmp_path: Path) -> None:
    for split, count in (("train", 3), ("val", 2), ("test", 1)):
        for kind in sorted(path for path in folder.iterdir() if path.is_dir()):
            (place := tmp_path / split / kind.name).mkdir(parents=True)
            for path in sorted(kind.iterdir())[:count]:
                (place / path.name).symlink_to(path)
    splits = ImageData.of(folder, val=tmp_path, test=tmp_path).splits
    assert splits.val is not None and splits.test is not None
    assert len(splits.val) == 2 * len(splits.classes) == 2 * len(splits.test)


def test_a_subset_of_torchvisions_is_labelled_by_its_list_after_a_look_at_some_images(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened, "DRAWN", 2)
    dataset = ImageFolder(str(folder))
    places = [35, 0, 13, 1, 14, 34]
    read, load = [], dataset.loader
    dataset.loader = lambda path: read.append(path) or load(path)
    whole = Splitting(val_fraction=0, test_fraction=0)
    data = ImageData.of(Subset(dataset, places), splits=whole, **SMALL)
    labels = data.splits.train.labels
    assert data.classes == dataset.classes and labels.tolist() == [2, 0, 1, 0, 1, 2]
    assert len(read) == 3 and read[0] == dataset.samples[35][0]
    image, label, index = data.evaluation_loader("train").dataset[1]  # pyright: ignore
    want = data.preprocess(Image.open(dataset.samples[0][0]))
    assert torch.equal(image, want) and (label, index) == (0, 1)


def test_labels_that_a_dataset_does_not_list_are_read_in_an_announced_pass(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ImageData.of(FakeData(40, (3, 9, 9), 3), val=[(DARK, 1)], **SMALL)
    assert data.classes == ["0", "1", "2"] and data.splits.test is None
    assert capsys.readouterr().err.count("read in a pass over all images") == 1


def counts(data: ImageData) -> dict[str, int]:
    return dict(zip(data.classes, data.counts, strict=True))


WHOLE = {**SMALL, "splits": Splitting(val_fraction=0, test_fraction=0)}


def test_a_target_transform_is_applied_to_the_list(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """12 images of each of blue, grün and red."""
    plain = ImageFolder(str(folder))
    joined = ImageFolder(str(folder), target_transform=lambda number: int(number >= 1))
    assert counts(ImageData.of(joined, **WHOLE)) == {"0": 12, "1": 24}
    err = capsys.readouterr().err
    assert "in a pass" not in err and "`classes` names none: the labels are the names" in err
    assert counts(ImageData.of(Subset(joined, range(6, 36)), **WHOLE)) == {"0": 6, "1": 24}
    same = ImageFolder(str(folder), target_transform=int)
    assert counts(ImageData.of(same, **WHOLE)) == {"blue": 12, "grün": 12, "red": 12}
    both = ConcatDataset([plain, Subset(plain, range(6))])
    assert counts(ImageData.of(both, **WHOLE)) == {"blue": 18, "grün": 12, "red": 12}
    assert "read in a pass" not in capsys.readouterr().err
    others = ImageFolder(str(folder))
    others.classes = others.classes[::-1]
    with pytest.raises(UserError, match="the parts of train name different classes"):
        _ = ImageData.of(ConcatDataset([plain, others]), **WHOLE).splits
    with pytest.raises(UserError, match=r"lacks: '0', '1'"):
        _ = ImageData.of(plain, val=joined, **WHOLE).splits


class Changed(ImageFolder):
    """Its items have the labels of a function of their place and listed label."""

    def __init__(self, folder: Path, change: Callable[[int, int], Any]) -> None:
        super().__init__(str(folder))
        self.change = change

    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return image, self.change(index, label)


@pytest.mark.parametrize(
    ("corrected", "expected"),
    [(range(12), {"1": 12, "2": 24}), ([35], {"0": 13, "1": 12, "2": 11})],
)
def test_labels_of_items_win_over_a_list_that_differs(
    folder: Path, corrected: Any, expected: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    changed = Changed(folder, lambda place, label: 2 - label if place in corrected else label)
    assert counts(ImageData.of(changed, **WHOLE)) == expected
    assert "(its items have others than it lists)" in capsys.readouterr().err


def test_global_generators_are_left_alone(folder: Path) -> None:
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # pyright: ignore
    _ = ImageData.of(ImageFolder(str(folder)), **WHOLE).splits
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # pyright: ignore
    assert before == after


@pytest.mark.parametrize("on_error", ["error", "skip"])
def test_an_item_with_another_label_than_before_is_unreadable(folder: Path, on_error: Any) -> None:
    now = []
    dataset = Changed(folder, lambda place, label: 1 if now and place == 30 else label)
    options = {**WHOLE, "loading": Loading(num_workers=0, on_error=on_error)}
    data = ImageData.of(dataset, **options)
    assert data.counts == [12, 12, 12]
    now.append(True)
    if on_error == "error":
        with pytest.raises(ImageError, match=r"^train\[30\] has the label 1, not 2"):
            _ = [*data.evaluation_loader("train")]
    else:
        assert sum(len(batch[1]) for batch in data.evaluation_loader("train")) == 35


def test_a_transform_of_whole_items_is_read_in_a_pass(capsys: pytest.CaptureFixture[str]) -> None:
    """As Hugging Face's with_transform, which its list of labels does not show."""
    train = Typed(ClassLabel(), image=[Image.fromarray(DARK)] * 9, label=[0, 1, 2] * 3)
    assert counts(ImageData.of(train, **WHOLE)) == {"cat": 3, "dog": 3, "ape": 3}
    assert "in a pass" not in capsys.readouterr().err
    train.format = {"type": "custom"}
    assert counts(ImageData.of(train, **WHOLE)) == {"cat": 3, "dog": 3, "ape": 3}
    assert "in a pass" in capsys.readouterr().err
    train.shown = {**train.columns, "label": [5, 7, 7] * 3}
    assert counts(ImageData.of(train, **WHOLE)) == {"5": 3, "7": 6}


def test_a_mapping_names_splits_as_a_column_does_and_each_once() -> None:
    pairs = [(DARK, 0), (DARK, 1)]
    splits = ImageData.of({"training": pairs, "dev": pairs, "testing": pairs}, **SMALL).splits
    assert {name: len(images) for name, images in splits.present().items()} == {
        "train": 2, "val": 2, "test": 2
    }  # fmt: skip
    with pytest.raises(UserError, match="dev, train, validation"):
        _ = ImageData.of({"train": pairs, "dev": pairs, "validation": pairs}, **SMALL).splits


def test_columns_of_hugging_face_are_found_by_type_and_name() -> None:
    images = [Image.fromarray(DARK)] * 9
    train = Typed(ClassLabel(), photo=images, fine_label=[0, 2, 1] * 3)
    test = Typed(ClassLabel(), image=images[:2], label=[2, 0])
    test.features["label"] = SimpleNamespace(names=["ape", "dog", "cat"])  # in another order
    data = ImageData.of({"train": train, "test": test, "spare": train}, **SMALL)
    assert data.classes == ["cat", "dog", "ape"] and data.splits.train.labels[:2].tolist() == [0, 2]
    assert data.image_set("test").labels.tolist() == [0, 2]
    assert train.opened[0] == 0 and sorted(train.opened[1:]) == [*range(9)]
    assert data.splits.notes[0] == "left out, as neither train, val nor test: 'spare'"
    several = Typed(SimpleNamespace(feature=ClassLabel()), image=images[:4], label=[[0, 1], []] * 2)
    assert ImageData.of(several, **SMALL).splits.train.labels.tolist() == [[1, 1, 0], [0, 0, 0]]


@pytest.mark.parametrize("change", [np.asarray, torch.from_numpy, lambda a: a[..., 0]])
@pytest.mark.parametrize("planes", [False, True])
def test_arrays_and_tensors_are_the_pictures_that_they_hold(change: Any, planes: bool) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 8, 3), np.uint8)
    given = change(pixels)
    if planes and given.ndim == 3:
        given = torch.as_tensor(given).permute(2, 0, 1)
    data = ImageData.of([(given, 0), (given, 1)], splits=Splitting(val_fraction=0, test_fraction=0))
    shown = np.asarray(data.open_image("train", 1))
    assert np.array_equal(shown, pixels if given.ndim == 3 else pixels[..., :1].repeat(3, 2))


class Broken(Dataset[Any]):
    targets = (0, 1, 0, 1)

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        if index == 2:
            raise self.error
        return DARK, index % 2


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_of_a_dataset_name_the_image(workers: int) -> None:
    whole = {**SMALL, "splits": Splitting(val_fraction=0, test_fraction=0)}
    whole["loading"] = Loading(num_workers=workers)
    with pytest.raises(ImageError, match=r"^train\[2\] .*: no such page"):
        _ = [*ImageData.of(Broken(OSError("no such page")), **whole).evaluation_loader("train")]
    with pytest.raises(KeyError, match="mine") as caught:
        _ = [*ImageData.of(Broken(KeyError("mine")), **whole).evaluation_loader("train")]
    assert workers or caught.value.__notes__ == ["This is train[2]."]
    whole["loading"] = Loading(num_workers=workers, on_error="skip")
    data = ImageData.of(Broken(OSError("no such page")), **whole)
    assert sum(len(batch[1]) for batch in data.evaluation_loader("train")) == 3


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ([], "train has no images"),
        (3, r"train is of type int; give a folder, a list of \(path, label\), or a map-style"),
        (Stream(), "train is of type Stream"),
        (DataLoader(FakeData(2)), "train is of type DataLoader"),
        ({"test": [(DARK, 0)]}, "data has 'test', but no train"),
        ("nowhere", "nowhere does not exist"),
        (["a.jpg"], r"train\[0\] is 'a.jpg'; give \(path, label\)"),
        ([("a.jpg", 0), ("a.jpg", 1)], r"train\[1\] lists a.jpg again; list it with all its"),
        ([("a.jpg", None)], r"train\[0\] has the label None; a label is text, a whole number"),
        ([("a.jpg", float("nan"))], r"train\[0\] has the label nan"),
        (
            [("gone.jpg", 0), ("b.jpg", 1)],
            r"train\[0\] names 'gone.jpg', .* no file .*2 are",
        ),
        ([(DARK, "cat")] * 2, "train has one class only, 'cat'"),
        ([(DARK, [0, 1, 0])], r"train\[0\] has a label twice in .* not a row of zeros and ones"),
        ([(DARK.astype("float32"), 0)], "is float32; give PIL images or uint8, and leave ToTensor"),
        (TensorDataset(torch.rand(2, 3, 4, 4), torch.arange(2)), "is float32; give PIL"),
        (DARK, r"train\[0\] is a ndarray, and not \(image, label\)"),
        ([{"pixels": DARK, "label": 0}], "the columns 'pixels', 'label'; name one 'image'"),
        (Typed(ClassLabel(), image=[DARK], label=[-1]), r"the label -1; .* a number below 3"),
    ],
)
def test_a_mistake_is_one_line(train: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        _ = ImageData.of(train).splits


def test_images_without_labels_need_none(folder: Path) -> None:
    for train in ([*folder.rglob("*.jpg")], [DARK] * 36, FakeData(36, (3, 9, 9))):
        data = ImageData.of(train, test=folder, **SMALL).read_as(labelled=False)
        assert data.summary().startswith("72 images without labels: train 32, val 4, test 36")
        assert len(next(iter(data.train_dataloader()))[0]) == 4 and data.classes == []


def test_held_out_images_have_the_classes_and_the_kind_of_labels_of_train() -> None:
    train = [(DARK, "cat"), (DARK, "dog")]
    with pytest.raises(UserError, match=r"lacks: 'cow'"):
        _ = ImageData.of(train, val=[(DARK, "cow")]).splits
    with pytest.raises(UserError, match="val has lists of labels"):
        _ = ImageData.of(train, val=[(DARK, ["cat", "dog"])]).splits
