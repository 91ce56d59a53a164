"""Steps 1 and 2 of the walk: from an index to (uint8 `c h w`, label, index), and to a batch.

Whatever is random in a training sample is a function of (seed, epoch, index, copy) alone: not of
the worker, the order, or anything drawn before. Shapes: b batch, c channels, h w pixels, k classes.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from vit.console import say
from vit.data.decode import ImageError, open_image
from vit.data.memory import Decoded
from vit.data.sources import ImageSet
from vit.data.transforms import sample_bits

Key = int | tuple[int, int, int]
"""An index (evaluation), or (epoch, index, copy): the number of its copy in this epoch."""
Sample = tuple[Tensor, int | Tensor, int]
Batch = tuple[Tensor, Tensor, Tensor]

# Images in a row that may be unreadable before skipping them stops making sense.
_MAX_NEIGHBOURS = 100


class UnreadableImage(ImageError):
    """An image that could not be opened, in one line also when a worker process raised it.

    DataLoader rebuilds a worker's exception from its whole traceback; only the last line is ours.
    """

    def __init__(self, message: str) -> None:
        last = message.strip().splitlines()[-1]
        super().__init__(last.removeprefix(f"{__name__}.{type(self).__name__}: "))


class ImageDataset(Dataset[Sample | None]):
    """The images of a set, opened and transformed when asked for.

    Args:
        images: What to open.
        transform: RGB image -> uint8 `c h w`, at evaluation. In training it also gets the
            `sample_bits` of the key, which decide all that is random.
        seed: Of the training transforms.
        on_error: What an unreadable image does. "error" raises UnreadableImage, which names it.
            "skip" names it once on stderr and counts it; evaluation leaves it out (the sample is
            None), training takes the next image of the set in its place.
        opener: Makes what `transform` is given in training: an image, or a photo
            (`vit.data.photo.Photo`) that is decoded as far as a crop needs it.
        decoded: The images of the set, opened.
        in_batches: `transform` takes whole batches of `decoded`, uint8 `b c h w`.
        reader: Opens what evaluation and people see, in place of `open_image`.
    """

    def __init__(
        self,
        images: ImageSet,
        transform: Callable[..., Tensor],
        *,
        seed: int = 0,
        on_error: Literal["error", "skip"] = "error",
        opener: Callable[[Any], Any] = open_image,
        decoded: Decoded | None = None,
        in_batches: bool = False,
        reader: Callable[[Any], Any] = open_image,
    ) -> None:
        self.images = images
        self.transform = transform
        self.seed = seed
        self.on_error = on_error
        self.opener = opener
        self.decoded = decoded
        self.in_batches = in_batches
        self.reader = reader
        # Shared with the workers, so that all of them name a file once and the count is known here.
        self._skipped = None
        if on_error == "skip":
            self._skipped = torch.zeros(len(images), dtype=torch.bool).share_memory_()

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
                if self._skipped is None:
                    raise UnreadableImage(str(error)) from error
                if not self._skipped[candidate]:
                    self._skipped[candidate] = True
                    say(f"skipped: {error}", everywhere=True)
        if isinstance(key, int):
            return None
        name = self.images.names[index]
        raise UnreadableImage(f"{name} and the {neighbours} images after it cannot be read")

    def __getitems__(self, keys: Sequence[Key]) -> Sequence[Sample | None] | Batch:
        """The samples of a batch for `collate`, or the batch itself where that is faster.

        DataLoader asks for this. Both ways give the same pixels.
        """
        rows = np.array(keys, dtype=np.uint64)  # b, or b 3
        training = rows.ndim == 2
        indices = (rows[:, 1] if training else rows).astype(np.int64)
        decoded = self.decoded
        if decoded is None or not self.in_batches or not decoded.readable[indices].all():
            return [self[key] for key in keys]
        images = torch.from_numpy(np.ascontiguousarray(decoded.planes[indices]))
        more = (sample_bits(self.seed, *rows.T),) if training else ()
        labels = torch.from_numpy(self.images.labels[indices])
        return self.transform(images, *more), labels, torch.from_numpy(indices)

    @property
    def num_skipped(self) -> int:
        """Images of this set that were unreadable so far, in all workers of this process."""
        return 0 if self._skipped is None else int(self._skipped.sum())

    def open(self, index: int) -> Any:
        """The untransformed image: RGB, or what `reader` gives."""
        return self.reader(self._item(index))

    def _item(self, index: int) -> Any:
        if self.decoded is not None and self.decoded.readable[index]:
            return self.decoded[index]
        return self.images.items[index]

    def _pixels(self, index: int, key: Key) -> Tensor:
        if isinstance(key, int):
            return self.transform(self.open(index))
        return self.transform(self.opener(self._item(index)), sample_bits(self.seed, *key))

    def _label(self, index: int) -> int | Tensor:
        label = self.images.labels[index]
        return int(label) if label.ndim == 0 else torch.from_numpy(label)


def collate(
    samples: Sequence[Sample | None] | Batch,
    image_size: tuple[int, int] = (0, 0),
    channels: int | None = None,
) -> Batch:
    """Stacks samples to (uint8 `b c h w`, int64 `b` or float32 `b k`, int64 `b`); None is left out.

    If nothing is left, images are `0 3 h w` of `image_size`, labels and indices int64 `0`. A list
    holds samples; a tuple is a batch already. Images with `channels` that are not RGB are float32.
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
