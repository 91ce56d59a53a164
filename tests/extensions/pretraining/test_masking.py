"""Corruption and targets of masked patch prediction."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vit.extensions.pretraining.masking import (
    DRAWS,
    color_classes,
    draw_corruption,
    from_patches,
    patch_pixels,
    to_bytes,
)
from vit.preprocessing import Preprocess


def uniforms(images: int, patches: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(images, DRAWS, patches, generator=generator)


@pytest.mark.parametrize(
    ("patches", "fraction", "count"), [(64, 0.5, 32), (9, 0.5, 4), (4, 0.1, 1)]
)
def test_every_image_has_the_same_number_of_different_corrupted_patches(
    patches: int, fraction: float, count: int
) -> None:
    corruption = draw_corruption(uniforms(200, patches), fraction)
    assert corruption.chosen.shape == (200, count)
    assert all(len(set(row)) == count for row in corruption.chosen.tolist())
    whole = torch.cat([corruption.chosen, corruption.seen], dim=1).sort().values
    assert torch.equal(whole, torch.arange(patches).expand(200, -1))


def test_each_patch_is_corrupted_as_often_as_another() -> None:
    corruption = draw_corruption(uniforms(20_000, 16), 0.5)
    counts = np.bincount(corruption.chosen.flatten().numpy(), minlength=16)
    # A binomial count of 20,000 halves has a deviation of 71.
    assert np.abs(counts - 10_000).max() < 5 * 71


def test_eighty_ten_ten() -> None:
    corruption = draw_corruption(uniforms(4_000, 50), 0.5)
    masked = corruption.masked
    swapped = ~masked & (corruption.source != corruption.chosen)
    unchanged = ~masked & (corruption.source == corruption.chosen)
    n = masked.numel()
    for share, hits in ((0.8, masked), (0.1, swapped), (0.1, unchanged)):
        assert hits.sum().item() / n == pytest.approx(share, abs=5 * (0.16 / n) ** 0.5)


def test_the_other_patch_is_any_other_one_of_the_image() -> None:
    corruption = draw_corruption(uniforms(30_000, 5), 0.4)
    swapped = ~corruption.masked & (corruption.source != corruption.chosen)
    apart = ((corruption.source - corruption.chosen) % 5)[swapped]
    counts = np.bincount(apart.numpy(), minlength=5)
    assert counts[0] == 0
    expected = swapped.sum().item() / 4
    assert np.abs(counts[1:] - expected).max() < 5 * expected**0.5


def test_embeddings_are_corrupted_as_drawn_and_the_rest_is_untouched() -> None:
    corruption = draw_corruption(uniforms(8, 20), 0.5)
    patches, token = torch.randn(8, 20, 3), torch.randn(3)
    corrupted = corruption(patches, token)
    for i in range(8):
        expected = patches[i].clone()
        for j, place in enumerate(corruption.chosen[i].tolist()):
            source = patches[i, corruption.source[i, j]]
            expected[place] = token if corruption.masked[i, j] else source
        assert torch.equal(corrupted[i], expected)


@pytest.mark.parametrize(("p", "side"), [(4, 1), (8, 1), (8, 4), (4, 4)])
def test_colour_classes_are_the_upper_three_bits_of_the_mean(p: int, side: int) -> None:
    pixels = torch.randint(0, 256, (2, 3, 16, 24), generator=torch.Generator().manual_seed(0))
    pixels[0] = 255 * (pixels[0] > 127)  # the ends of the range
    means = F.avg_pool2d(pixels.double(), p // side)
    red, green, blue = (means / 32).long().unbind(1)
    blocks = (64 * red + 8 * green + blue)[:, None].double()
    expected = F.unfold(blocks, side, stride=side).mT.long()
    assert torch.equal(color_classes(pixels, p, side), expected)


def test_a_mean_at_the_border_of_two_colours_is_exact() -> None:
    pixels = torch.full((1, 3, 16, 16), 32)
    assert color_classes(pixels, 16, 1).item() == 64 + 8 + 1
    pixels[0, 0, 3, 5] -= 1  # the mean of red is 31.996
    assert color_classes(pixels, 16, 1).item() == 8 + 1


@pytest.mark.parametrize(
    ("mean", "std"),
    [((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))],
)
def test_the_normalisation_is_undone_to_the_bit(mean: tuple, std: tuple) -> None:

    values = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(1, 3, 16, 16)
    scale = Preprocess(image_size=(16, 16), mean=mean, std=std, crop_fraction=1.0)
    assert torch.equal(to_bytes(scale.normalize(values), scale), values.long())


def test_pixels_of_patches_are_in_the_order_of_the_tokens_and_back() -> None:
    images = torch.randn(2, 3, 8, 12)
    patches = patch_pixels(images, 4)
    assert patches.shape == (2, 6, 48)
    assert torch.equal(patches[1, 5], images[1, :, 4:8, 8:12].flatten())
    assert torch.equal(from_patches(patches, (8, 12)), images)
