"""Crops of the task dino, and the data module that makes them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vit.data.photo
from vit.data.photo import Photo
from vit.errors import UserError
from vit.extensions.recipes.multi_crop import Crops, MultiCrop
from vit.extensions.ssl.crops import DinoData

PLAIN = {"colors": False, "blur": False}
SIZE = (32, 32)


@pytest.fixture
def image() -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def unpacked(row: torch.Tensor, crops: Crops) -> list[torch.Tensor]:
    sizes = [(32, 32)] * 2 + [(crops.local_size, crops.local_size)] * crops.local
    *parts, number = row.split([*(3 * h * w for h, w in sizes), 8])
    pixels = [part.view(3, *size) for part, size in zip(parts, sizes, strict=True)]
    return [*pixels, number.view(torch.int64)]


def test_a_sample_is_its_crops_and_its_number(image: Image.Image) -> None:
    crops = Crops(local=3, local_size=16)
    row = MultiCrop(crops=crops)(Photo(image), 2**64 - 2, SIZE)
    *pixels, number = unpacked(row, crops)
    assert [part.shape[1] for part in pixels] == [32, 32, 16, 16, 16]
    assert number.item() == 2**63 - 1


def test_crops_are_of_the_bits_alone(image: Image.Image) -> None:
    change = MultiCrop(crops=Crops(local=2, local_size=16))
    first, again, other = (change(Photo(image), bits, SIZE) for bits in (5, 5, 6))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_areas_are_those_that_are_asked_for(image: Image.Image) -> None:
    # Each pixel is its own row and column, so that a crop without a change says what it shows.
    rows, columns = np.mgrid[0:240, 0:240].astype(np.uint8)
    places = Image.fromarray(np.stack([rows, columns, rows * 0], axis=-1))
    crops = Crops(local=4, local_size=16, flip=False, **PLAIN)
    change, shares = MultiCrop(crops=crops), [[], []]
    for bits in range(60):
        for place, pixels in enumerate(unpacked(change(Photo(places), bits, SIZE), crops)[:-1]):
            side = pixels.shape[1]
            low, high = pixels[:2].float().flatten(1).aminmax(dim=1)
            # The outermost pixels are half a step within the box.
            spans = (high - low) * side / (side - 1)
            shares[place >= 2].append((spans.prod() / 240**2).item())
    assert 0.25 < min(shares[0]) < 0.4 and 0.9 < max(shares[0]) <= 1.1
    assert 0.03 < min(shares[1]) < 0.08 and 0.28 < max(shares[1]) < 0.36


def test_a_photo_is_decoded_once_for_all_its_crops(
    image: Image.Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image.save(tmp_path / "a.jpg")
    loads, load = [], vit.data.photo.JpegImageFile.load
    monkeypatch.setattr(
        vit.data.photo.JpegImageFile, "load", lambda self: loads.append(self) or load(self)
    )
    change = MultiCrop(crops=Crops(local=6, local_size=16))
    change(Photo(str(tmp_path / "a.jpg")), 1, SIZE)
    assert len({id(each) for each in loads}) == 1


def test_only_the_second_crop_is_solarized_and_the_first_always_blurred(
    image: Image.Image,
) -> None:
    names = [
        [type(part).__name__ for part in changes]
        for changes in MultiCrop(crops=Crops())._changes_of
    ]
    assert [("RandomSolarize" in part) for part in names] == [False, True, False]
    crops = Crops(local=1, local_size=16, colors=False, flip=False)
    sharp, blurred = (
        [unpacked(MultiCrop(crops=c)(Photo(image), bits, SIZE), c)[:2] for bits in range(80)]
        for c in (Crops(local=1, local_size=16, flip=False, **PLAIN), crops)
    )
    # The blur draws, so that the first crop alone shows the same box. The weakest changes nothing.
    edges = [
        [(crop.float().diff(dim=-1).abs().mean()).item() for crop, _ in each]
        for each in (sharp, blurred)
    ]
    assert all(after <= before for before, after in zip(*edges, strict=True))
    assert sum(edges[1]) < 0.5 * sum(edges[0])


@pytest.fixture
def data(tmp_path: Path) -> DinoData:
    random = np.random.default_rng(1)
    for split, count in (("train", 6), ("val", 2)):
        folder = tmp_path / "photos" / split / "a"
        folder.mkdir(parents=True)
        for i in range(count):
            pixels = random.integers(0, 256, (40, 50, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{i}.png")
    crops = Crops(local=2, local_size=16)
    return DinoData(root=str(tmp_path / "photos"), image_size=32, batch_size=3, crops=crops)


def test_a_batch_on_the_device_is_normalised_crops(data: DinoData) -> None:
    data.read_as(labelled=False)
    rows, labels, indices = next(iter(data.train_dataloader()))
    first, same, places, second, small, numbers = data.on_after_batch_transfer(
        (rows, labels, indices), 0
    )
    assert first.shape == second.shape == (3, 3, 32, 32) and small.shape == (3, 2, 3, 16, 16)
    assert torch.equal(places, indices) and torch.equal(same, labels)
    assert len(set(numbers.tolist())) == 3 and numbers.min() >= 0
    expected = unpacked(rows[1], Crops(local=2, local_size=16))
    for crop, pixels in zip((first[1], second[1], *small[1]), expected, strict=False):
        assert torch.equal(crop, data.preprocess.normalize(pixels[None])[0])


def test_without_local_crops_there_are_none(data: DinoData) -> None:
    data = DinoData(root=data.root, image_size=32, batch_size=2, crops=Crops(local=0))
    batch = next(iter(data.read_as(labelled=False).train_dataloader()))
    assert data.on_after_batch_transfer(batch, 0)[4].shape[:2] == (2, 0)


def test_images_of_val_take_no_part_and_a_note_says_so(data: DinoData) -> None:
    data.read_as(labelled=False)
    assert len(data.splits.train) == 6 and data.splits.val is None and [*data.digests] == ["train"]
    assert data.splits.notes.count("images of val take no part in this task") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local": -1}, r"data\.crops\.local=-1 must be at least 0"),
        ({"local_size": 0}, r"data\.crops\.local_size=0 must be at least 1"),
        ({"global_area": (0.0, 1.0)}, r"data\.crops\.global_area=\(0\.0, 1\.0\) must be 0 <"),
        ({"local_area": (0.5, 0.1)}, r"data\.crops\.local_area=\(0\.5, 0\.1\)"),
    ],
)
def test_crops_that_cannot_be_are_refused(options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Crops(**options)
