"""first_batch.npz: what the model sees at its first step, images and labels."""

from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Trainer
from torch import Tensor

from vit.console import is_first_process
from vit.errors import some_of
from vit.preprocessing import picture
from vit.writing import atomic

FILE = "first_batch.npz"
MOST, _MOST_LABELS = 25, 4
"""Images, and labels per image."""


def save_first_batch(
    run_dir: Path, trainer: Trainer, module: Any, batch: Any, batch_idx: int
) -> None:
    """A callback's `on_train_batch_start`, which saves the first batch of the first process:
    augmented and mixed, uint8 `n h w 3`, with captions and a title."""
    data: Any = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
    later = trainer.global_step or batch_idx
    if later or not data.labelled or not is_first_process():
        return
    images, targets = batch[0], batch[1]
    if module.mixing:
        draws = module.next_draws(len(images))
        images, targets = module.mixing(images, targets, data.num_classes, draws)
    rasters = data.preprocess.channels is not None
    pixels = map(data.preprocess.denormalize, images[:MOST].detach().float().cpu())
    shown = np.stack([np.asarray(picture(image, stretch=rasters)) for image in pixels])
    captions = [_caption(t, data.classes, data.multilabel) for t in targets[:MOST].cpu()]
    title = f"The first training batch: {len(shown)} of {len(images)} images"
    with atomic(run_dir / FILE) as place:
        np.savez_compressed(place, images=shown, captions=captions, title=title)


def _caption(target: Tensor, classes: list[str], multilabel: bool) -> str:
    """The class of an index, or the classes of shares `k`, the largest first."""
    if target.dim() == 0:
        return classes[int(target)]
    values, order = target.float().sort(descending=True, stable=True)
    shares = [(classes[int(k)], float(v)) for k, v in zip(order, values, strict=True) if v > 0]
    mixed = any(share < 1 for _, share in shares)
    words = [f"{name} {share:.2f}" if mixed else name for name, share in shares]
    return some_of(words, _MOST_LABELS) or ("no label" if multilabel else "")
