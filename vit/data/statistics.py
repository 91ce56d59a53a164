"""Mean and standard deviation of each channel over the training images."""

from dataclasses import replace

import numpy as np

from vit.console import Meter, say
from vit.data.decode import ImageError
from vit.data.options import InputFormat
from vit.data.raster import open_raster
from vit.data.sources import ImageSet
from vit.errors import UserError, some_of


def with_statistics(
    inputs: InputFormat, images: ImageSet, channels: int, *, skip: bool
) -> InputFormat:
    """`inputs`; with mean and std of `images` if it has none, which are printed to stderr.

    Values are those of `vit.data.raster.open_raster`. A constant channel gets a std of 1. `skip`
    leaves unreadable images out.

    Raises UserError if an image cannot be read, or has other channels, and `skip` is off.
    """
    if inputs.mean is not None and inputs.std is not None:
        return inputs
    if inputs.mean is not None or inputs.std is not None:
        raise UserError("give data.inputs.mean and data.inputs.std together, or null for both")
    mean, std = channel_statistics(images, channels, skip=skip)
    means, stds = (some_of(f"{value:.4g}" for value in values) for values in (mean, std))
    say(f"channels: {channels}, mean {means}, std {stds} (of {len(images):,} train images)")
    return replace(inputs, mean=tuple(mean), std=tuple(value or 1.0 for value in std))


def channel_statistics(
    images: ImageSet, channels: int, *, skip: bool
) -> tuple[list[float], list[float]]:
    """Mean and standard deviation (of all values, not of a sample) per channel, in float64.

    Images are merged one by one with their counts (Chan, Golub and LeVeque, 1983), which loses no
    digits if the mean is large.
    """
    count, mean, squares = 0, np.zeros(channels), np.zeros(channels)
    with Meter("mean and std of train", len(images), "img") as meter:
        for item in images.items:
            meter.advance(1)
            try:
                values = open_raster(item, channels).numpy().reshape(channels, -1)
            except ImageError:
                if not skip:
                    raise
                continue
            image_mean = values.mean(1, dtype=np.float64)
            spread = np.square(values - image_mean[:, None], dtype=np.float64).sum(1)
            size = values.shape[1]
            total = count + size
            apart = image_mean - mean
            squares += spread + apart**2 * (count * size / total)
            mean += apart * (size / total)
            count = total
    if not count:
        raise UserError("no train image can be read, so there is no mean and std")
    return mean.tolist(), np.sqrt(squares / count).tolist()
