"""Numbers of fine-tuning that follow from the size of the training set: `vit fit -c finetune`.

Found with a DINOv2 ViT-S/14 and 5 to 500 images per class of CIFAR-10 (benchmarks/LOG.md).
"""

import math

PER_ROOT = 192
"""Images seen per square root of the training images: 190 steps of 32 for 1,000 images."""
PASSES = 3
"""Passes over a large set (from 4,096 images on), for which that would be less."""

ENOUGH_TO_CHOOSE = 200
"""Validation images from which on they choose the average of the two ends."""
FIXED_SHARE = 0.75
"""Share of the fine-tuned weights in the average where too few images could choose it."""
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The shares that validation images choose from; 0 is the fitted head on frozen features."""


def steps_for(train_images: int, global_batch: int) -> int:
    """Steps of the optimizer, each with `global_batch` images, for that many training images."""
    images = math.ceil(max(PER_ROOT * math.sqrt(train_images), PASSES * train_images))
    return math.ceil(images / global_batch)
