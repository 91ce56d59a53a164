"""Masks of blocks: on any number of processes, in shares and sizes, in blocks."""

from random import Random

import pytest
import torch
from torch import Tensor

from vit.errors import UserError
from vit.extensions.pretraining.block_masks import Masks, block_mask, draw_masks
from vit.seeds import indices_in_step
from vit.training.draws import StepDraws

STEP = 12


def of_crops(processes: int, accumulated: int = 1, side: int = 16) -> list[Tensor]:
    """The mask of each global crop of a step, by (crop, place of the image)."""
    batch, drawn = STEP // processes // accumulated, {}
    for rank in range(processes):
        for part in range(accumulated):
            places = indices_in_step(batch, rank, processes, accumulated, part)
            draws = StepDraws(seed=7, global_batch=STEP, places=places)
            masks = draw_masks(Masks(), 2, draws, [100 + place for place in places], (side, side))
            for row, mask in enumerate(masks):
                drawn[row // batch, places[row % batch]] = mask
    return [drawn[key] for key in sorted(drawn)]


@pytest.mark.parametrize(("processes", "accumulated"), [(2, 1), (3, 1), (1, 2), (3, 4)])
def test_masks_are_those_of_one_process_with_the_whole_batch(
    processes: int, accumulated: int
) -> None:
    one = of_crops(1)
    assert len(one) == 2 * STEP and len({tuple(mask.tolist()) for mask in one}) == STEP + 1
    assert all(map(torch.equal, of_crops(processes, accumulated), one))


def test_half_of_the_crops_have_a_mask_and_their_sizes_fill_the_range_evenly() -> None:
    sizes = sorted(int(mask.sum()) for mask in of_crops(1, side=40))
    assert sizes[:STEP] == [0] * STEP
    for part, size in enumerate(sizes[STEP:]):  # a bin of the range for each of the masks
        low, high = (1600 * (0.1 + 0.4 * (part + end) / STEP) for end in (0, 1))
        assert 0.97 * int(low) <= size <= high


def test_a_mask_has_at_most_the_patches_that_it_may_and_is_made_of_blocks() -> None:
    beside = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])[None, None]
    near = []
    for seed in range(200):
        mask = block_mask((14, 14), 60, Random(seed)).view(14, 14)
        assert 30 < mask.sum() <= 60
        near.append(torch.nn.functional.conv2d(mask[None].float(), beside, padding=1)[0][mask])
    # Masked patches beside a masked one: 4 * 60 / 196 = 1.2 if they were drawn one by one.
    assert 2.5 < torch.cat(near).mean() < 4


def test_blocks_begin_at_four_patches_and_at_one_on_a_small_grid() -> None:
    # Three patches are fewer than the smallest block of the official code, which then takes blocks
    # of one to three; on a small grid they may have one.
    sizes = {int(block_mask((4, 4), 1, Random(seed)).sum()) for seed in range(50)}
    assert sizes == {1}
    blocks = [int(block_mask((7, 7), 8, Random(seed)).sum()) for seed in range(50)]
    assert max(blocks) == 8


def test_a_mask_of_no_patch_is_empty() -> None:
    assert not block_mask((4, 4), 0, Random(0)).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 1.5}, r"model\.masks\.share=1\.5 must be in \[0, 1\]"),
        ({"sizes": (0.5, 0.1)}, r"model\.masks\.sizes=\(0\.5, 0\.1\) must be 0 < smallest"),
        ({"sizes": (0.1, 1.0)}, "largest < 1"),
    ],
)
def test_masks_that_cannot_be_are_refused(options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Masks(**options)
