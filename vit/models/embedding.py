"""Patch embedding and positions: pixels become tokens.

Shapes: b batch, c channels, h w pixels, gh gw patches, n = gh gw tokens, d width.
"""

from typing import Required, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.errors import UserError
from vit.models.backbone import check_channels
from vit.models.config import PosResize, ViTConfig
from vit.models.initialization import lecun_normal_
from vit.models.resnet import HybridRoot, HybridStem, init_convolutions
from vit.shapes import Float


class Interpolation(TypedDict, total=False):
    """Arguments of `torch.nn.functional.interpolate`."""

    mode: Required[str]
    align_corners: bool
    antialias: bool


INTERPOLATIONS: dict[str, Interpolation] = {
    "bilinear": {"mode": "bilinear"},
    "bilinear_antialias": {"mode": "bilinear", "antialias": True},
    "bilinear_corners": {"mode": "bilinear", "align_corners": True},
    "bicubic": {"mode": "bicubic"},
    "bicubic_corners": {"mode": "bicubic", "align_corners": True},
    "bicubic_antialias": {"mode": "bicubic", "antialias": True},
}
"""Rule -> how a table is resampled; bicubic_offset has a scale factor of its own."""


class PatchEmbed(nn.Module):
    """Splits images into square patches and projects each to `width` (ViT, eq. 1, the matrix E).

    A hybrid splits the feature map of a ResNet stem, `backbone`, instead (section 3.1).
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.in_channels = channels = config.in_channels
        self.patch_size = config.patch_size
        self.backbone = None
        if config.stem_depths is not None:
            if config.stem_depths:
                self.backbone = HybridStem(channels, config.stem_depths, config.ws_mode)
            else:
                self.backbone = HybridRoot(channels, config.ws_mode)
        side = config.patch_size // config.stem_stride
        self.proj = nn.Conv2d(
            config.stem_channels, config.width, side, stride=side, bias=not config.pre_norm
        )

    def forward(
        self, images: Float[Tensor, "b c h w"], recompute: bool = False
    ) -> Float[Tensor, "b d gh gw"]:
        check_channels(images, self.in_channels)
        height, width = images.shape[-2:]
        if height % self.patch_size or width % self.patch_size:
            raise UserError(
                f"an image of {height}x{width} pixels does not divide into patches of "
                f"{self.patch_size}: resize or pad it to multiples of {self.patch_size}"
            )
        return self.proj(images if self.backbone is None else self.backbone(images, recompute))

    def init_weights(self) -> None:
        """Flax's default for convolutions."""
        init_convolutions(self)
        lecun_normal_(self.proj)


def resize_grid(
    table: Float[Tensor, "1 n d"], old: tuple[int, int], new: tuple[int, int], rule: PosResize
) -> Float[Tensor, "1 m d"]:
    """Resamples the patch positions of a table from grid `old` to `new` (rows, columns)."""
    if old == new:
        return table
    # At least float32: in bfloat16 every step of the interpolation would lose digits.
    patches = table if table.dtype == torch.float64 else table.float()
    grid = patches.reshape(1, *old, -1).permute(0, 3, 1, 2)  # 1 d h w
    if rule == "bicubic_offset":
        factors = ((new[0] + 0.1) / old[0], (new[1] + 0.1) / old[1])
        grid = F.interpolate(grid, scale_factor=factors, mode="bicubic", align_corners=False)
    else:
        grid = F.interpolate(grid, size=new, **INTERPOLATIONS[rule])
    return grid.flatten(2).transpose(1, 2).to(table.dtype)


def sincos2d(
    grid: tuple[int, int], width: int, temperature: float = 10_000.0
) -> Float[Tensor, "1 n d"]:
    """Fixed sine-cosine positions in the order sin x, cos x, sin y, cos y.

    Source: big_vision, models/vit.py, posemb_sincos_2d (used by arXiv:2205.01580).
    """
    if width % 4 or width < 8:
        raise UserError(
            f"width={width} must be a multiple of 4, at least 8, for pos_embed='sincos2d'"
        )
    # Always on the CPU: files do not contain them, so a meta model would never get them.
    counts = [torch.arange(n, dtype=torch.float64, device="cpu") for n in (width // 4, *grid)]
    omega = temperature ** -(counts[0] / (width // 4 - 1))
    y, x = torch.meshgrid(counts[1], counts[2], indexing="ij")
    phases = [axis.flatten()[:, None] * omega for axis in (x, y)]
    waves = [wave(phase) for phase in phases for wave in (torch.sin, torch.cos)]
    return torch.cat(waves, dim=1).float()[None]
