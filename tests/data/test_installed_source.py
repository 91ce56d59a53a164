"""An installed package that adds a source by one class, read by a fit's loaders in two workers."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from vit import tables
from vit.data.find import find_splits
from vit.data.module import ImageData
from vit.data.settings import InputFormat, Loading, ModelClasses, Reading, Splitting
from vit.errors import UserError

PACKAGE = '''
from functools import partial
from pathlib import Path

import numpy as np

from vit.data.items import Opened
from vit.data.labelling import Labelled, make_splits
from vit.data.roots import Source
from vit.data.sources import PathList, by_split


class Arrays(Opened):
    def __init__(self, images):
        self.images, self.places = images, np.arange(len(images))

    def __getitem__(self, index):
        return self.images[self.places[index]]


class NpzFolder(Source):
    """A folder of files such as train.npz, with `images` and their `labels`."""

    def takes(self, root):
        return isinstance(root, str) and any(Path(root).expanduser().glob("*.npz"))

    def splits(self, root, reading):
        files = {path.stem: path for path in Path(root).expanduser().glob("*.npz")}
        words = by_split(root, sorted(files))
        readers = {split: partial(self.part, files[word]) for split, word in words.items()}
        return make_splits(root, readers, reading)

    def part(self, file):
        content = np.load(file)
        labels = content["labels"].tolist()
        names = PathList(f"{file.stem}/{place}" for place in range(len(labels)))
        classes, entries = np.unique(labels, return_inverse=True)
        images, each = Arrays(content["images"]), [(label,) for label in classes.tolist()]
        return Labelled(str(file), images, names, each, entries, in_class_order=True)
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of .npz files, and a package that reads it."""
    site = tmp_path / "site"
    (site / "vit_npz-1.0.dist-info").mkdir(parents=True)
    (site / "vit_npz.py").write_text(PACKAGE)
    (site / "vit_npz-1.0.dist-info" / "METADATA").write_text("Name: vit_npz\nVersion: 1.0\n")
    row = f"[{tables.GROUP}]\nsources.npz = vit_npz:NpzFolder\n"
    (site / "vit_npz-1.0.dist-info" / "entry_points.txt").write_text(row)
    monkeypatch.syspath_prepend(site)
    tables.installed.cache_clear()
    (tmp_path / "arrays").mkdir()
    for word, count in (("train", 12), ("test", 4)):
        images = np.arange(count * 48, dtype=np.uint8).reshape(count, 4, 4, 3)
        labels = np.array(["dog", "cat"] * (count // 2))
        np.savez(tmp_path / "arrays" / f"{word}.npz", images=images, labels=labels)
    yield tmp_path / "arrays"
    tables.installed.cache_clear()
    sys.modules.pop("vit_npz", None)


def test_its_folder_is_cut_labelled_and_scored(folder: Path) -> None:
    splits = find_splits(None, str(folder), Reading(Splitting(val_fraction=0.2)))
    sizes = {name: len(images) for name, images in splits.present().items()}
    assert splits.classes == ["cat", "dog"] and sizes == {"train": 10, "val": 2, "test": 4}
    assert [*splits.present()["test"].names] == ["test/1", "test/3", "test/0", "test/2"]
    model = ModelClasses(names=["dog", "cat", "fox"])
    scored = find_splits(None, str(folder), Reading(model=model)).present()["test"]
    assert scored.labels.tolist() == [0, 0, 1, 1] and len(scored) == 4
    with pytest.raises(UserError, match="classes that the model lacks: 'dog'"):
        find_splits(None, str(folder), Reading(model=ModelClasses(names=["cat"])))


def test_worker_processes_read_it(folder: Path) -> None:
    whole, loading = InputFormat(crop_fraction=1.0), Loading(num_workers=2)
    data = ImageData(root=str(folder), image_size=4, batch_size=4, inputs=whole, loading=loading)
    [[images, labels, _]] = data.test_dataloader()
    expected = np.load(folder / "test.npz")["images"][[1, 3, 0, 2]].transpose(0, 3, 1, 2)
    assert (images.numpy() == expected).all() and labels.tolist() == [0, 0, 1, 1]
