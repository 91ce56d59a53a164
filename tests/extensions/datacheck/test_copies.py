"""Perceptual hashes against SciPy's cosine transform; copies across splits, and crops among
neighbours in the features."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.fft import dctn

from tests.pictures import copied, small, soft
from vit.extensions.datacheck import check
from vit.extensions.datacheck import copies as module
from vit.extensions.datacheck.check import BITS_APART, SIDE, Pictures, hashes, near_pairs
from vit.extensions.datacheck.copies import (
    copy_findings,
    feature_pairs,
    hash_pairs,
    kept_copies,
    likeness,
)

__all__ = ["copied"]


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.9, 0.8])
def test_a_crop_is_like_its_whole_and_others_are_not(share: float, mirror: bool) -> None:
    whole = [soft(seed) for seed in range(8)]
    side = round(160 * share)
    left, top = np.random.default_rng(0).integers(0, 161 - side, 2).tolist()
    parts = [picture.crop((left, top, left + side, top + side)) for picture in whole]
    if mirror:
        parts = [part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for part in parts]
    pictures, pairs = small(*whole, *parts), np.arange(16).reshape(2, 8).T
    alike = likeness(pictures, pairs)
    assert (alike > 0.95).all()
    np.testing.assert_allclose(likeness(pictures, pairs[:, ::-1]), alike, atol=1e-4)
    others = np.stack([pairs[:, 0], np.roll(pairs[:, 1], 1)], 1)
    assert likeness(pictures, others).max() < 0.9


def test_likeness_of_whole_pictures_is_numpys_correlation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_CROPS", [SIDE])
    pictures = small(soft(0), soft(1))
    first, second = (picture.ravel().astype(float) for picture in pictures)
    flipped = pictures[1][:, ::-1].ravel().astype(float)
    expected = max(np.corrcoef(first, other)[0, 1] for other in (second, flipped))
    assert likeness(pictures, np.array([[0, 1]]))[0] == pytest.approx(expected, abs=1e-4)


def test_every_image_that_is_left_out_has_a_copy_that_is_kept() -> None:
    order, firsts = np.array([5, 0, 1, 2, 3, 4]), np.array([5, 0, 1, 1, 3, 4])
    pairs = np.array([[0, 5], [1, 0], [3, 1], [4, 3], [4, 5]])
    # 1 is no copy of 5, which 0 has: it stays, with 2 of the same bytes and 3 for copies.
    assert kept_copies(order, firsts, pairs) == {0: 5, 2: 1, 3: 1, 4: 5}


def test_test_keeps_its_picture_then_val_then_the_larger_one(copied: Path) -> None:
    pictures = Pictures(str(copied))
    pictures.read(0)
    findings = copy_findings(pictures, hash_pairs(pictures))
    rows = {(each.kind, each.subject): each.detail for each in findings}
    assert rows == {
        ("leak", "train/a/same.jpg"): "in train, copy of test/a/12.jpg in test",
        ("leak", "train/b/v.jpg"): "in train, copy of val/a/08.jpg in val",
        ("conflict", "train/b/v.jpg"): "b, but a in val/a/08.jpg",
        ("leak", "val/b/mirrored.jpg"): "in val, copy of test/b/13.jpg in test",
        ("identical", "train/a/again.jpg"): "copy of train/a/02.jpg",
        ("copy", "train/b/smaller.png"): "copy of train/b/01.jpg",
    }


def test_crops_are_found_among_neighbours_and_confirmed_by_their_pixels(tmp_path: Path) -> None:
    for number in range(20):
        soft(number).save(tmp_path / f"{number:02}.png")
    soft(3).crop((15, 0, 160, 145)).save(tmp_path / "17.png")
    (tmp_path / "11.png").write_bytes(b"")
    pictures = Pictures(str(tmp_path))
    pictures.read(0)
    images = np.flatnonzero(pictures.opened)
    features = np.random.default_rng(1).normal(size=(20, 8)) + 10  # a mean that all share
    features[17] = features[3] + 0.01
    features[5] = features[6]  # alike for the model, but another picture
    assert feature_pairs(pictures, features[images], images).tolist() == [[3, 17]]


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
    monkeypatch.setattr(check, "_ROWS", 3)
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
