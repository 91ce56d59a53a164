"""torchvision's classifiers as baselines, by names such as torchvision/resnet50.

torchvision/efficientnet_l2 is built from torchvision's parts: EfficientNet with width 4.3 and depth
5.3, the model of Noisy Student (arXiv:1911.04252, appendix A.1) in Table 2 of the ViT paper.
"""

from functools import partial
from typing import TYPE_CHECKING

from vit.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from torch import nn

PREFIX = "torchvision/"
L2 = "efficientnet_l2"
L2_SIZE = 475
"""Its training resolution in pixels."""
SEVERAL_OUTPUTS = ("googlenet", "inception_v3")
"""Networks that need special losses for training."""


def is_baseline(name: str) -> bool:
    """Whether the name starts with torchvision/."""
    return name.lower().startswith(PREFIX)


def baseline_name(name: str) -> str:
    """The name without its prefix. UserError for an unknown one."""
    from torchvision import models

    names = [n for n in models.list_models(module=models) if n not in SEVERAL_OUTPUTS] + [L2]
    short = name[len(PREFIX) :].lower()
    if short not in names:
        full = [PREFIX + n for n in names]
        hint = did_you_mean(name, full) or "; such as torchvision/resnet50, torchvision/vit_b_16"
        raise UserError(f"unknown model {name!r}{hint}")
    return short


def native_size(name: str) -> tuple[int, int]:
    """(height, width) at which a baseline was published, in pixels."""
    from torchvision.models import get_model_weights

    short = baseline_name(name)
    if short == L2:
        return L2_SIZE, L2_SIZE
    published = next(iter(get_model_weights(short)), None)
    side = 224 if published is None else published.transforms.keywords["crop_size"]
    return side, side


def build_baseline(name: str, image_size: tuple[int, int], num_classes: int = 1000) -> "nn.Module":
    """A torchvision classifier with fresh weights, for images of (height, width) pixels."""
    from torchvision.models import get_model_builder

    short = baseline_name(name)
    if short == L2:
        return _efficientnet_l2(num_classes)
    options = {"weights": None, "num_classes": num_classes}
    if short.startswith(("vit_", "maxvit")):
        options["image_size" if short.startswith("vit_") else "input_size"] = image_size
    if short.startswith("vit_"):
        _check_square(name, image_size, 14 if short.endswith("14") else int(short[-2:]))
        options["image_size"] = image_size[0]
    return get_model_builder(short)(**options)


def _check_square(name: str, image_size: tuple[int, int], patch_size: int) -> None:
    height, width = image_size
    if height != width or height % patch_size:
        raise UserError(
            f"{name} takes square images of a multiple of {patch_size} pixels, not {height}x{width}"
        )


def _efficientnet_l2(num_classes: int) -> "nn.Module":
    from torchvision.models.efficientnet import EfficientNet, MBConvConfig

    block = partial(MBConvConfig, width_mult=4.3, depth_mult=5.3)
    # Expansion, kernel, stride, channels in and out, layers: those of EfficientNet-B0.
    stages = [
        block(1, 3, 1, 32, 16, 1),
        block(6, 3, 2, 16, 24, 2),
        block(6, 5, 2, 24, 40, 2),
        block(6, 3, 2, 40, 80, 3),
        block(6, 5, 1, 80, 112, 3),
        block(6, 5, 2, 112, 192, 4),
        block(6, 3, 1, 192, 320, 1),
    ]
    return EfficientNet(stages, dropout=0.5, num_classes=num_classes)
