"""Settings of fine-tuning that depend on the number of training images: `vit fit -c finetune`.

Measured with a DINOv2 ViT-S/14 and 5 to 500 images per class of CIFAR-10 (benchmarks/LOG.md).
"""

import math

PER_ROOT = 192
"""Images seen per square root of the training images: 190 steps of 32 for 1,000 images."""
PASSES = 3
"""Passes over a set of 4,096 images or more, for which PER_ROOT would give fewer."""

ENOUGH_TO_CHOOSE = 200
"""Validation images that are enough to choose between the shares of SHARES."""
FIXED_SHARE = 0.75
"""Share of the fine-tuned weights in the average if there are fewer validation images."""
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares that are compared on the validation images; 0 is the fitted head on frozen features."""


def steps_for(train_images: int, global_batch: int) -> int:
    """Optimizer steps of `global_batch` images for that many training images."""
    images = math.ceil(max(PER_ROOT * math.sqrt(train_images), PASSES * train_images))
    return math.ceil(images / global_batch)
