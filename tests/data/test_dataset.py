from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vit.data.dataset import ImageDataset, collate
from vit.data.decode import ImageError
from vit.data.items import Opened
from vit.data.loaders import make_loader
from vit.data.sources import ImageSet, PathList
from vit.data.transforms import TrainTransform
from vit.preprocessing import Preprocess

SAME = Preprocess(image_size=(6, 5), crop_fraction=1.0)
RANDOM = TrainTransform(crop_area=(0.3, 0.9))


def in_memory(count: int = 12) -> ImageSet:
    pixels = np.random.default_rng(0).integers(0, 256, (count, 6, 5, 3), dtype=np.uint8)
    return ImageSet(pixels, np.arange(count) % 3, PathList(f"x/{i}" for i in range(count)))


def on_disk(folder: Path, count: int = 6, broken: tuple[int, ...] = ()) -> ImageSet:
    folder.mkdir(exist_ok=True)
    for index in range(count):
        Image.new("RGB", (5, 6), (index, 0, 0)).save(folder / f"{index}.png")
    for index in broken:
        (folder / f"{index}.png").write_bytes(b"")
    paths = PathList((f"{index}.png" for index in range(count)), str(folder))
    return ImageSet(paths, np.arange(count), paths.printable())


def loaded(dataset: ImageDataset, num_workers: int, **sampling: Any) -> Any:
    return make_loader(
        dataset, num_workers=num_workers, image_size=(6, 5), pin_memory=False, **sampling
    )


def test_a_sample_is_the_image_its_label_and_its_index():
    images = in_memory()
    pixels, label, index = ImageDataset(images, SAME)[4]  # pyright: ignore
    assert isinstance(images.items, np.ndarray)
    assert torch.equal(pixels.permute(1, 2, 0), torch.from_numpy(images.items[4]))
    assert (label, index) == (1, 4) and type(label) is int


def test_a_training_sample_is_a_function_of_its_key():
    one, two = (
        ImageDataset(in_memory(), SAME, RANDOM, seed=3),
        ImageDataset(in_memory(), SAME, RANDOM, seed=3),
    )
    keys = [(epoch, index, copy) for epoch in range(2) for index in range(3) for copy in range(2)]
    forward = {key: one[key][0] for key in keys}  # pyright: ignore
    torch.rand(7)
    backward = {key: two[key][0] for key in reversed(keys)}  # pyright: ignore
    assert all(torch.equal(forward[key], backward[key]) for key in keys)
    distinct = {pixels.numpy().tobytes() for pixels in forward.values()}
    assert len(distinct) == len(keys)
    other_seed = ImageDataset(in_memory(), SAME, RANDOM, seed=4)[keys[0]]
    assert not torch.equal(other_seed[0], forward[keys[0]])  # pyright: ignore


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("key", [2, (0, 2, 0)])
def test_an_unreadable_image_stops_with_one_line_that_names_it(tmp_path, key, num_workers):
    dataset = ImageDataset(on_disk(tmp_path / "p", broken=(2,)), SAME)
    batches: Any = iter(loaded(dataset, num_workers, batch_sampler=[[key]]))
    with pytest.raises(ImageError) as caught:
        next(batches)
    if num_workers:
        batches._shutdown_workers()  # the garbage collector would take five seconds for it
    assert str(caught.value).startswith(f"{tmp_path}/p/2.png: ")
    assert "\n" not in str(caught.value)


def test_skip_leaves_images_out_of_evaluation_counts_and_names_them_once(tmp_path, capfd):
    dataset = ImageDataset(on_disk(tmp_path / "p", broken=(1, 4)), SAME, on_error="skip")
    loader = loaded(dataset, 2, batch_size=2, shuffle=False)
    for _ in range(2):
        assert [batch[2].tolist() for batch in loader] == [[0], [2, 3], [5]]
    assert dataset.num_skipped == 2
    lines = capfd.readouterr().err.splitlines()
    assert sorted(line.split(": ")[:2] for line in lines) == [
        ["skipped", f"{tmp_path}/p/1.png"],
        ["skipped", f"{tmp_path}/p/4.png"],
    ]


def test_skip_replaces_images_in_training_by_the_next_one(tmp_path):
    images = on_disk(tmp_path / "p", broken=(4, 5))
    still = TrainTransform(crop="none", flip=False)
    sample = ImageDataset(images, SAME, still, on_error="skip")[(0, 4, 0)]
    assert sample is not None and sample[1:] == (0, 0)
    assert sample[0][0].unique().tolist() == [0]


def test_skip_gives_up_where_nothing_can_be_read(tmp_path):
    dataset = ImageDataset(
        on_disk(tmp_path / "p", count=3, broken=(0, 1, 2)), SAME, on_error="skip"
    )
    with pytest.raises(ImageError, match=r"1\.png and the 2 images after it cannot be read"):
        _ = dataset[(0, 1, 0)]


def test_collate_stacks_integers_and_rows():
    image = torch.zeros(3, 4, 5, dtype=torch.uint8)
    images, labels, indices = collate([(image, 2, 7), None, (image, 0, 9)])
    assert images.shape == (2, 3, 4, 5) and images.dtype == torch.uint8
    assert labels.tolist() == [2, 0] and labels.dtype == torch.int64
    assert indices.tolist() == [7, 9] and indices.dtype == torch.int64
    row = torch.tensor([1.0, 0.0])
    assert collate([(image, row, 7)])[1].tolist() == [[1.0, 0.0]]
    assert collate([None, None], (4, 5))[0].shape == (0, 3, 4, 5)


class Stored(Opened):
    """An array of floats, and a picture of floats."""

    def __init__(self) -> None:
        self.places = np.arange(2)

    def __getitem__(self, index: int) -> Any:
        values = np.zeros((4, 4), np.float32)
        return Image.fromarray(values) if index else values


@pytest.mark.parametrize(("index", "words"), [(0, "array of float32"), (1, "PIL image of mode F")])
def test_what_has_no_file_is_named_by_its_image(index: int, words: str, capsys):
    names = PathList(["cat/a", "dog/b"])
    images, opened = ImageSet(Stored(), np.zeros(2, np.int64), names), f"{names[index]}: {words}"
    with pytest.raises(ImageError, match=f"^{opened}"):
        _ = ImageDataset(images, SAME)[index]
    assert ImageDataset(images, SAME, on_error="skip")[index] is None
    assert capsys.readouterr().err.startswith(f"skipped: {opened}")
