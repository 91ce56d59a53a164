"""Mean and standard deviation of each channel over the training images, computed once.

They are kept in the cache folder for the files as they are, so that another run, and every process
of a run, has the same numbers.
"""

import json
import os
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np

from vit.cache import cache_directory
from vit.console import Meter, note, say
from vit.data.decode import ImageError
from vit.data.options import InputFormat
from vit.data.raster import open_raster
from vit.data.sources import ImageSet, PathList
from vit.errors import UserError, some_of
from vit.writing import write_text

_VERSION = 1


def with_statistics(
    inputs: InputFormat, images: ImageSet, channels: int, *, skip: bool
) -> InputFormat:
    """`inputs` with mean and std of `images`, if it has none; they are then printed to stderr.

    Values are scaled as `vit.data.raster.open_raster` scales them. A channel that is the same
    everywhere gets a std of 1. `skip` leaves unreadable images out.

    Raises:
        UserError: An image cannot be read, or has other channels, and `skip` is off.
    """
    for name, given in (("mean", inputs.mean), ("std", inputs.std)):
        if given is not None and len(given) != channels:
            raise UserError(
                f"data.inputs.{name} has {len(given)} numbers, and data.channels={channels}; give "
                f"one per channel, or null for mean and std, and they are computed from train"
            )
    if inputs.mean is not None and inputs.std is not None:
        return inputs
    if inputs.mean is not None or inputs.std is not None:
        raise UserError("give data.inputs.mean and data.inputs.std together, or null for both")
    file = _cache_file(images, channels)
    stored = _read(file, channels)
    mean, std = stored or channel_statistics(images, channels, skip=skip)
    if stored is None:
        with suppress(OSError):  # a full disk must not end the run
            write_text(file, json.dumps({"mean": mean, "std": std}))
    _describe(mean, std, len(images), how="computed" if stored is None else "cached")
    return replace(inputs, mean=tuple(mean), std=tuple(value or 1.0 for value in std))


def _describe(mean: list[float], std: list[float], count: int, *, how: str) -> None:
    """Prints what was found over `count` images to stderr."""
    means, stds = (some_of(f"{value:.4g}" for value in values) for values in (mean, std))
    say(f"channels: {len(mean)}, mean {means}, std {stds} ({how} over {count:,} train images)")
    constant = [str(at) for at, value in enumerate(std) if value == 0]
    if constant:
        note(f"channel {', '.join(constant)} is the same in every train image, and says nothing")


def channel_statistics(
    images: ImageSet, channels: int, *, skip: bool = False
) -> tuple[list[float], list[float]]:
    """Mean and standard deviation (of all values, not of a sample) per channel, in float64.

    Images are merged one by one with their counts (Chan, Golub and LeVeque, 1983), which loses no
    digits where the mean is large.
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
            own = values.mean(1, dtype=np.float64)
            spread = np.square(values - own[:, None], dtype=np.float64).sum(1)
            size = values.shape[1]
            total = count + size
            apart = own - mean
            squares += spread + apart**2 * (count * size / total)
            mean += apart * (size / total)
            count = total
    if not count:
        raise UserError("no train image can be read, so there is no mean and std")
    return mean.tolist(), np.sqrt(squares / count).tolist()


def _cache_file(images: ImageSet, channels: int) -> Path:
    key = sha256(f"{_VERSION} {channels} {images_digest(images)}".encode()).hexdigest()
    return cache_directory() / "statistics" / f"{key[:32]}.json"


def images_digest(images: ImageSet) -> str:
    """SHA-256 over path, size and time of change of each file in order, or over the pixels."""
    digest = sha256()
    if not isinstance(images.items, PathList):
        digest.update(f"{images.items.shape} {images.items.dtype}".encode())
        digest.update(np.ascontiguousarray(images.items).data)
        return digest.hexdigest()
    for path in images.items:
        try:
            status = os.stat(path)
            state = f"{status.st_size} {status.st_mtime_ns}"
        except OSError:  # opening the file will report it
            state = "absent"
        digest.update(os.fsencode(path) + f"\0{state}\n".encode())
    return digest.hexdigest()


def _read(file: Path, channels: int) -> tuple[list[float], list[float]] | None:
    """None where nothing is stored, or it is damaged."""
    try:
        content = json.loads(file.read_text("utf-8"))
        mean, std = ([float(value) for value in content[name]] for name in ("mean", "std"))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return (mean, std) if len(mean) == len(std) == channels else None
