"""A look at the beginnings of files: what is found, and how far it goes."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vit.data import beginnings
from vit.data.beginnings import check_beginnings
from vit.data.decode import ImageError
from vit.data.module import ImageData
from vit.data.settings import Loading
from vit.data.sources import ImageSet, PathList, Splits
from vit.errors import UserError


def files(folder: Path, count: int, broken: dict[int, bytes]) -> ImageSet:
    folder.mkdir()
    for number in range(count):
        Image.new("RGB", (9, 8), (number % 256, 0, 0)).save(folder / f"{number:04}.png")
    for number, content in broken.items():
        (folder / f"{number:04}.png").write_bytes(content)
    names = [f"{number:04}.png" for number in range(count)]
    return ImageSet(PathList(names, str(folder)), np.zeros(count, np.int64), PathList(names))


def test_five_broken_files_of_all_splits_are_named_with_the_way_on(tmp_path: Path) -> None:
    train = files(tmp_path / "train", 12, dict.fromkeys(range(0, 12, 2), b""))
    test = files(tmp_path / "test", 4, {3: b"<html>", 0: b"\xff\xd8\xff"})
    with pytest.raises(UserError) as error:
        check_beginnings(Splits(["a"], train, test=test), None, "type this")
    message = str(error.value)
    assert "train/0000.png: the file is empty" in message and "0008.png" in message
    assert message.endswith(" and 3 more; type this")
    check_beginnings(Splits(["a"], files(tmp_path / "good", 5, {})), None, "")


def test_of_many_files_some_at_equal_distances_are_opened_as_long_as_there_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = files(tmp_path / "many", 40, {})
    opened: list[str] = []
    monkeypatch.setattr(beginnings, "_open", lambda path, channels: opened.append(path) or 0)
    monkeypatch.setattr(beginnings, "MOST", 5)
    check_beginnings(Splits(["a"], whole), None, "")
    assert [int(Path(path).stem) for path in opened] == [0, 8, 16, 24, 32]
    times = iter([0.0, 1.0, 4.0, 5.1])  # the start, and before each file
    monkeypatch.setattr(beginnings.time, "monotonic", lambda: next(times))
    opened.clear()
    check_beginnings(Splits(["a"], whole), None, "")
    assert len(opened) == 2


def test_every_later_message_has_the_way_on(tmp_path: Path) -> None:
    for name in ("a", "b"):
        files(tmp_path / name, 12, {})
    for path in (tmp_path / "a").iterdir():  # only the end is missing
        noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
        Image.fromarray(noise).save(path)
        path.write_bytes(path.read_bytes()[:-2000])
    data = ImageData(root=str(tmp_path), image_size=8, loading=Loading(num_workers=0)).look()
    with pytest.raises(ImageError) as error:
        list(data.val_dataloader())
    words = f"; `vit data check {tmp_path} --fix LIST.csv` lists all of them, "
    assert words + "--data.loading.on_error skip leaves such images out" in str(error.value)
    assert "0" in str(error.value).partition(".png")[0]


def test_a_nan_in_test_is_found_before_training(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for name in "ab":
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(4):
                values = np.full((8, 8, 2), number, np.float32)
                values[0, 0, 0] = np.nan if (split, name, number) == ("test", "b", 2) else 0
                np.save(tmp_path / split / name / f"{number}.npy", values)
    with pytest.raises(UserError, match=r"test/b/2\.npy: it has values that are NaN"):
        ImageData(root=str(tmp_path), image_size=8, channels=2).look()
    skipped = Loading(on_error="skip")
    ImageData(root=str(tmp_path), image_size=8, channels=2, loading=skipped).look()
