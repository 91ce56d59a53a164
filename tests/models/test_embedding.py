"""Positions: the tables, and each source's rule for another grid."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.models.small_models import random_images, relative_error
from vit.errors import UserError
from vit.models.config import PosResize
from vit.models.embedding import resize_grid, sincos2d

GRIDS = [((4, 4), (7, 5)), ((6, 5), (3, 5)), ((3, 3), (2, 6))]


def table_of(grid: tuple[int, int], width: int = 6) -> Tensor:
    return random_images(1, 1, math.prod(grid), width, dtype=torch.float64)[0]


def as_grid(table: Tensor, grid: tuple[int, int]) -> np.ndarray:
    return table.reshape(*grid, -1).numpy()


@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_bilinear_rules_are_scipys_zoom(
    old: tuple[int, int], new: tuple[int, int], corners: bool
) -> None:
    """Google resizes by `zoom` with the corners aligned."""
    ndimage = pytest.importorskip("scipy.ndimage")
    table = table_of(old)
    factors = (new[0] / old[0], new[1] / old[1], 1)
    options = {} if corners else {"grid_mode": True, "mode": "nearest"}
    expected = ndimage.zoom(as_grid(table, old), factors, order=1, **options)
    actual = resize_grid(table, old, new, "bilinear_corners" if corners else "bilinear")
    assert np.abs(as_grid(actual, new) - expected).max() < 1e-12


def cubic(x: float, a: float = -0.75) -> float:
    """The cubic convolution kernel (Keys 1981) up to a distance of 2."""
    x = abs(x)
    if x > 1:
        return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return (a + 2) * x**3 - (a + 3) * x**2 + 1


def interpolation_matrix(old: int, new: int, rule: PosResize) -> np.ndarray:
    """Row i has the weights of old positions in new position i."""
    matrix = np.zeros((new, old))
    for i in range(new):
        if rule == "bicubic_corners":
            x = i * (old - 1) / (new - 1)
        else:
            x = (i + 0.5) * old / (new + (0.1 if rule == "bicubic_offset" else 0)) - 0.5
        for neighbour in range(math.floor(x) - 1, math.floor(x) + 3):
            matrix[i, min(max(neighbour, 0), old - 1)] += cubic(neighbour - x)
    return matrix


@pytest.mark.parametrize("rule", ["bicubic", "bicubic_corners", "bicubic_offset"])
@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_bicubic_rules_are_their_closed_form(
    rule: PosResize, old: tuple[int, int], new: tuple[int, int]
) -> None:
    table = table_of(old)
    rows, columns = (interpolation_matrix(o, n, rule) for o, n in zip(old, new, strict=True))
    expected = np.einsum("ih,jw,hwd->ijd", rows, columns, as_grid(table, old))
    actual = resize_grid(table, old, new, rule)
    assert np.abs(as_grid(actual, new) - expected).max() < 1e-12


def test_bicubic_antialias_is_what_timm_does() -> None:
    layers = pytest.importorskip("timm.layers")
    table = table_of((6, 5), 8)
    for new in ((9, 7), (3, 4)):
        expected = layers.resample_abs_pos_embed(
            table, list(new), old_size=[6, 5], num_prefix_tokens=0
        )
        actual = resize_grid(table, (6, 5), new, "bicubic_antialias")
        assert relative_error(actual, expected) < 1e-6  # timm interpolates in float32


def test_half_precision_tables_are_interpolated_in_float32() -> None:
    table = table_of((4, 4)).bfloat16()
    expected = resize_grid(table.float(), (4, 4), (6, 6), "bicubic").bfloat16()
    assert torch.equal(resize_grid(table, (4, 4), (6, 6), "bicubic"), expected)
    assert resize_grid(table, (4, 4), (4, 4), "bicubic_offset") is table


@pytest.mark.parametrize("grid", [(3, 5), (1, 1), (7, 2)])
def test_sincos2d_is_the_formula(grid: tuple[int, int]) -> None:
    width = 16
    expected = np.zeros((*grid, width))
    quarter = width // 4
    for y in range(grid[0]):
        for x in range(grid[1]):
            for i in range(quarter):
                omega = 1 / 10_000 ** (i / (quarter - 1))
                expected[y, x, i] = math.sin(x * omega)
                expected[y, x, quarter + i] = math.cos(x * omega)
                expected[y, x, 2 * quarter + i] = math.sin(y * omega)
                expected[y, x, 3 * quarter + i] = math.cos(y * omega)
    assert np.abs(as_grid(sincos2d(grid, width), grid) - expected).max() < 1e-7
    with pytest.raises(UserError, match="width=18 must be a multiple of 4"):
        sincos2d(grid, 18)
