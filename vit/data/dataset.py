"""Steps 1 and 2 of the walk: from an index to (uint8 `c h w`, label, index), and to a batch.

Whatever is random in a training sample is a function of (seed, epoch, index, repeat) alone: not of
the worker, the order, or anything drawn before. Shapes: b batch, c channels, h w pixels, k classes.
"""

import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Literal

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from vit.data.decode import ImageError, open_image
from vit.data.sources import ImageSet

Key = int | tuple[int, int, int]
"""An index (evaluation), or (epoch, index, repeat): which copy of the image in this epoch."""
Sample = tuple[Tensor, int | Tensor, int]
Batch = tuple[Tensor, Tensor, Tensor]

# Images in a row that may be unreadable before skipping them stops making sense.
_MAX_NEIGHBOURS = 100


class UnreadableImage(ImageError):
    """An image that could not be opened, in one line also when a worker process raised it.

    DataLoader makes a worker's exception anew from its whole traceback; only the last line is ours.
    """

    def __init__(self, message: str) -> None:
        last = message.strip().splitlines()[-1]
        super().__init__(last.removeprefix(f"{__name__}.{type(self).__name__}: "))


class ImageDataset(Dataset[Sample | None]):
    """The images of a set, opened and transformed when asked for.

    Args:
        images: What to open.
        transform: RGB image -> uint8 `c h w`. Whatever it draws must come from torch's global
            generator, which is seeded for every training key and put back afterwards.
        seed: Of the training transforms.
        on_error: What an unreadable image does. "error" raises UnreadableImage, which names it.
            "skip" names it once on stderr and counts it; evaluation leaves it out (the sample is
            None), training takes the next image of the set in its place.
    """

    def __init__(
        self,
        images: ImageSet,
        transform: Callable[[Image.Image], Tensor],
        *,
        seed: int = 0,
        on_error: Literal["error", "skip"] = "error",
    ) -> None:
        self.images = images
        self.transform = transform
        self.seed = seed
        self.on_error = on_error
        # Shared with the workers, so that all of them name a file once and the count is known here.
        self._skipped = None
        if on_error == "skip":
            self._skipped = torch.zeros(len(images), dtype=torch.bool).share_memory_()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: Key) -> Sample | None:
        """The sample of an index or of (epoch, index, repeat); None for a skipped image."""
        if isinstance(key, int):
            opened = self._open(key, neighbours=0)
            if opened is None:
                return None
            image, index = opened
            return self.transform(image), self._label(index), index
        neighbours = min(len(self) - 1, _MAX_NEIGHBOURS)
        opened = self._open(key[1], neighbours)
        if opened is None:
            name = self.images.names[key[1]]
            raise UnreadableImage(f"{name} and the {neighbours} images after it cannot be read")
        image, index = opened
        with seeded(sample_seed(self.seed, *key)):
            return self.transform(image), self._label(index), index

    @property
    def num_skipped(self) -> int:
        """Images of this set that were unreadable so far, in all workers of this process."""
        return 0 if self._skipped is None else int(self._skipped.sum())

    def open(self, index: int) -> Image.Image:
        """The untransformed RGB image."""
        return open_image(self.images.items[index])

    def _open(self, index: int, neighbours: int) -> tuple[Image.Image, int] | None:
        for step in range(neighbours + 1):
            candidate = (index + step) % len(self)
            try:
                return self.open(candidate), candidate
            except ImageError as error:
                if self._skipped is None:
                    raise UnreadableImage(str(error)) from error
                if not self._skipped[candidate]:
                    self._skipped[candidate] = True
                    print(f"skipped: {error}", file=sys.stderr)
        return None

    def _label(self, index: int) -> int | Tensor:
        label = self.images.labels[index]
        return int(label) if label.ndim == 0 else torch.from_numpy(label)


def collate(samples: Sequence[Sample | None], image_size: tuple[int, int] = (0, 0)) -> Batch:
    """Stacks samples to (uint8 `b c h w`, int64 `b` or float32 `b k`, int64 `b`); None is left out.

    If nothing is left, images are `0 3 h w` of `image_size`, labels and indices int64 `0`.
    """
    kept = [sample for sample in samples if sample is not None]
    if not kept:
        nothing = torch.empty(0, dtype=torch.int64)
        return torch.empty(0, 3, *image_size, dtype=torch.uint8), nothing, nothing
    # torch's own: in a worker it stacks straight into shared memory.
    images, labels, indices = default_collate(kept)
    return images, labels, indices


def sample_seed(seed: int, epoch: int, index: int, repeat: int) -> int:
    """64 well mixed bits, the same on every machine."""
    packed = struct.pack("<4q", seed, epoch, index, repeat)
    return int.from_bytes(blake2b(packed, digest_size=8).digest(), "little")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch's CPU generator, and puts its state back at the end.

    Not `torch.manual_seed`: that also seeds every accelerator, from which dropout draws.
    """
    generator = torch.default_generator
    state = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(state)
