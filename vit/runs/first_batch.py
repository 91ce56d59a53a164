"""first_batch.npz: the images and targets that the model sees at its first step."""

from pathlib import Path

import numpy as np
from lightning.pytorch import LightningModule, Trainer

from vit.console import is_first_process
from vit.data.dataset import Batch
from vit.data.module import ImageData
from vit.preprocessing import picture
from vit.training.image_classifier import ImageClassifier
from vit.writing import atomic

FILE = "first_batch.npz"
MOST = 25
"""Images."""


def save_first_batch(
    run_dir: Path,
    data: ImageData,
    trainer: Trainer,
    module: LightningModule,
    batch: Batch,
    batch_idx: int,
) -> None:
    """A callback's `on_train_batch_start`, which saves the first batch of the first process, `size`
    images: at most MOST, augmented and mixed, uint8 `n h w 3`, and their `targets`, classes `n` or
    shares of them `n k`."""
    later = trainer.global_step or batch_idx or not is_first_process()
    if later or not isinstance(module, ImageClassifier):
        return
    images, targets = batch[:2]
    if module.mixing:
        draws = module.next_draws(len(images))
        images, targets = module.mixing(images, targets, data.num_classes, draws)
    rasters = data.preprocess.channels is not None
    pixels = map(data.preprocess.denormalize, images[:MOST].detach().float().cpu())
    shown = np.stack([np.asarray(picture(image, stretch=rasters)) for image in pixels])
    labels = targets[:MOST].cpu().double().numpy()
    with atomic(run_dir / FILE) as place:
        np.savez_compressed(place, images=shown, targets=labels, size=len(images))
