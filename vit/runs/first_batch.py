"""first_batch.npz: what the model sees at its first step, images and labels."""

from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Trainer

from vit.console import is_first_process
from vit.preprocessing import picture
from vit.writing import atomic

FILE = "first_batch.npz"
MOST = 25
"""Images."""


def save_first_batch(
    run_dir: Path, trainer: Trainer, module: Any, batch: Any, batch_idx: int
) -> None:
    """A callback's `on_train_batch_start`, which saves the first batch of the first process, `size`
    images: at most MOST, augmented and mixed, uint8 `n h w 3`, and their `targets`, classes `n` or
    shares of them `n k`."""
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
    labels = targets[:MOST].cpu().double().numpy()
    with atomic(run_dir / FILE) as place:
        np.savez_compressed(place, images=shown, targets=labels, size=len(images))
