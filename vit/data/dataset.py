"""Dataset of (uint8 `c h w`, label, index), and its batches.

The draws of a training sample are a function of (seed, epoch, index, copy) alone.
Shapes: b batch, c channels, h w pixels, k classes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from vit.console import say
from vit.data.decode import ImageError, open_input
from vit.data.photo import Photo
from vit.data.sources import ImageSet
from vit.data.transforms import TrainTransform, sample_bits
from vit.preprocessing import Preprocess

Key = int | tuple[int, int, int]
"""An index (evaluation), or (epoch, index, number of its copy in this epoch)."""
Sample = tuple[Tensor, int | Tensor, int]
Batch = tuple[Tensor, Tensor, Tensor]

_MAX_NEIGHBOURS = 100
"""Images in a row that may be unreadable if they are skipped."""


@dataclass(eq=False)
class ImageDataset(Dataset[Sample | None]):
    """The transformed images of a set.

    Args:
        preprocess: The transform at evaluation, and the normalisation in training.
        augment: The transform in training.
        seed: Seed of the draws in training.
        on_error: For an unreadable image, "error" raises ImageError. "skip" names it once on
            stderr and counts it; the sample is None at evaluation, and the next image of the set
            in training.
        remedy: The way on, in the message of an unreadable image.
        planes: The images of the set, uint8 `n 3 h w`, of which whole batches are cut.
    """

    images: ImageSet
    preprocess: Preprocess
    augment: TrainTransform | None = None
    _: KW_ONLY
    seed: int = 0
    on_error: Literal["error", "skip"] = "error"
    remedy: str = "data.loading.on_error=skip leaves such images out"
    planes: np.ndarray | None = None

    def __post_init__(self) -> None:
        # Shared with the workers: each file is named once, and counted in this process.
        self._skipped = None
        if self.on_error == "skip":
            self._skipped = torch.zeros(len(self.images), dtype=torch.bool).share_memory_()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: Key) -> Sample | None:
        """The sample of an index or of (epoch, index, copy); None for a skipped image."""
        index, neighbours = key, 0
        if not isinstance(index, int):
            index, neighbours = index[1], min(len(self) - 1, _MAX_NEIGHBOURS)
        for step in range(neighbours + 1):
            candidate = (index + step) % len(self)
            try:
                return self._pixels(candidate, key), self._label(candidate), candidate
            except ImageError as error:
                problem = str(error)
                if problem.startswith(("array of", "PIL image of")):  # a file has a name
                    problem = f"{self.images.names[candidate]}: {problem}"
                if self._skipped is None:
                    raise ImageError(f"{problem}; {self.remedy}") from error
                if not self._skipped[candidate]:
                    self._skipped[candidate] = True
                    say(f"skipped: {problem}", everywhere=True)
        if isinstance(key, int):
            return None
        name = self.images.names[index]
        raise ImageError(f"{name} and the {neighbours} images after it cannot be read")

    def __getitems__(self, keys: Sequence[Key]) -> Sequence[Sample | None] | Batch:
        """The samples of a batch for `collate`, or the batch itself, for DataLoader."""
        if self.planes is None:
            return [self[key] for key in keys]
        rows = np.array(keys, dtype=np.uint64)  # b, or b 3
        training = rows.ndim == 2
        indices = (rows[:, 1] if training else rows).astype(np.int64)
        images = torch.from_numpy(np.ascontiguousarray(self.planes[indices]))
        labels = torch.from_numpy(self.images.labels[indices])
        images = self._augmented(images, rows.T) if training else self.preprocess(images)
        return images, labels, torch.from_numpy(indices)

    @property
    def num_skipped(self) -> int:
        """Unreadable images so far, in all workers of this process."""
        return 0 if self._skipped is None else int(self._skipped.sum())

    def open(self, index: int) -> Image.Image | Tensor:
        """The untransformed image: RGB, or float32 `c h w` of other channels."""
        return open_input(self.images.items[index], self.preprocess.channels)

    def _pixels(self, index: int, key: Key) -> Tensor:
        if isinstance(key, int) or self.augment is None:
            return self.preprocess(self.open(index))
        whole = self.preprocess.channels is not None or self.augment.takes_batches
        image = self.open(index) if whole else Photo(self.images.items[index])
        return self._augmented(image, key)

    def _augmented(self, image: Image.Image | Photo | Tensor, key: Iterable[int]) -> Tensor:
        assert self.augment is not None
        values = {"mean": self.preprocess.mean, "std": self.preprocess.std}
        bits = sample_bits(self.seed, *key)
        return self.augment(image, bits, self.preprocess.image_size, **values)

    def _label(self, index: int) -> int | Tensor:
        label = self.images.labels[index]
        return int(label) if label.ndim == 0 else torch.from_numpy(label)


def collate(
    samples: Sequence[Sample | None] | Batch,
    image_size: tuple[int, int] = (0, 0),
    channels: int | None = None,
) -> Batch:
    """Stacks samples to (uint8 `b c h w`, int64 `b` or float32 `b k`, int64 `b`); None is left out.

    With none left, images are `0 c h w` of `image_size`. Images with `channels`, which are not RGB,
    are float32. A tuple is a batch already.
    """
    if isinstance(samples, tuple):
        return cast(Batch, samples)
    readable = [sample for sample in samples if sample is not None]
    if not readable:
        nothing = torch.empty(0, dtype=torch.int64)
        kind = torch.uint8 if channels is None else torch.float32
        return torch.empty(0, channels or 3, *image_size, dtype=kind), nothing, nothing
    # torch's own: in a worker it stacks straight into shared memory.
    images, labels, indices = default_collate(readable)
    return images, labels, indices
