"""Several crops of one image: two global ones and small local ones (multi-crop: SwAV,
arXiv:2006.09882; its changes: dinov2/data/augmentations.py).

Shapes: c channels, h w pixels.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from vit.data.photo import Photo
from vit.data.transforms import TrainTransform, inception_box
from vit.errors import AT_LEAST_ONE, NOT_NEGATIVE, UserError, check_range
from vit.preprocessing import Size
from vit.seeds import seeded

GLOBAL_CROPS = 2
BLURRED = (1.0, 0.1, 0.5)
"""Probability of a blur in the first and second global crop and in a local one (DINO,
arXiv:2104.14294, appendix C). DINOv2's code says the same and does the opposite: it passes 1 - p
to torchvision's RandomApply."""
NUMBER = 8
"""Bytes of the number of a sample."""


@dataclass(frozen=True, kw_only=True)
class Crops:
    """Crops of an image (dinov2/data/augmentations.py)."""

    local: int = 8
    """Local crops, which the student alone sees."""
    local_size: int = 96
    """Pixels of their side, a multiple of the patch size."""
    global_area: tuple[float, float] = (0.32, 1.0)
    """Smallest and largest share of the image's area in a global crop."""
    local_area: tuple[float, float] = (0.05, 0.32)
    """The same of a local crop."""
    flip: bool = True
    """Mirrors each crop with probability 1/2."""
    colors: bool = True
    """Changes the colours with probability 0.8, makes 0.2 of the crops gray, and solarizes 0.2 of
    the second global ones."""
    blur: bool = True
    """Blurs crops, by 0.1 to 2 pixels."""

    def __post_init__(self) -> None:
        check_range("data.crops.local", self.local, NOT_NEGATIVE)
        check_range("data.crops.local_size", self.local_size, AT_LEAST_ONE)
        for name in ("global_area", "local_area"):
            low, high = getattr(self, name)
            if not 0 < low <= high <= 1:
                raise UserError(
                    f"data.crops.{name}={low, high} must be 0 < smallest <= largest <= 1"
                )

    def sizes(self, image_size: Size) -> list[Size]:
        """Height and width of each crop, the global ones first."""
        return [image_size] * GLOBAL_CROPS + [(self.local_size, self.local_size)] * self.local


@dataclass(frozen=True, kw_only=True)
class MultiCrop(TrainTransform):
    """RGB image -> the crops, one after the other in one row of bytes, then the sample's number."""

    crops: Crops = field(default_factory=Crops)

    def __call__(self, image: Any, bits: Any, image_size: Size, **_: Any) -> Tensor:
        assert isinstance(image, Photo)
        whole, parts = Photo(image.image()), []  # decoded once, for all crops
        with seeded(bits):
            for place, size in enumerate(self.crops.sizes(image_size)):
                area = self.crops.local_area if place >= GLOBAL_CROPS else self.crops.global_area
                box = inception_box(whole.height, whole.width, area)
                pixels = whole.crop(box, size, "bicubic")
                if self.crops.flip and torch.rand(1).item() < 0.5:
                    pixels = pixels.flip(-1)
                change = self._changes_of[min(place, GLOBAL_CROPS)]
                parts.append(change(pixels).flatten())
        number = torch.tensor([bits >> 1]).view(torch.uint8)  # below 2^63
        return torch.cat([*parts, number])

    @cached_property
    def _changes_of(self) -> list[nn.Module]:
        """Changes of the first global crop, the second one, and a local one."""
        from torchvision.transforms import v2  # heavy

        jitter = v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8)
        colors = [jitter, v2.RandomGrayscale(p=0.2)] if self.crops.colors else []
        blur = v2.GaussianBlur(kernel_size=9, sigma=(0.1, 2.0))
        blurs = [[v2.RandomApply([blur], p=p)] if self.crops.blur else [] for p in BLURRED]
        solarize = [v2.RandomSolarize(threshold=128, p=0.2)] if self.crops.colors else []
        return [nn.Sequential(*colors, *blurs[i], *solarize * (i == 1)) for i in range(3)]
