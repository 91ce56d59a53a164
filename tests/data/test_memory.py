"""Sets that stay in memory: which do, what they hold, and that batches do not change by it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from lightning.pytorch.trainer.states import TrainerFn
from PIL import Image

from tests.grouped import image_data
from vit.data import memory
from vit.data.dataset import ImageDataset, collate
from vit.data.decode import open_image
from vit.data.memory import in_memory
from vit.data.module import InputFormat
from vit.data.settings import Cache
from vit.data.sources import ImageSet, PathList
from vit.data.transforms import TrainTransform
from vit.errors import UserError
from vit.preprocessing import Preprocess


def on_disk(folder: Path, sizes: list[tuple[int, int]], broken: tuple[int, ...] = ()) -> ImageSet:
    """JPEGs of (height, width), all different."""
    folder.mkdir()
    for index, (height, width) in enumerate(sizes):
        values = np.random.default_rng(index).integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(values).save(folder / f"{index}.jpg")
    for index in broken:
        (folder / f"{index}.jpg").write_bytes(b"\xff\xd8\xff")
    names = PathList((f"{index}.jpg" for index in range(len(sizes))), str(folder))
    return ImageSet(names, np.arange(len(sizes)) % 3, names.printable())


EIGHT = Preprocess(image_size=(8, 8), crop_fraction=1.0)
PAD = TrainTransform(crop="pad", crop_padding=2)


def keep(images, *, processes=1, fits=True):
    window = PAD if fits else TrainTransform()
    return in_memory(images, EIGHT, window, name="train", keeps=True, processes=processes)


def test_small_images_of_one_size_are_decoded_as_open_image_does(tmp_path, capfd):
    images = on_disk(tmp_path / "p", [(8, 8)] * 12)
    decoded = keep(images)
    assert decoded is not None
    assert decoded.shape == (12, 3, 8, 8) and decoded.flags.c_contiguous
    for planes, path in zip(decoded, images.items, strict=True):
        assert np.array_equal(planes.transpose(1, 2, 0), np.asarray(open_image(path)))
    noted = capfd.readouterr().err
    assert noted.startswith("train: 12 images of 8 x 8 pixels stay in memory (0 M")


def test_images_stay_on_disk_where_memory_would_not_help(tmp_path, monkeypatch):
    images = on_disk(tmp_path / "p", [(8, 8)] * 12)
    assert dataset(images, None, keeps=False).planes is None
    assert keep(images, fits=False) is None  # changed one by one anyway
    monkeypatch.setattr(memory, "SMALL_PIXELS", 63)
    assert keep(images) is None
    monkeypatch.setattr(memory, "SMALL_PIXELS", 64)
    assert keep(images) is not None
    needed = 12 * 3 * 64
    monkeypatch.setattr(memory, "MAX_BYTES", needed)
    assert keep(images) is not None
    assert keep(images, processes=2) is None
    monkeypatch.setattr(memory, "MAX_BYTES", 2**30)
    monkeypatch.setattr(memory, "available_memory", lambda: 8 * needed - 1)
    assert keep(images) is None


@pytest.mark.parametrize("odd", [0, 5, 10])
def test_images_of_several_sizes_stay_on_disk(tmp_path, odd):
    sizes = [(8, 8)] * 40
    sizes[odd] = (8, 9)
    images = on_disk(tmp_path / "p", sizes)
    assert keep(images) is None


def test_arrays_are_in_memory_already():
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    decoded = dataset(ImageSet(pixels, np.arange(3), PathList("abc")), None, keeps=False).planes
    assert decoded is not None and np.array_equal(decoded[1].transpose(1, 2, 0), pixels[1])
    assert keep(ImageSet(pixels, np.arange(3), PathList("abc")), fits=False) is None
    gray = keep(ImageSet(pixels[..., 0], np.arange(3), PathList("abc")))
    assert gray is not None and np.shares_memory(gray, pixels)
    assert np.array_equal(gray[2], np.repeat(pixels[2:, :, :, 0], 3, axis=0))


# Batches


def dataset(images, augment, *, preprocess=EIGHT, keeps=True, **options):
    planes = in_memory(images, preprocess, augment, name="x", keeps=keeps, processes=1)
    return ImageDataset(images, preprocess, augment, planes=planes, **options)


def datasets(images, augment: TrainTransform | None = PAD, **options):
    """From memory, and from disk."""
    return [dataset(images, augment, keeps=keeps, **options) for keeps in (True, False)]


@pytest.mark.parametrize(
    ("resize", "fraction", "size", "fits"),
    [
        ("crop", 1.0, (20, 20), True),
        ("crop", 1.0, (20, 31), True),
        ("crop", 1.0, (21, 31), False),
        ("crop", 0.8, (25, 40), True),
        ("crop", 0.8, (20, 20), False),
        ("squash", 0.8, (25, 25), True),
        ("squash", 0.8, (25, 26), False),
        ("crop", 1.0, (20, 2001), False),
    ],
)
def test_evaluation_in_batches_is_the_preprocessing(resize, fraction, size, fits):
    preprocess = Preprocess(image_size=(20, 20), resize=resize, crop_fraction=fraction)
    pixels = np.random.default_rng(0).integers(0, 256, (6, *size, 3), dtype=np.uint8)
    images = dataset(
        ImageSet(pixels, np.arange(6), PathList("abcdef")), None, preprocess=preprocess
    )
    assert (images.planes is not None) == fits
    batch = collate(images.__getitems__([5, 0, 3]))[0]
    for index, window in zip((5, 0, 3), batch, strict=True):
        assert torch.equal(preprocess(Image.fromarray(pixels[index])), window)
    assert batch.is_contiguous()


KEYS = [(epoch, index, copy) for epoch in range(3) for index in (7, 2, 9, 0) for copy in range(2)]


@pytest.mark.parametrize("keys", [KEYS, [4, 1, 11]])
def test_batches_are_the_same_from_memory_and_from_disk(tmp_path, keys):
    images = on_disk(tmp_path / "p", [(8, 8)] * 12)
    in_ram, from_disk = datasets(images, PAD if keys is KEYS else None, seed=5)
    batch = collate(in_ram.__getitems__(keys))
    for other in (
        collate(from_disk.__getitems__(keys)),
        collate([in_ram[key] for key in keys]),
        collate([from_disk[key] for key in keys]),
    ):
        for ours, theirs in zip(batch, other, strict=True):
            assert torch.equal(ours, theirs) and ours.dtype == theirs.dtype
    if keys is KEYS:
        reseeded = dataset(images, PAD, seed=6)
        assert not torch.equal(collate(reseeded.__getitems__(keys))[0], batch[0])


def test_a_set_with_unreadable_images_stays_on_disk_where_they_are_skipped(tmp_path, capfd):
    images = on_disk(tmp_path / "p", [(8, 8)] * 12, broken=(2, 9))
    results = []
    both = zip(
        datasets(images, on_error="skip"), datasets(images, None, on_error="skip"), strict=True
    )
    for training, evaluation in both:
        trained = collate(training.__getitems__(KEYS))
        evaluated = collate(evaluation.__getitems__(list(range(12))))
        assert 2 not in trained[2] and 3 in trained[2]
        assert evaluated[2].tolist() == [0, 1, 3, 4, 5, 6, 7, 8, 10, 11]
        assert training.num_skipped == evaluation.num_skipped == 2
        assert training.planes is None and evaluation.planes is None
        results.append((*trained, *evaluated))
        lines = capfd.readouterr().err.splitlines()
        names = [line.split(": ")[1] for line in lines if line.startswith("skipped")]
        assert sorted(set(names)) == [f"{tmp_path}/p/2.jpg", f"{tmp_path}/p/9.jpg"]
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


# As an option


def module(root, **options):
    inputs = InputFormat(crop_fraction=1.0)
    return image_data(
        root=str(root), image_size=8, batch_size=8, num_workers=0, inputs=inputs, **options
    )


@pytest.mark.parametrize("crop", ["pad", "none", "inception"])
def test_cache_keeps_small_images_and_changes_no_batch(make_tree, tmp_path, capfd, crop):
    root = make_tree(tmp_path / "photos", {"cat": 20, "dog": 40})  # 8 pixels high, 10 wide
    augment = TrainTransform(crop=crop)
    modules = {cache: module(root, cache=cache, augment=augment) for cache in get_args(Cache)}
    batches = {
        cache: [*data.train_dataloader(), *data.val_dataloader()] for cache, data in modules.items()
    }
    for ours, theirs in zip(batches["auto"], batches["none"], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    noted = capfd.readouterr().err
    in_batches = crop != "inception"
    assert noted.count("train: 48 images of 8 x 10 pixels stay in memory") == in_batches
    assert noted.count("val: 6 images of 8 x 10 pixels stay in memory") == 1
    for path in root.rglob("*.jpg"):
        path.unlink()
    assert not in_batches or len(list(modules["auto"].train_dataloader())) == 6
    with pytest.raises(UserError):
        list(modules["none"].train_dataloader())


@pytest.mark.parametrize(("stage", "kept"), [(TrainerFn.FITTING, True), (TrainerFn.TESTING, False)])
def test_an_evaluation_alone_keeps_nothing(make_tree, tmp_path, capfd, stage, kept):
    # It goes through the images once.
    data: Any = module(make_tree(tmp_path / "photos", {"cat": 20, "dog": 40}))
    data.trainer = SimpleNamespace(
        state=SimpleNamespace(fn=stage),
        num_devices=1,
        global_rank=0,
        world_size=1,
        strategy=SimpleNamespace(root_device=torch.device("cpu")),
    )
    list(data.val_dataloader())
    assert ("stay in memory" in capfd.readouterr().err) == kept
