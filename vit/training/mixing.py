"""Mixup and CutMix on a batch, on its device.

Shapes: b batch, c channels, h w pixels, k classes.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.errors import UserError
from vit.ranges import NOT_NEGATIVE, check_range
from vit.shapes import Float
from vit.training.draws import StepDraws


@dataclass(kw_only=True)
class Mixing:
    """Blends every image and its label with another one's in the batch.

    In a run each image has its own mixing weight, and with both switched on gets either, with equal
    chance, as with timm's `mode="elem"` and its switch probability of 0.5; partners stand half a
    step apart (`vit.seeds.places`). So they do not depend on the number of processes. Without
    `StepDraws`, and in runs that were begun before there were any, one weight per batch is drawn
    from torch's CPU generator, and the partner is the image before, as in big_vision.
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
        """Mixed images and targets. `labels` are indices `b` or distributions `b k`."""
        targets = F.one_hot(labels, num_classes) if labels.dim() == 1 else labels
        targets = targets.to(torch.float32)
        if draws is not None:
            return self._each(images, targets, draws)
        cut = self.cutmix > 0 and (self.mixup == 0 or torch.rand(()).item() < 0.5)
        alpha = self.cutmix if cut else self.mixup
        keep = torch.distributions.Beta(alpha, alpha).sample().item()
        partner = images.roll(1, 0)
        if cut:
            images, keep = _paste(images, partner, keep)
        else:
            images = images.lerp(partner, 1 - keep)
        return images, targets.lerp(targets.roll(1, 0), 1 - keep)

    def _each(
        self, images: Float[Tensor, "b c h w"], targets: Float[Tensor, "b k"], draws: StepDraws
    ) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b k"]]:
        """A weight, and a box, for each image."""
        b, _, height, width = images.shape
        shift = b // 2
        partners = torch.arange(b).roll(shift).to(images.device)
        numbers = draws.uniforms("mixing", 3).double()  # switch, centre's row and column
        keep = torch.ones(b, dtype=torch.float64)
        if self.mixup > 0:
            keep = draws.beta("mixup", self.mixup)
        cut = torch.zeros(b, dtype=torch.bool)
        bounds = torch.zeros(4, b, dtype=torch.int64)
        if self.cutmix > 0:
            cut = numbers[:, 0] < 0.5 if self.mixup > 0 else ~cut
            side = (1 - draws.beta("cutmix", self.cutmix)).sqrt()
            for axis, size in enumerate((height, width)):
                centre = (numbers[:, 1 + axis] * size).long()
                half = (side * size).long() // 2
                bounds[2 * axis] = (centre - half).clamp(min=0)
                bounds[2 * axis + 1] = (centre + half).clamp(max=size)
            area = (bounds[1] - bounds[0]) * (bounds[3] - bounds[2])
            keep = torch.where(cut, 1 - area / (height * width), keep)
        weight = torch.where(cut, 0, 1 - keep).to(images)[:, None, None, None]
        if self.cutmix > 0:
            boxed, (top, bottom, left, right) = cut.to(images.device), bounds.to(images.device)
            boxes = (
                _between(top, bottom, height)[:, :, None] & _between(left, right, width)[:, None]
            )
            boxes = boxes & boxed[:, None, None]
            weight = torch.where(boxes[:, None], 1, weight)
        mixed = images.lerp(images[partners], weight)
        return mixed, targets.lerp(targets[partners], (1 - keep).to(targets)[:, None])


def check_pairs(batch_size: int, global_batch: int) -> None:
    """UserError where partners would be in batches of different processes."""
    if batch_size % 2 and batch_size != global_batch:
        raise UserError(
            f"with mixup or cutmix, a process's batch of {batch_size} images must be even where a "
            f"step has several batches ({global_batch} images); choose an even --data.batch_size"
        )


def _between(low: Tensor, high: Tensor, size: int) -> Tensor:
    """Whether each of `size` places is in a range: `b`, `b` -> `b size`."""
    places = torch.arange(size, device=low.device)
    return (places >= low[:, None]) & (places < high[:, None])


def _paste(images: Tensor, partner: Tensor, keep: float) -> tuple[Tensor, float]:
    """The partner's pixels in one box, and the share of the area that is still the image's own.

    The box has (1 - keep) of the area, rounded down to even sides, and any centre; its part outside
    the image is cut off.
    """
    height, width = images.shape[-2:]
    side = (1 - keep) ** 0.5
    bounds = []
    for size in (height, width):
        centre, half = int(torch.randint(size, ())), int(size * side) // 2
        bounds.append((max(centre - half, 0), min(centre + half, size)))
    (top, bottom), (left, right) = bounds
    images = images.clone()
    images[..., top:bottom, left:right] = partner[..., top:bottom, left:right]
    return images, 1 - (bottom - top) * (right - left) / (height * width)
