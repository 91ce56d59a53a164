"""`vit data pack`: shards of a folder, read back, resumed, and read like the folder."""

import io
import json
import tarfile
from functools import partial
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.conftest import MakeTree
from tests.extensions.sources.test_parquet import epoch, folder, stored
from vit.data.module import ImageData
from vit.errors import UserError
from vit.extensions.serving.reading import range_loader
from vit.extensions.sources import pack
from vit.extensions.sources.shards import SUFFIX, listed_names, names_list

__all__ = ["folder"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of eight images or fewer, written in this process."""
    monkeypatch.setattr(pack, "MOST_IMAGES", 9)
    monkeypatch.setattr(pack, "range_loader", partial(range_loader, num_workers=0))


def packed(source: Path, to: Path, **options: Any) -> list[str]:
    """The names of the shards."""
    to.mkdir(exist_ok=True)
    return [shard.path.name for shard in pack.pack(str(source), to, **options)]


def members(folder: Path) -> dict[str, bytes]:
    """All files in the shards of a folder; each path occurs once in a split."""
    found = {}
    for shard in sorted(folder.glob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                content: Any = tar.extractfile(member)
                path = f"{shard.name.partition('-')[0]}/{member.name}"
                assert path not in found
                found[path] = content.read()
    return found


def test_a_run_from_shards_is_that_from_the_folder(folder: Path, tmp_path: Path) -> None:
    assert packed(folder, tmp_path / "shards") == [
        *("train-00000.tar", "train-00001.tar", "train-00002.tar"),
        "validation-00000.tar",
    ]
    files, shards = (ImageData(root=str(r), image_size=8) for r in (folder, tmp_path / "shards"))
    assert shards.digests == files.digests and shards.classes == files.classes
    for options in ({}, {"num_workers": 2}):
        pairs = zip(epoch(tmp_path / "shards", **options), epoch(folder, **options), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)
    numbers = {name: str(at).encode() for at, name in enumerate(files.classes)}
    expected = {}
    for path in folder.rglob("*.jpg"):
        name = path.relative_to(folder)
        expected |= {str(name): path.read_bytes()}
        expected |= {str(name.with_suffix(".cls")): numbers[path.parent.name]}
    assert members(tmp_path / "shards") == expected
    with tarfile.open(tmp_path / "shards" / "train-00000.tar") as tar:
        assert len({Path(name).parts[0] for name in tar.getnames()}) == 3, "classes are mixed"


def test_a_folder_without_splits_is_cut_as_before(tmp_path: Path, make_tree: MakeTree) -> None:
    source = make_tree(tmp_path / "photos", {"cat": 12, "dog/small": 11})
    assert packed(source, tmp_path / "shards")[0] == "images-00000.tar"
    files, shards = (ImageData(root=str(r), image_size=8) for r in (source, tmp_path / "shards"))
    assert shards.digests == files.digests and set(files.digests) == {"train", "val", "test"}


def test_a_tree_of_folders_stays_one(tmp_path: Path, make_tree: MakeTree) -> None:
    # The third is stored as by macOS, é in two characters.
    counts = {"animal/bird": 9, "animal/cat/wild": 7, "été/épave": 6}
    source = make_tree(tmp_path / "photos", {normalize("NFD", n): c for n, c in counts.items()})
    packed(source, tmp_path / "shards")
    roots = [str(source), str(tmp_path / "shards")]
    files, shards = (ImageData(root=root, image_size=8) for root in roots)
    assert shards.classes == files.classes == ["animal", "été"]
    assert shards.digests == files.digests, "with the classes of the first level, too"
    files, shards = (ImageData(root=root, image_size=8, labels="tree") for root in roots)
    assert shards.classes == files.classes == [*counts]
    assert shards.digests == files.digests and set(files.digests) == {"train", "val", "test"}
    rows = [f"{p},{normalize('NFC', p.parent.name)}" for p in source.rglob("*.jpg")]
    text = "\n".join(["path,label", *rows]).replace(",wild", ",a/cat")
    (tmp_path / "list.csv").write_text(text)
    packed(tmp_path / "list.csv", tmp_path / "listed")
    data = ImageData(root=str(tmp_path / "listed"), image_size=8, labels="tree")
    assert data.classes == ["a/cat", "bird", "épave"], "the labels of a list are no folders"


@pytest.mark.parametrize("kind", ["parquet", "csv", "shards"])
def test_other_sources_give_the_same_pictures(folder: Path, tmp_path: Path, kind: str) -> None:
    source = tmp_path / "list.csv"
    if kind == "parquet":
        source = stored(folder, tmp_path / "stored")
    elif kind == "shards":
        packed(folder, source := tmp_path / "before")
    else:
        paths = sorted(folder.rglob("*.jpg"))
        rows = [f"{p},{p.parent.name},{p.relative_to(folder).parts[0]}" for p in paths]
        source.write_text("\n".join(["path,label,split", *rows]))
    packed(source, tmp_path / "shards")
    data = [ImageData(root=str(r), image_size=8) for r in (folder, tmp_path / "shards")]
    for split in ("train", "val"):
        sets: Any = [each.splits.get(split) for each in data]  # pyright: ignore
        images = [sorted(zip(map(pixels, s.items), s.labels.tolist(), strict=True)) for s in sets]
        assert images[0] == images[1] and len(images[0]) == len(sets[0])


def pixels(item: Any) -> bytes:
    with Image.open(io.BytesIO(item) if isinstance(item, bytes) else item) as image:
        return image.tobytes()


def test_an_interrupted_pack_goes_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed(folder, tmp_path / "whole")
    shards, write, left = tmp_path / "shards", pack._write, [2]

    def interrupted(images: Any, path: Path, resize: None) -> list[int]:
        left[0] -= 1
        written = write(images, path, resize)
        if left[0] < 0:
            raise KeyboardInterrupt
        return written

    monkeypatch.setattr(pack, "_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        packed(folder, shards)
    (shards / "train-00001.tar").with_name(f"train-00001.tar{SUFFIX}").unlink()
    kept = (shards / "train-00000.tar").stat()
    left[0] = 99
    packed(folder, shards)
    assert left[0] == 99 - 3 and (shards / "train-00000.tar").stat() == kept
    names = {path.name for path in shards.iterdir()}
    assert names == {path.name for path in (tmp_path / "whole").iterdir()}
    for name in names - {f"{name}{SUFFIX}" for name in names}:
        assert (shards / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_what_is_read_back_otherwise_is_not_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = pack._write

    def rotting(images: Any, path: Path, resize: None) -> list[int]:
        written = write(images, path, resize)
        content = bytearray(path.read_bytes())
        content[700] ^= 1
        path.write_bytes(content)
        return written

    monkeypatch.setattr(pack, "_write", rotting)
    with pytest.raises(UserError, match=r"train-00000.tar is read back otherwise"):
        packed(folder, tmp_path / "shards")
    assert {path.name for path in (tmp_path / "shards").iterdir()} == {"pack.json"}


def test_numbers_are_read_by_the_list_beside_them_and_by_one_list(
    tmp_path: Path, make_tree: MakeTree
) -> None:
    first = make_tree(tmp_path / "first", {"ant": 9, "bee": 9, "cat": 9})
    second = make_tree(tmp_path / "second", {"bee": 9, "cat": 9})
    (tmp_path / "packs").mkdir()
    packed(first, tmp_path / "packs" / "train")
    assert ImageData(root=str(tmp_path / "packs"), image_size=8).classes == ["ant", "bee", "cat"]
    packed(second, tmp_path / "packs" / "val")
    with pytest.raises(UserError, match=r"shards with different names in classes\.txt"):
        _ = ImageData(root=str(tmp_path / "packs"), image_size=8).splits


def test_a_pack_that_was_interrupted_is_not_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its test images may be missing, and others would be cut from train."""

    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pack, "range_loader", stopped)
    with pytest.raises(KeyboardInterrupt):
        packed(folder, tmp_path / "shards")
    monkeypatch.undo()
    packed(folder, tmp_path / "whole")
    shard = next((tmp_path / "whole").glob("train-*.tar"))
    (tmp_path / "shards" / shard.name).write_bytes(shard.read_bytes())
    with pytest.raises(UserError, match="is not packed to its end"):
        _ = ImageData(root=str(tmp_path / "shards"), image_size=8).splits
    packed(folder, tmp_path / "shards")
    assert ImageData(root=str(tmp_path / "shards"), image_size=8).digests


