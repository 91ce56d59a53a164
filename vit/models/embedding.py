"""From pixels to tokens: patches, and where they came from. Shapes: b c h w pixels, n tokens, d width."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.errors import UserError
from vit.shapes import Float

PosResize = Literal["bilinear_corners", "bilinear", "bicubic_corners", "bicubic", "bicubic_offset"]
"""How a table of positions meets another grid; each name is the rule of a published source.

bilinear_corners: Google's code (scipy.ndimage.zoom, order 1), which is bilinear with aligned corners;
bilinear: half-pixel centres; bicubic_corners: torchvision; bicubic: DeiT and Hugging Face;
bicubic_offset: DINOv2, bicubic by the scale factor (size + 0.1) / old size.
"""


class PatchEmbed(nn.Module):
    """Cuts images into square patches and projects each to `width` (ViT, eq. 1, the matrix E)."""

    def __init__(self, in_channels: int, patch_size: int, width: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(in_channels, width, patch_size, stride=patch_size)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d gh gw"]:
        height, width = images.shape[-2:]
        if height % self.patch_size or width % self.patch_size:
            raise UserError(
                f"an image of {height}x{width} pixels does not divide into patches of "
                f"{self.patch_size}: resize or pad it to multiples of {self.patch_size}"
            )
        return self.proj(images)


def resize_grid(
    table: Float[Tensor, "1 n d"], old: tuple[int, int], new: tuple[int, int], rule: PosResize
) -> Float[Tensor, "1 m d"]:
    """Resamples a position table without prefix slots from grid `old` to grid `new` (height, width)."""
    if old == new:
        return table
    # Interpolation is done in float32: a bfloat16 table would lose half of its digits to rounding.
    grid = table.float().unflatten(1, old).permute(0, 3, 1, 2)  # 1 d h w
    mode, corners = ("bilinear" if rule.startswith("bilinear") else "bicubic"), "corners" in rule
    if rule == "bicubic_offset":
        factors = ((new[0] + 0.1) / old[0], (new[1] + 0.1) / old[1])
        grid = F.interpolate(grid, scale_factor=factors, mode=mode, align_corners=False)
    else:
        grid = F.interpolate(grid, size=new, mode=mode, align_corners=corners)
    return grid.flatten(2).transpose(1, 2).to(table.dtype)


def sincos2d(
    grid: tuple[int, int], width: int, temperature: float = 10_000.0
) -> Float[Tensor, "1 n d"]:
    """Fixed sine and cosine positions in the order sin x, cos x, sin y, cos y.

    Source: big_vision, models/vit.py, posemb_sincos_2d (used by arXiv:2205.01580).
    """
    if width % 4 or width < 8:
        raise UserError(
            f"width={width} must be a multiple of 4, at least 8, for sincos2d positions"
        )
    # On the CPU whatever the default device: a model built on the meta device needs them all the same.
    counts = [torch.arange(n, dtype=torch.float64, device="cpu") for n in (width // 4, *grid)]
    omega = temperature ** -(counts[0] / (width // 4 - 1))
    y, x = torch.meshgrid(counts[1], counts[2], indexing="ij")
    phases = [axis.flatten()[:, None] * omega for axis in (x, y)]
    waves = [wave(phase) for phase in phases for wave in (torch.sin, torch.cos)]
    return torch.cat(waves, dim=1).float()[None]
