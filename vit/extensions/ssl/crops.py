"""The images of the task dino: crops without labels.

Shapes: b batch, h w pixels, l local crops of h_l w_l pixels.
"""

from dataclasses import replace
from typing import Any

import torch

from vit.data.dataset import Batch
from vit.data.module import ImageData
from vit.data.settings import Splitting
from vit.data.sources import Splits
from vit.extensions.recipes.multi_crop import NUMBER, Crops, MultiCrop


class DinoData(ImageData):
    """Images without labels, in crops.

    Args:
        crops: Crops of each image, in place of `augment`.
        splits: By default nothing is cut from train. Images of val and test are left out.
        options: ImageData's others.
    """

    def __init__(
        self,
        *args: Any,
        crops: Crops = Crops(),
        splits: Splitting = Splitting(val_fraction=0.0, test_fraction=0.0),
        **options: Any,
    ) -> None:
        super().__init__(*args, augment=MultiCrop(crops=crops), splits=splits, **options)
        self._crops = crops

    @property
    def splits(self) -> Splits:
        """Train alone: no loss of this task tells which weights are better."""
        splits = super().splits
        if left := [name for name in splits.present() if name != "train"]:
            note = f"images of {' and '.join(left)} take no part in this task"
            splits = replace(splits, val=None, test=None, notes=[*splits.notes, note])
            self._splits = splits
        return splits

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Any:
        """Rows of bytes -> the first global crop, labels, places in the set, the second global
        crop `b c h w`, local crops `b l c h_l w_l`, and numbers of the samples `b`."""
        rows, labels, indices = batch
        sizes = self._crops.sizes(self.image_size)
        *flat, last = rows.split([*(3 * h * w for h, w in sizes), NUMBER], dim=1)
        crops = [p.reshape(-1, 3, *size) for p, size in zip(flat, sizes, strict=True)]
        first, second, *small = map(self.preprocess.normalize, crops)
        seen = torch.stack(small, 1) if small else first.new_empty(len(rows), 0, *first.shape[1:])
        numbers = last.contiguous().view(torch.int64).flatten()
        return first, labels, indices, second, seen, numbers