def test_what_is_left_out_is_said(
    tmp_path: Path, make_tree: MakeTree, capsys: pytest.CaptureFixture[str]
) -> None:
    source = make_tree(tmp_path / "photos", {"cat": 12, "dog": 11})
    (source / "cat" / "raw.cr2").write_bytes(b"1")
    packed(source, tmp_path / "shards")
    assert "left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    [" bee", "bee ", "\xa0bee", "\ufeffbee", *(f"be{line}e" for line in "\n\r\v\x1c\x85\u2028")],
)
def test_names_that_a_line_would_change_are_refused(tmp_path: Path, name: str) -> None:
    for each in ("ant", name):
        (tmp_path / "photos" / each).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "photos" / each / f"{len(each)}.png")
    with pytest.raises(UserError, match=r"classes.txt"):
        packed(tmp_path / "photos", tmp_path / "shards")
    assert not any((tmp_path / "shards").iterdir())


def test_names_are_read_back_as_they_were_written() -> None:
    names = ["b ee", "#1", "ä,;|", "10", "-", '"'] + [chr(code) for code in range(0x2030, 0x2040)]
    assert listed_names(names_list(names)) == names
    assert listed_names(b"\xef\xbb\xbfant \r\n\r\n bee\r\nbee") == ["ant", "bee (1)", "bee (2)"]


