"""Digests of images, wherever they lie."""

from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from vit.data.cut import held_out
from vit.data.find import find_splits
from vit.data.settings import Reading, Splitting
from vit.data.sources import ImageSet, PathList
from vit.data.trained_on import Known, TrainedOn, digests
from vit.errors import UserError
from vit.extensions.sources.own import OwnImages
from vit.extensions.sources.pack import pack

WHOLE = Reading(cut=Splitting(val_fraction=0, test_fraction=0))


def files(root: Path, sizes: list[int]) -> ImageSet:
    """Files of random bytes."""
    root.mkdir()
    for number, size in enumerate(sizes):
        (root / f"{number}.jpg").write_bytes(np.random.default_rng(number).bytes(size))
    names = PathList(f"{number}.jpg" for number in range(len(sizes)))
    items = names.select(slice(None), root=str(root))
    return ImageSet(items, np.zeros(len(sizes), dtype=np.int64), names)


def by_hand(content: bytes) -> int:
    size = len(content)
    if size > 12_288:
        middle = size // 2 - 2_048
        content = content[:4_096] + content[middle : middle + 4_096] + content[-4_096:]
    number = blake2b(b"%d\0" % size + content, digest_size=8).digest()
    return int.from_bytes(number, "little") // 2 * 2


def test_a_digest_is_of_the_size_and_of_three_pieces(tmp_path: Path) -> None:
    images = files(tmp_path / "a", [0, 1, 12_288, 12_290, 100_000])
    expected = sorted(by_hand(Path(path).read_bytes()) for path in images.items)
    found = digests([images])
    assert found is not None and found.tolist() == expected
    gone = Path(images.items[4])
    gone.unlink()
    assert len(digests([images])) == 4  # an image that cannot be read is none
    assert not Known(found, "w").mask(images)[4]


def test_files_shards_and_parquet_cells_have_equal_digests(make_tree: Any, tmp_path: Path) -> None:
    folder = make_tree(tmp_path / "photos", {"cat": 5, "dog": 5})
    (tmp_path / "packed").mkdir()
    pack(str(folder), tmp_path / "packed")
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    paths = sorted(Path(folder).rglob("*.jpg"))
    rows = {"image": [path.read_bytes() for path in paths], "label": [p.parent.name for p in paths]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "train.parquet")
    sources = [folder, tmp_path / "packed", tmp_path / "train.parquet"]
    sets = [find_splits(None, str(root), WHOLE).train for root in sources]
    first, *others = [digests([images]) for images in sets]
    assert first is not None and not (first & np.uint64(1)).any()
    for other in others:
        assert np.array_equal(first, other)


def test_many_images_and_those_of_named_sets_are_known_by_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = files(tmp_path / "a", [10, 20, 30])
    monkeypatch.setattr("vit.data.trained_on.MOST", 2)
    many = digests([images])
    assert many is not None and (many & np.uint64(1)).all()
    below = ImageSet(images.items, images.labels, PathList(f"train/{n}" for n in images.names))
    assert Known(many, "w").mask(below).all()
    Path(images.items[1]).write_bytes(b"another size")
    assert Known(many, "w").mask(below).tolist() == [True, False, True]
    digits = find_splits("digits", None, WHOLE)
    known = Known(digests([digits.train]), "w")
    assert known.mask(digits.train).all() and not known.mask(digits.test).any()


def test_a_dataset_is_not_recorded() -> None:
    pixels = [(np.full((8, 8, 3), at, dtype=np.uint8), at % 2) for at in range(10)]
    images = OwnImages(pixels).splits(WHOLE).train
    assert digests([images]) is None
    assert not Known(np.array([2], np.uint64), "w").mask(images).any()


def test_a_record_is_read_as_it_was_written_or_is_refused_in_a_line(tmp_path: Path) -> None:
    numbers = np.array([3, 2**64 - 1, 3], dtype=np.uint64)
    record = TrainedOn(numbers[:1], numbers[1:])
    record.write(tmp_path / "trained_on")
    read = TrainedOn.read(tmp_path / "trained_on")
    assert read.all.tolist() == read.here.tolist() == [3, 2**64 - 1]
    assert read.before.tolist() == [3]
    wrong: list[Any] = [{"before": numbers.astype("i4")}, {"else": numbers}]
    wrong.append({"here": numbers[:, None]})
    for tensors in wrong:
        save_file(tensors, tmp_path / "trained_on")
        with pytest.raises(UserError, match="trained_on lists no images"):
            TrainedOn.read(tmp_path / "trained_on")


def test_only_eligible_images_are_held_out_in_the_order_of_the_usual_cut() -> None:
    keys, shares = [str(n) for n in range(100)], {"val_fraction": 0.1, "test_fraction": 0.1}
    train, val, test = held_out(keys, ["a"] * 100, seed=0, **shares)
    eligible = np.ones(100, dtype=bool)
    eligible[train] = False
    again = held_out(keys, ["a"] * 100, seed=0, eligible=eligible, **shares)
    assert [part.tolist() for part in again] == [p.tolist() for p in (train, val, test)]
    eligible[test[:4]] = False
    parts = held_out(keys, ["a"] * 100, seed=0, eligible=eligible, **shares)
    assert [len(part) for part in parts] == [84, 8, 8]  # 16 of the 20 that both ask for
    assert eligible[parts[1]].all() and eligible[parts[2]].all()
