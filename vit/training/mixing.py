"""Mixup on a batch, on its device, and other blends of its images by a table.

Shapes: b batch, c channels, h w pixels, k classes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.errors import NOT_NEGATIVE, UserError, check_range
from vit.shapes import Float
from vit.tables import resolve, rows
from vit.training.draws import StepDraws, batch_draws

Mixer = Callable[["Mixing", StepDraws, tuple[int, int], Tensor, Tensor], tuple[Tensor, Tensor]]
"""A row of the table `mixers`, under its field of Mixing. Changes, for images of (height, width),
the share `b` of an image's own label and the weight `b 1 h w` of its partner's pixels."""


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
        `draws`, the seed comes from torch's CPU generator. UserError for partners in batches of
        different processes.
        """
        targets = F.one_hot(labels, num_classes) if labels.dim() == 1 else labels
        targets = targets.to(torch.float32)
        b, _, height, width = images.shape
        draws = draws or batch_draws(b)
        if b % 2 and b != draws.global_batch:
            raise UserError(
                f"with mixup or cutmix, data.batch_size={b} must be even, as a step of "
                f"{draws.global_batch} images has several batches; choose an even --data.batch_size"
            )
        if self.mixup > 0:
            keep = draws.beta("mixup", self.mixup)
        else:
            keep = torch.ones(b, dtype=torch.float64)
        weight = (1 - keep).to(images)[:, None, None, None]
        for name, row in rows("mixers").items():
            if getattr(self, name) > 0:
                mixer: Mixer = resolve(row)
                keep, weight = mixer(self, draws, (height, width), keep, weight)
        partners = torch.arange(b).roll(b // 2).to(images.device)
        mixed = images.lerp(images[partners], weight)
        return mixed, targets.lerp(targets[partners], (1 - keep).to(targets)[:, None])
