"""data.shuffle=blocks: blocks of images that lie together in a new order each epoch, and the images
of a few blocks mixed. Shapes: n images."""

from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from vit.data.items import Opened
from vit.data.sources import ImageSet

RUN, RUNS = 64, 128
"""Files in a row that are a block, and blocks that are mixed at a time."""


class Blocks:
    """The row of the table of orders: permutations of a set of images, block by block."""

    def __init__(self, images: ImageSet) -> None:
        stored = images.items.in_blocks() if isinstance(images.items, Opened) else None
        self.blocks, self.mixed = stored or (np.arange(len(images)) // RUN, RUNS)
        """int64 `n`, the block of each image; how many blocks are mixed at a time."""

    def __call__(self, generator: torch.Generator) -> Tensor:
        return block_order(self.blocks, self.mixed, generator)

    def digest(self) -> str:
        """BLAKE2b over the block of each image, and how many blocks are mixed at a time."""
        content = self.blocks.astype("<i8").tobytes() + f"{self.mixed}".encode()
        return blake2b(content, digest_size=16).hexdigest()


def block_order(blocks: np.ndarray, window: int, generator: torch.Generator) -> Tensor:
    """A permutation of images that goes through their blocks: the blocks are permuted and divided
    into runs of at most `window`, and the images of each run are mixed.

    `blocks`: int64 `n`, the block of each image.
    """
    count = int(blocks.max()) + 1
    run = torch.randperm(count, generator=generator) * -(-count // window) // count
    images = torch.randperm(len(blocks), generator=generator)
    return images[run[torch.from_numpy(blocks).long()[images]].argsort(stable=True)]
