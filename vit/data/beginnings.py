"""A look at the files of a run before its weights are fetched: broken ones end it at once."""

import time
import warnings
from contextlib import suppress
from shlex import quote

import numpy as np
from PIL import Image

from vit.console import note
from vit.data.decode import ImageError, Stream, check_size, open_input, read
from vit.data.sources import ImageSet, PathList, Splits
from vit.errors import UserError, some_of

MOST, SECONDS = 2_000, 5.0
"""Files that are looked at, and the time for that."""
SAMPLE, DARK = 16, 2**14
"""Of images, whether they use their upper bits: how many, and the values that do not."""


def way_on(root: str | None, images: ImageSet, skip_option: str) -> str:
    """Says what to do about one of the images that cannot be read; `root`: where they are, if that
    is known."""
    skip = f"{skip_option} leaves such images out"
    if root is None or not isinstance(images.items, PathList):
        return skip
    return f"`vit data check {quote(root)} --fix LIST.csv` lists the others, {skip}"


def check_beginnings(splits: Splits, channels: int | None, remedy: str) -> None:
    """UserError with up to five images that cannot be opened, and the `remedy`.

    Opens the headers of RGB images, and all values of those with `channels`, which may be NaN: of
    all files, or of `MOST` in equal distances over all splits, as far as `SECONDS` allow.
    """
    sets = [images.items for images in splits.present().values()]
    paths = [items for items in sets if isinstance(items, PathList)]
    ends = np.cumsum([len(items) for items in paths])
    total = int(ends[-1]) if paths else 0
    problems, end = list[str](), time.monotonic() + SECONDS
    for place in np.linspace(0, total - 1, min(total, MOST)).astype(int).tolist():
        if time.monotonic() > end:
            break
        which = int(np.searchsorted(ends, place, "right"))
        try:
            _open(paths[which][place - int(ends[which])], channels)
        except ImageError as error:
            problems.append(str(error))
    if problems:
        raise UserError(f"{some_of(problems, 5, '; ')}; {remedy}")


def _open(path: str, channels: int | None) -> None:
    if channels is None:
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # size, damaged EXIF fields
            with Image.open(path):
                return
    open_input(path, channels)  # says what is wrong


def note_unused_bits(images: ImageSet) -> None:
    """Notes that gray files of 16 bits are nearly black as RGB, which has their upper 8 bits.

    That is where none of about SAMPLE of them has a value of 14 bits or more, as of cameras and
    scanners of 12 bits. Only PNG and TIFF files are opened.
    """
    highest, paths = 0, images.items
    if not isinstance(paths, PathList):
        return
    for at in range(0, len(paths), max(1, len(paths) // SAMPLE)):
        if paths[at].lower().endswith((".png", ".tif", ".tiff")):
            with suppress(ImageError):  # which is for those to say who need all images
                highest = max(highest, read(paths[at], _highest))
    if 0 < highest < DARK:
        note(
            f"the values of 16-bit images end at {highest:,} of 65,535, so that they are nearly "
            "black in 8 bits; --data.channels 1 reads all bits"
        )


def _highest(stream: Stream, head: bytes, name: str) -> int:
    """The largest value of a gray image of 16 bits; of another one 0."""
    with Image.open(stream) as image:
        if not image.mode.startswith("I;16"):
            return 0
        check_size(image.height, image.width, name)
        return int(np.asarray(image).max())
