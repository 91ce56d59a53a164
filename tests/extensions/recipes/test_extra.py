"""data.augment.extra: a user's own change of training images."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision.transforms import v2

from tests.data.test_transforms import noise, still
from vit.data.dataset import ImageDataset
from vit.data.loaders import make_loader
from vit.data.module import ImageData
from vit.data.sources import ImageSet, PathList
from vit.data.transforms import TrainTransform, sample_bits
from vit.errors import UserError
from vit.extensions.recipes.extra import OwnChange
from vit.preprocessing import Preprocess, to_tensor

SIZE = (12, 10)


def drawn(image: Image.Image) -> Image.Image:
    """Draws from all three global generators."""
    offsets = [torch.randint(99, ()).item(), np.random.randint(99), random.randrange(99)]
    return Image.fromarray((np.asarray(image) // 2 + np.array(offsets, np.uint8)).astype(np.uint8))


def changed(extra: Any, image: Image.Image, seed: int) -> torch.Tensor:
    return OwnChange(TrainTransform(extra=extra))(to_tensor(image), seed, (), ())


def states() -> list[Any]:
    numpy: Any = np.random.get_state()
    return [torch.get_rng_state().tolist(), numpy[1].tolist(), numpy[2:], random.getstate()]


def test_the_draws_follow_from_the_seed_and_the_generators_are_put_back() -> None:
    before, image = states(), noise(*SIZE)
    first = [changed(drawn, image, seed) for seed in (5, 2**40, 2**64 - 1)]
    with pytest.raises(ZeroDivisionError):
        changed(lambda image: drawn(image).putalpha(1 // 0), image, 5)
    assert states() == before
    drawn(image)
    again = [changed(drawn, image, seed) for seed in (5, 2**40, 2**64 - 1)]
    assert torch.equal(torch.stack(first), torch.stack(again))
    assert len({pixels.numpy().tobytes() for pixels in first}) == 3
    torch.manual_seed(5)
    assert torch.equal(changed(v2.AugMix(), image, 5), to_tensor(v2.AugMix()(image)))


def test_it_gets_the_cropped_image_before_erasing_and_changes_no_other_draw() -> None:
    seen = []

    def look(image: Image.Image) -> Image.Image:
        drawn(image)
        seen.append(image)
        return image

    photo, bits = noise(40, 50), sample_bits(0, 1, 2, 0)
    plain = TrainTransform(color_jitter=0.3, erasing=1.0)
    own = replace(plain, extra=look)(photo, bits, SIZE)
    assert torch.equal(own, plain(photo, bits, SIZE))
    assert (seen[0].mode, seen[0].size) == ("RGB", SIZE[::-1])
    whole = replace(plain, erasing=0.0)(photo, bits, SIZE)
    assert torch.equal(to_tensor(seen[0]), whole) and not torch.equal(whole, own)


def as_array(image: Image.Image) -> np.ndarray:
    return np.asarray(image).transpose(2, 0, 1)


@pytest.mark.parametrize("form", [as_array, v2.PILToTensor(), v2.ToImage(), Image.Image.copy])
def test_images_tensors_and_arrays_are_the_same(form: Any) -> None:
    photo = noise(*SIZE)
    whole = still(extra=lambda image: form(ImageOps.invert(image)), erasing=1.0)(photo, 3, SIZE)
    plain = still(extra=ImageOps.invert, erasing=1.0)(photo, 3, SIZE)
    assert type(whole) is torch.Tensor and whole.is_contiguous() and torch.equal(whole, plain)
    gray = changed(ImageOps.grayscale, photo, 0)
    assert torch.equal(gray, to_tensor(photo.convert("L").convert("RGB")))


WRONG = [
    (lambda image: image.resize((4, 3)), "uint8 of shape (3, 3, 4)"),
    (lambda image: image.convert("CMYK"), "Image of shape ()"),
    (v2.Compose([v2.PILToTensor(), v2.ToDtype(torch.float32)]), "float32 of shape (3, 12, 10)"),
    (np.asarray, "uint8 of shape (12, 10, 3)"),
    (lambda image: None, "NoneType of shape ()"),
]


@pytest.mark.parametrize(("extra", "returned"), WRONG)
def test_another_result_is_named(extra: Any, returned: str) -> None:
    with pytest.raises(UserError) as caught:
        ImageData("digits", image_size=SIZE, augment=TrainTransform(extra=extra))
    assert str(caught.value) == (
        f"data.augment.extra returned {returned}; it must return an RGB PIL image of the size that "
        "it gets, or uint8 of shape (3, 12, 10)"
    )


def test_a_wrong_result_in_a_worker_is_one_line() -> None:
    images = ImageSet(np.zeros((1, 6, 6, 3), np.uint8), np.zeros(1, int), PathList(["x"]))
    transform = still(extra=lambda image: image.resize((4, 3)))
    dataset = ImageDataset(images, Preprocess(image_size=(6, 6)), transform)
    batches: Any = iter(
        make_loader(
            dataset, num_workers=1, image_size=(6, 6), pin_memory=False, batch_sampler=[[(0, 0, 0)]]
        )
    )
    with pytest.raises(UserError, match=r"^data.augment.extra returned uint8 .* \(3, 6, 6\)$"):
        next(batches)
    batches._shutdown_workers()  # the garbage collector would take five seconds for it


def test_a_generator_of_its_own_and_other_channels_are_refused() -> None:
    own = np.random.default_rng(0)
    half = TrainTransform(extra=lambda i: ImageOps.mirror(i) if own.random() < 0.5 else i)
    with pytest.raises(UserError, match="makes two images of one by the same seeds"):
        ImageData("digits", augment=half)
    with pytest.raises(UserError, match=r"data.augment.extra changes RGB images"):
        ImageData("digits", augment=TrainTransform(extra=drawn), channels=1)
