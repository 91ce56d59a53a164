"""A perceptual hash: pictures that differ little have hashes that differ in few bits.

Shapes: n pictures, p pairs, s = SIDE pixels. Small pictures are gray and squashed to a square.
"""

from functools import cache

import numpy as np

SIDE = 32
"""Pixels of a side of the small pictures."""
BITS_APART = 6
"""Bits of 64 in which the hashes of copies differ at most; re-encoding changes two or so."""
_ROWS = 64
"""Hashes that are compared with all at a time."""


def hashes(small: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Perceptual hashes, uint64 `n`, of small pictures `n s s`, and those of their mirror images.

    pHash: a bit for each of the 8 x 8 lowest frequencies of the cosine transform that is above
    their median (C. Zauner, 2010, section 3.2.1). Mirroring changes the sign of odd frequencies.
    """
    low = _cosines() @ small.astype(np.float32) @ _cosines().T
    mirrored = low * np.where(np.arange(8) % 2, -1, 1)
    first, second = (
        np.packbits(each > np.median(each, axis=(1, 2), keepdims=True), axis=None).view(np.uint64)
        for each in (low, mirrored)
    )
    return first, second


@cache
def _cosines() -> np.ndarray:
    """The first rows, `8 s`, of the cosine transform (DCT-II)."""
    places = (np.arange(SIDE) + 0.5) / SIDE
    return np.cos(np.pi * np.arange(8)[:, None] * places).astype(np.float32)


def near_pairs(small: np.ndarray) -> np.ndarray:
    """Pairs `p 2` of pictures, or of a picture and a mirror image, with hashes close together."""
    straight, mirrored = hashes(small)
    found = [np.empty((0, 2), dtype=np.int64)]
    for start in range(0, len(small), _ROWS):
        rows = straight[start : start + _ROWS, None]
        close = np.bitwise_count(rows ^ straight[start:]) <= BITS_APART
        close |= np.bitwise_count(rows ^ mirrored[start:]) <= BITS_APART
        pairs = np.argwhere(close) + start
        found.append(pairs[pairs[:, 0] < pairs[:, 1]])
    return np.concatenate(found)
