"""From an index to (uint8 `c h w`, label, index), and to a batch.

The draws of a training sample are a function of (seed, epoch, index, copy) alone.
Shapes: b batch, c channels, h w pixels, k classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from vit.console import say
from vit.data.decode import ImageError, open_image
from vit.data.sources import ImageSet
from vit.data.transforms import sample_bits

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
        transform: RGB image -> uint8 `c h w`. In training it also gets the `sample_bits` of the
            key, from which it draws.
        seed: Of the training transforms.
        on_error: For an unreadable image, "error" raises ImageError. "skip" names it once on
            stderr and counts it; the sample is None at evaluation, and the next image of the set
            in training.
        remedy: The way on, in the message of an unreadable image.
        opener: Opens images for training, such as `vit.data.photo.Photo`.
        planes: The images of the set, uint8 `n 3 h w`, of which `transform` takes whole batches.
        reader: Opens images for evaluation and for people.
    """

    images: ImageSet
    transform: Callable[..., Tensor]
    _: KW_ONLY
    seed: int = 0
    on_error: Literal["error", "skip"] = "error"
    remedy: str = "data.loading.on_error=skip leaves such images out"
    opener: Callable[[Any], Any] = open_image
    planes: np.ndarray | None = None
    reader: Callable[[Any], Any] = open_image

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
        more = (sample_bits(self.seed, *rows.T),) if training else ()
        labels = torch.from_numpy(self.images.labels[indices])
        return self.transform(images, *more), labels, torch.from_numpy(indices)

    @property
    def num_skipped(self) -> int:
        """Unreadable images so far, in all workers of this process."""
        return 0 if self._skipped is None else int(self._skipped.sum())

    def open(self, index: int) -> Any:
        """The untransformed image: RGB, or what `reader` gives."""
        return self.reader(self.images.items[index])

    def _pixels(self, index: int, key: Key) -> Tensor:
        if isinstance(key, int):
            return self.transform(self.open(index))
        return self.transform(self.opener(self.images.items[index]), sample_bits(self.seed, *key))

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
