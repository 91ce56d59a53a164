"""A look at the files of a run before its weights are fetched: broken ones end it at once."""

import time
import warnings
from contextlib import suppress

import numpy as np
from PIL import Image

from vit.console import note
from vit.data.decode import ImageError, open_input
from vit.data.sources import PathList, Splits
from vit.errors import UserError, some_of

MOST, SECONDS = 2_000, 5.0
"""Files that are looked at, and the time for that."""
DARK = 2**14
"""Values of 16 bits below which an image is nearly black in 8, as of cameras of 12 bits."""


def check_beginnings(splits: Splits, channels: int | None, remedy: str) -> None:
    """UserError with up to five images that cannot be opened, and the `remedy`.

    Opens the headers of RGB images, and all values of those with `channels`, which may be NaN: of
    all files, or of `MOST` in equal distances over all splits, as far as `SECONDS` allow. A note
    on gray images of 16 bits that are nearly black as RGB, which has their upper 8.
    """
    sets = [images.items for images in splits.present().values()]
    files = [items for items in sets if isinstance(items, PathList)]
    stride = max(1, -(-sum(map(len, files)) // MOST))
    chosen = [items[at] for items in files for at in range(0, len(items), stride)]
    problems, highest, end = list[str](), 0, time.monotonic() + SECONDS
    for path in chosen:
        if time.monotonic() > end:
            break
        try:
            highest = max(highest, _open(path, channels))
        except ImageError as error:
            problems.append(str(error))
    if problems:
        raise UserError(f"{some_of(problems, 5, '; ')}; {remedy}")
    if 0 < highest < DARK:
        note(
            f"the values of 16-bit images end at {highest:,} of 65,535, so that they are nearly "
            "black in 8 bits; --data.channels 1 reads all bits"
        )


def _open(path: str, channels: int | None) -> int:
    """The highest value of a gray image of 16 bits that is read as RGB; of another one 0."""
    if channels is None:
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # size, damaged EXIF fields
            with Image.open(path) as image:
                return int(np.asarray(image).max()) if image.mode.startswith("I;16") else 0
    open_input(path, channels)  # says what is wrong
    return 0
