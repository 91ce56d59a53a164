"""Mixup and CutMix on a batch, on its device.

Shapes: b batch, c channels, h w pixels, k classes.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.errors import NOT_NEGATIVE, UserError, check_range
from vit.shapes import Float
from vit.training.draws import StepDraws, batch_draws


@dataclass(kw_only=True)
class Mixing:
    """Blends every image and its label with another one's in the batch.

    Each image has its own mixing weight, and with both switched on gets either, with equal chance,
    as with timm's `mode="elem"` and its switch probability of 0.5. Partners stand half a step apart
    (`vit.seeds.places`), so that they do not depend on the number of processes.
    """

    mixup: float = 0.0
    """Alpha of mixup (arXiv:1710.09412): weight ~ Beta(alpha, alpha); 0 switches it off."""
    cutmix: float = 0.0
    """Alpha of CutMix (arXiv:1905.04899): share of the area that stays ~ Beta(alpha, alpha); 0
    switches it off."""

    def __post_init__(self) -> None:
        for name in ("mixup", "cutmix"):
            check_range(name, getattr(self, name), NOT_NEGATIVE)

    def __bool__(self) -> bool:
        return self.mixup > 0 or self.cutmix > 0

    def __call__(
        self,
        images: Float[Tensor, "b c h w"],
        labels: Tensor,
        num_classes: int,
        draws: StepDraws | None = None,
    ) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b k"]]:
        """Mixed images and targets. `labels` are indices `b` or distributions `b k`; without
        `draws`, the seed comes from torch's CPU generator.
        """
        targets = F.one_hot(labels, num_classes) if labels.dim() == 1 else labels
        targets = targets.to(torch.float32)
        b, _, *size = images.shape
        draws = draws or batch_draws(b)
        if self.mixup > 0:
            keep = draws.beta("mixup", self.mixup)
        else:
            keep = torch.ones(b, dtype=torch.float64)
        weight = (1 - keep).to(images)[:, None, None, None]
        if self.cutmix > 0:
            cut, bounds = self._boxes(draws, *size)
            keep = torch.where(cut, 1 - _areas(bounds) / math.prod(size), keep)
            weight = torch.where(cut.to(images.device)[:, None, None, None], 0, weight)
            weight = torch.where(_inside(bounds.to(images.device), *size), 1, weight)
        partners = torch.arange(b).roll(b // 2).to(images.device)
        mixed = images.lerp(images[partners], weight)
        return mixed, targets.lerp(targets[partners], (1 - keep).to(targets)[:, None])

    def _boxes(self, draws: StepDraws, height: int, width: int) -> tuple[Tensor, Tensor]:
        """The images that get a box, bool `b`; its top, bottom, left and right, or 0, `4 b`."""
        numbers = draws.uniforms("mixing", 3).double().T  # switch, centre's row and column
        cut = numbers[0] < (0.5 if self.mixup > 0 else 1)
        side = (1 - draws.beta("cutmix", self.cutmix)).sqrt()
        bounds = []
        for number, size in zip(numbers[1:], (height, width), strict=True):
            centre, half = (number * size).long(), (side * size).long() // 2
            bounds += [(centre - half).clamp(min=0), (centre + half).clamp(max=size)]
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


def check_pairs(batch_size: int, global_batch: int) -> None:
    """UserError where partners would be in batches of different processes."""
    if batch_size % 2 and batch_size != global_batch:
        raise UserError(
            f"with mixup or cutmix, a process's batch of {batch_size} images must be even where a "
            f"step has several batches ({global_batch} images); choose an even --data.batch_size"
        )