def test_larger_images_are_resized_and_others_are_copied(tmp_path: Path) -> None:
    source, noise = tmp_path / "photos", np.random.default_rng(0)
    (source / "a").mkdir(parents=True)
    (source / "b").mkdir()
    picture = Image.fromarray(noise.integers(0, 256, (40, 60, 3), dtype=np.uint8)).resize((60, 40))
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(source / "a" / "turned.jpg", exif=exif)
    picture.save(source / "a" / "flat.png")
    picture.save(source / "b" / "old.bmp")
    picture.resize((30, 20)).save(source / "b" / "v1.2.jpg")
    packed(source, tmp_path / "shards", resize=20)
    found = members(tmp_path / "shards")
    opened = {name: Image.open(io.BytesIO(c)) for name, c in found.items() if ".cls" not in name}
    sizes = {name: (image.format, image.size) for name, image in opened.items()}
    assert sizes == {
        "images/a/turned.jpg": ("JPEG", (20, 30)),
        "images/a/flat.png": ("PNG", (30, 20)),
        "images/b/old.png": ("PNG", (30, 20)),
        "images/b/v1_2.jpg": ("JPEG", (30, 20)),
    }
    assert found["images/b/v1_2.jpg"] == (source / "b" / "v1.2.jpg").read_bytes()
    flat = np.asarray(picture.resize((30, 20), Image.Resampling.BICUBIC))
    assert np.array_equal(np.asarray(opened["images/a/flat.png"]), flat)
    assert not opened["images/a/turned.jpg"].getexif()


def test_mistakes(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not empty; give a new folder"):
        packed(folder, folder)
    rows = "path,label\nfolder/train/cat/0.jpg,a|b\nfolder/train/dog/0.jpg,a"
    (tmp_path / "list.csv").write_text(rows)
    with pytest.raises(UserError, match="several labels"):
        packed(tmp_path / "list.csv", tmp_path / "shards")
    packed(folder, tmp_path / "shards")
    assert json.loads((tmp_path / "shards" / "pack.json").read_text())["resize"] is None
    with pytest.raises(UserError, match="--resize"):
        packed(folder, tmp_path / "shards", resize=5)
    (tmp_path / "shards" / "pack.json").write_text("{")
    with pytest.raises(UserError, match=r"pack\.json is damaged .*; give a new folder"):
        packed(folder, tmp_path / "shards")
    (folder / "train" / "cat" / "1.png").write_bytes((folder / "train/cat/1.jpg").read_bytes())
    with pytest.raises(UserError, match=r"train-00000.tar: sample cat/1"):
        pack.MOST_IMAGES = 99
        packed(folder, tmp_path / "twice")
