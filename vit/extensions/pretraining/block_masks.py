"""Masks of blocks (BEiT, arXiv:2106.08254; iBOT, arXiv:2111.07832; dinov2/data/masking.py).

Which crops have a mask, and the bin of its size, come from one permutation of all crops of the
step, and the blocks from the sample; so masks do not depend on the number of processes.
Shapes: b images of a process, n patches.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from vit.errors import SHARE, UserError, check_range
from vit.seeds import hashed
from vit.training.draws import StepDraws

TRIALS = 10
"""Of a block that fits."""
LARGE_GRID, SMALLEST_BLOCK = 8, 4
"""Rows and columns from which on a block has at least SMALLEST_BLOCK patches. The official code has
no smaller grids; on them blocks begin at one patch here, as a mask may be smaller than four."""
ASPECT = 0.3
"""Height over width of a block, or its inverse, at least."""


@dataclass(frozen=True, kw_only=True)
class Masks:
    """Masks of the student's global crops."""

    share: float = 0.5
    """Share of the crops that have a mask."""
    sizes: tuple[float, float] = (0.1, 0.5)
    """Smallest and largest share of the patches in a mask; the masks of a step fill this range
    evenly."""

    def __post_init__(self) -> None:
        check_range("model.masks.share", self.share, SHARE)
        low, high = self.sizes
        if not 0 < low <= high < 1:
            raise UserError(f"model.masks.sizes={self.sizes} must be 0 < smallest <= largest < 1")


def draw_masks(
    masks: Masks, crops: int, draws: StepDraws, numbers: Sequence[int], grid: tuple[int, int]
) -> Tensor:
    """The masked patches of `crops` crops of each image of a batch, bool `crops_b n`, the first
    crops of all images before the second ones. `numbers`: one for each image, by its epoch and
    place in the set; `grid`: rows and columns of patches."""
    total, (low, high), drawn = crops * draws.global_batch, masks.sizes, list[Tensor]()
    generator = torch.Generator().manual_seed(hashed(draws.seed, -1, -3) >> 1)
    order, count = torch.randperm(total, generator=generator).tolist(), int(total * masks.share)
    for crop in range(crops):
        for place, number in zip(draws.places, numbers, strict=True):
            part = order[crop * draws.global_batch + place]
            random = Random(hashed(number, crop))
            share = low + (high - low) * (part + random.random()) / max(count, 1)
            patches = int(grid[0] * grid[1] * share) if part < count else 0
            drawn.append(block_mask(grid, patches, random))
    return torch.stack(drawn)


def block_mask(grid: tuple[int, int], patches: int, random: Random) -> Tensor:
    """Blocks that mask at most `patches`, and fewer if no further block fits; bool `n`."""
    rows, columns = grid
    mask, left = torch.zeros(rows, columns, dtype=torch.bool), patches
    smallest = SMALLEST_BLOCK if min(grid) >= LARGE_GRID else 1
    while left > 0 and (fresh := _add_block(mask, smallest, left, random)):
        left -= fresh
    return mask.flatten()


def _add_block(mask: Tensor, smallest: int, most: int, random: Random) -> int:
    """Masks a block with 1 to `most` patches that were not masked; returns their number, 0 if none
    of TRIALS fits."""
    rows, columns = mask.shape
    for _ in range(TRIALS):
        area = random.uniform(smallest, most)
        ratio = math.exp(random.uniform(math.log(ASPECT), -math.log(ASPECT)))
        height, width = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if not (height < rows and width < columns):
            continue
        top, left = random.randint(0, rows - height), random.randint(0, columns - width)
        block = mask[top : top + height, left : left + width]
        fresh = height * width - int(block.sum())
        if 0 < fresh <= most:
            block.fill_(True)
            return fresh
    return 0
