from pathlib import Path

import numpy as np
import pytest

from vit.data.settings import InputFormat
from vit.data.sources import ImageSet, PathList
from vit.errors import UserError
from vit.extensions.sources.raster import channel_statistics, with_statistics


def saved(folder: Path, arrays: list[np.ndarray]) -> ImageSet:
    for number, values in enumerate(arrays):
        np.save(folder / f"{number}.npy", values)
    paths = PathList((f"{number}.npy" for number in range(len(arrays))), str(folder))
    return ImageSet(paths, np.zeros(len(arrays), np.int64), paths)


def test_statistics_are_numpys_over_all_values(tmp_path: Path) -> None:
    scales, generator = [1, 5, 0, 30, 1e-2], np.random.default_rng(0)
    arrays = [
        generator.normal(1e4, scales, (h, w, 5)).astype(np.float32)
        for h, w in ((9, 7), (30, 4), (1, 1))
    ]
    together = np.concatenate([a.reshape(-1, 5) for a in arrays]).astype(np.float64)
    mean, std = channel_statistics(saved(tmp_path, arrays), 5, "")
    np.testing.assert_allclose(mean, together.mean(0), rtol=1e-12)
    np.testing.assert_allclose(std, together.std(0), rtol=1e-9, atol=1e-12)


def test_a_constant_channel_is_named_and_given_statistics_are_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = saved(tmp_path, [np.stack([np.eye(6), np.ones((6, 6))], 2)] * 2)
    computed = with_statistics(InputFormat(), images, 2, "")
    assert computed.mean == (1 / 6, 1.0) and computed.std is not None and computed.std[1] == 1.0
    assert "std 0.3727, 0 (of 2 train images)" in capsys.readouterr().err
    given = InputFormat(mean=(0.0, 0.0), std=(1.0, 1.0))
    assert with_statistics(given, images, 2, "") is given
    for wrong in (InputFormat(mean=(0.5,) * 3, std=(0.5,) * 3), InputFormat(mean=(0.5, 0.5))):
        with pytest.raises(UserError, match="mean"):
            with_statistics(wrong, images, 2, "").preprocess((6, 6), 2)
