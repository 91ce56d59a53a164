"""Mixup and CutMix on a batch, on its device.

Shapes: b batch, c channels, h w pixels, k classes.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.ranges import NOT_NEGATIVE, check_range
from vit.shapes import Float


@dataclass(kw_only=True)
class Mixing:
    """Blends every image and its label with its neighbour's in the batch.

    One mixing weight per batch, from torch's CPU generator, and the image before as partner, as in
    big_vision. With both switched on, each batch gets either, with equal chance (DeiT's switch
    probability of 0.5).
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
        self, images: Float[Tensor, "b c h w"], labels: Tensor, num_classes: int
    ) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b k"]]:
        """Mixed images and targets. `labels` are indices `b` or distributions `b k`."""
        targets = F.one_hot(labels, num_classes) if labels.dim() == 1 else labels
        targets = targets.to(torch.float32)
        cut = self.cutmix > 0 and (self.mixup == 0 or torch.rand(()).item() < 0.5)
        alpha = self.cutmix if cut else self.mixup
        keep = torch.distributions.Beta(alpha, alpha).sample().item()
        partner = images.roll(1, 0)
        if cut:
            images, keep = _paste(images, partner, keep)
        else:
            images = images.lerp(partner, 1 - keep)
        return images, targets.lerp(targets.roll(1, 0), 1 - keep)


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
