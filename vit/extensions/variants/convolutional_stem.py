"""A stem of 3x3 convolutions before the layers, as in networks that are trained in seconds.

Shapes: b batch, c channels, h w pixels, k side of a window, d width, p = c k^2 numbers of a window.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from vit.errors import UserError
from vit.extensions.variants.options import Options
from vit.models.config import ViTConfig
from vit.models.embedding import PatchEmbed
from vit.models.initialization import lecun_normal_
from vit.shapes import Float

SMALLEST = 5e-4
"""Added to the variance of a direction: those that hardly vary are not amplified."""


@dataclass(frozen=True, kw_only=True)
class ConvStemOptions(Options):
    """Options of a stem of convolutions."""

    from_zero = ("window",)
    widths: tuple[int, ...] = (64, 128)
    """Channels of each block; a block halves rows and columns."""
    convolutions: int = 2
    """Of each block: one before its pooling, the others after it."""
    window: int = 2
    """Side of the windows of pixels that are whitened first; 0 leaves that out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        widths = cast(object, self.widths)
        if not isinstance(widths, list | tuple) or not widths:
            raise UserError(f"widths={widths!r} must be channels of one block or more: [64, 128]")
        for width in cast(list[object], widths):
            if type(width) is not int or width < 1:
                raise UserError(f"widths={widths!r} must be whole numbers above 0")
        object.__setattr__(self, "widths", tuple(self.widths))


class Whitening(nn.Module):
    """The windows of an image in uncorrelated directions of equal variance, with both signs.

    The directions are those of the images of the first training batch, of all processes, and stay
    as they are; the thresholds are learned. tysam-code's and K. Jordan's first layer
    (arXiv:2404.00498, section 3.2). Until then they are the pixels themselves.
    """

    directions: Tensor

    def __init__(self, channels: int, side: int) -> None:
        super().__init__()
        self.side, self.looked = side, False
        window = channels * side**2
        self.register_buffer("directions", torch.eye(window).view(window, channels, side, side))
        self.bias = nn.Parameter(torch.zeros(2 * window))

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 2p h w"]:
        if self.training and not self.looked:
            self.fit_once(images)
        images = F.pad(images, (0, self.side - 1, 0, self.side - 1))
        return F.conv2d(images, torch.cat([self.directions, -self.directions]), self.bias)

    @torch.compiler.disable()
    @torch.no_grad()
    def fit_once(self, images: Float[Tensor, "b c h w"]) -> None:
        """Sets the directions by the principal components of windows, unless they are set."""
        self.looked = True  # else each step would wait for the device
        if not torch.equal(
            self.directions.flatten(1), torch.eye(len(self.directions)).to(self.directions)
        ):
            return
        with torch.autocast(images.device.type, enabled=False):
            windows = F.unfold(images.float(), self.side).transpose(1, 2).flatten(0, 1)
            products = windows.T @ windows / len(windows)
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(products)
            products /= dist.get_world_size()
        # On the CPU, in float64: the same directions on every machine, but for their signs.
        variances, directions = torch.linalg.eigh(products.double().cpu())
        scaled = directions.mT / (variances + SMALLEST).sqrt()[:, None]
        self.directions.copy_(scaled.view_as(self.directions))


class BatchNorm(nn.Module):
    """BatchNorm, whose statistics are frozen with its weights, and have no counter: files of
    weights have only numbers that a network computes with."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        learns = self.training and self.weight.requires_grad
        moments = self.running_mean, self.running_var
        return F.batch_norm(x, *moments, self.weight, self.bias, training=learns)


class ConvBlock(nn.Module):
    """3x3 convolutions, each with BatchNorm and GELU; the maps of the first one are halved by
    their largest values before the norm (arXiv:2404.00498, section 3.1)."""

    def __init__(self, channels: int, width: int, convolutions: int) -> None:
        super().__init__()
        widths = [channels] + [width] * convolutions
        self.convs = nn.ModuleList(
            nn.Conv2d(*ends, 3, padding=1, bias=False) for ends in pairwise(widths)
        )
        self.norms = nn.ModuleList(BatchNorm(width) for _ in self.convs)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d h/2 w/2"]:
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = conv(x)
            x = F.gelu(norm(x if i else F.max_pool2d(x, 2)))
        return x


class ConvStem(nn.Module):
    """Whitened windows, then blocks of convolutions, computed with channels last."""

    def __init__(self, channels: int, options: ConvStemOptions) -> None:
        super().__init__()
        self.whitening = Whitening(channels, options.window) if options.window else None
        channels = 2 * channels * options.window**2 or channels
        widths = [channels, *options.widths]
        self.blocks = nn.ModuleList(
            ConvBlock(*ends, options.convolutions) for ends in pairwise(widths)
        )

    def forward(
        self, images: Float[Tensor, "b c h w"], recompute: bool = False
    ) -> Float[Tensor, "b d gh gw"]:
        x = images.contiguous(memory_format=torch.channels_last)
        if self.whitening is not None:
            x = F.gelu(self.whitening(x))
        for block in self.blocks:  # not computed again: BatchNorm would count a batch twice
            x = block(x)
        return x

    def init_weights(self) -> None:
        """Filters that pass their first inputs on (arXiv:2404.00498, section 3.3); the others are
        LeCun normal."""
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                lecun_normal_(part)
                nn.init.dirac_(part.weight[: part.in_channels])


class Unchanged(nn.Identity):
    """No projection; `weight` has the device and type that new layers get."""

    def __init__(self) -> None:
        super().__init__()
        # On the CPU: files do not contain it, so a meta model would never get it.
        self.register_buffer("weight", torch.empty(0, device="cpu"), persistent=False)


class ConvPatchEmbed(PatchEmbed):
    """Patches of the maps of a ConvStem, `backbone`; maps of the size of tokens are tokens."""

    def __init__(self, options: ConvStemOptions, config: ViTConfig) -> None:
        super().__init__(config)
        stride = 2 ** len(options.widths)
        if config.stem_depths is not None:
            raise UserError("variant.stem replaces a ResNet's stem: leave out stem_depths")
        if config.patch_size % stride:
            raise UserError(
                f"variant.stem, convolutions: patch_size={config.patch_size} is not a multiple of "
                f"{stride}, the stride of widths={list(options.widths)}"
            )
        self.backbone = ConvStem(config.in_channels, options)  # pyright: ignore
        side, channels, d = config.patch_size // stride, options.widths[-1], config.width
        self.proj = Unchanged()  # pyright: ignore
        if (side, channels) != (1, d):
            self.proj = nn.Conv2d(channels, d, side, stride=side, bias=not config.pre_norm)

    def init_weights(self) -> None:
        self.backbone.init_weights()  # pyright: ignore
        if isinstance(self.proj, nn.Conv2d):
            lecun_normal_(self.proj)
