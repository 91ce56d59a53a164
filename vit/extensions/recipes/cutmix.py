"""CutMix (arXiv:1905.04899): a box of another image in the place of the image's own pixels.

Shapes: b batch, h w pixels.
"""

import math

import torch
from torch import Tensor

from vit.training.draws import StepDraws
from vit.training.mixing import Mixing


def cut_boxes(
    mixing: Mixing, draws: StepDraws, size: tuple[int, int], keep: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """The row of the table `mixers`."""
    cut, bounds = _boxes(mixing, draws, size)
    keep = torch.where(cut, 1 - _areas(bounds) / math.prod(size), keep)
    weight = torch.where(cut.to(weight.device)[:, None, None, None], 0, weight)
    return keep, torch.where(_inside(bounds.to(weight.device), *size), 1, weight)


def _boxes(mixing: Mixing, draws: StepDraws, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The images that get a box, bool `b`; its top, bottom, left and right, or 0, `4 b`."""
    numbers = draws.uniforms("mixing", 3).double().T  # switch, centre's row and column
    cut = numbers[0] < (0.5 if mixing.mixup > 0 else 1)
    side = (1 - draws.beta("cutmix", mixing.cutmix)).sqrt()
    bounds = []
    for number, length in zip(numbers[1:], size, strict=True):
        centre, half = (number * length).long(), (side * length).long() // 2
        bounds += [(centre - half).clamp(min=0), (centre + half).clamp(max=length)]
    return cut, torch.where(cut, torch.stack(bounds), 0)


def _areas(bounds: Tensor) -> Tensor:
    """Pixels of the boxes: `4 b` -> `b`."""
    top, bottom, left, right = bounds
    return (bottom - top) * (right - left)


def _inside(bounds: Tensor, height: int, width: int) -> Tensor:
    """The pixels in the box of their image: `4 b` -> bool `b 1 h w`."""
    top, bottom, left, right = bounds[:, :, None]
    rows = torch.arange(height, device=bounds.device)
    columns = torch.arange(width, device=bounds.device)
    in_rows, in_columns = (rows >= top) & (rows < bottom), (columns >= left) & (columns < right)
    return (in_rows[:, :, None] & in_columns[:, None])[:, None]
