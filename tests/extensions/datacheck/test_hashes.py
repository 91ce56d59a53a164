"""Perceptual hashes against SciPy's cosine transform, and pairs against plain loops."""

import numpy as np
import pytest
from PIL import Image
from scipy.fft import dctn

from tests.pictures import small, soft
from vit.extensions.datacheck import check as module
from vit.extensions.datacheck.check import BITS_APART, hashes, near_pairs


def phash(picture: np.ndarray) -> int:
    """By its description: eight rows of eight frequencies, the first bit the highest."""
    low = dctn(picture.astype(float))[:8, :8]
    bits = (low > np.median(low)).ravel()
    return int("".join("01"[int(bit)] for bit in bits), 2)


def test_a_hash_is_that_of_the_cosine_transform_and_knows_the_mirror_image() -> None:
    pictures = small(*map(soft, range(6)))
    straight, mirrored = hashes(pictures)
    assert [int(h.byteswap()) for h in straight] == [phash(p) for p in pictures]
    assert [int(h.byteswap()) for h in mirrored] == [phash(p[:, ::-1]) for p in pictures]


def test_near_pairs_are_those_of_plain_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS", 3)
    whole = [soft(seed) for seed in range(7)]
    whole += [whole[2].transpose(Image.Transpose.FLIP_LEFT_RIGHT), whole[4].resize((50, 50))]
    pictures = small(*whole)
    codes = [(phash(p), phash(p[:, ::-1])) for p in pictures]
    expected = {
        (i, j)
        for j, (other, _) in enumerate(codes)
        for i in range(j)
        if min((code ^ other).bit_count() for code in codes[i]) <= BITS_APART
    }
    assert set(map(tuple, near_pairs(pictures).tolist())) == expected
    assert {(2, 7), (4, 8)} <= expected and len(expected) < 6
    assert near_pairs(pictures[:1]).shape == (0, 2)
