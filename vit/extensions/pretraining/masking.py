"""Masks on tensors: what is corrupted, what is kept, what is predicted.

Masked patch prediction is of ViT, appendix B.1.2; masked autoencoders are arXiv:2111.06377.

Shapes: b batch, c channels, h w pixels, n patches, m corrupted patches an image, d width, o answers
a patch, p patch size.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vit.errors import Range
from vit.preprocessing import Preprocess
from vit.shapes import Float, Int

Scale = Preprocess | None
"""Has normalised images; None: they are in [0, 1]."""

NUM_COLORS = 512
"""Three bits for each of red, green and blue; the class is 64 red + 8 green + blue."""

MASKED, SWAPPED = 0.8, 0.1
"""Shares of the corrupted patches that become [mask] or another patch; the rest stays as it is."""

FRACTION = Range("in (0, 1)", lambda value: 0 < value < 1)

DRAWS = 3
"""Uniform numbers of each patch."""


@dataclass(frozen=True, kw_only=True)
class Corruption:
    """The corrupted patches of a batch, and their replacements."""

    chosen: Int[Tensor, "b m"]
    """Indices of the corrupted patches, in no order."""
    seen: Int[Tensor, "b n_minus_m"]
    """Indices of the others."""
    source: Int[Tensor, "b m"]
    """The patch of the same image whose embedding each gets: another one, or its own."""
    masked: Tensor
    """`b m`, whether it gets [mask] instead."""

    def __call__(
        self, patches: Float[Tensor, "b n d"], mask_token: Float[Tensor, " d"]
    ) -> Float[Tensor, "b n d"]:
        """The corrupted embeddings."""
        token = mask_token.to(patches.dtype)
        changed = torch.where(self.masked[..., None], token, rows(patches, self.source))
        return patches.scatter(1, _for_rows(self.chosen, patches), changed)

    def to(self, device: torch.device) -> "Corruption":
        parts = {name: value.to(device, non_blocking=True) for name, value in vars(self).items()}
        return Corruption(**parts)


def draw_corruption(uniforms: Float[Tensor, "b 3 n"], fraction: float) -> Corruption:
    """A corruption from uniform numbers in [0, 1): equally many patches of every image.

    The patch to swap with is of the same image, so that the batch makes no difference.
    """
    n = uniforms.shape[-1]
    m = max(round(fraction * n), 1)
    chosen, seen = uniforms[:, 0].argsort(dim=-1).tensor_split([m], dim=-1)
    kind = uniforms[:, 1, :m]
    # 1 to n - 1 places further on, and around the end.
    other = (chosen + 1 + (uniforms[:, 2, :m] * (n - 1)).long()) % n
    swapped = (kind >= MASKED) & (kind < MASKED + SWAPPED)
    source = torch.where(swapped, other, chosen)
    return Corruption(chosen=chosen, seen=seen, source=source, masked=kind < MASKED)


def draw_masks(uniforms: Float[Tensor, "b 1 n"], number: int) -> Corruption:
    """Masks at all patches but the `number` of them with the smallest draws."""
    seen, chosen = uniforms[:, 0].argsort(dim=-1).tensor_split([number], dim=-1)
    masked = torch.ones_like(chosen, dtype=torch.bool)
    return Corruption(chosen=chosen, seen=seen, source=chosen, masked=masked)


def rows(values: Float[Tensor, "b n d"], index: Int[Tensor, "b m"]) -> Float[Tensor, "b m d"]:
    """The rows of each image that `index` names."""
    return values.gather(1, _for_rows(index, values))


def _for_rows(index: Tensor, values: Tensor) -> Tensor:
    return index[..., None].expand(-1, -1, values.shape[-1])


def color_classes(
    pixels: Int[Tensor, "b 3 h w"], patch_size: int, side: int
) -> Int[Tensor, "b n o"]:
    """Colour classes of each patch, downsized to `side` x `side` = o by exact means."""
    k = patch_size // side
    b, c, h, w = pixels.shape
    sums = pixels.view(b, c, h // k, k, w // k, k).sum(dim=(3, 5))
    red, green, blue = (sums // (32 * k * k)).unbind(1)
    return patch_pixels((64 * red + 8 * green + blue)[:, None], side)


def color_pixels(classes: Int[Tensor, "b n o"], patch_size: int) -> Int[Tensor, "b n c_p_p"]:
    """Patches in the middle of each class's range of colours, for people to look at."""
    side = math.isqrt(classes.shape[-1])
    bits = torch.stack([classes // 64, classes // 8 % 8, classes % 8], dim=2)  # b n 3 o
    blocks = (32 * bits + 16).unflatten(-1, (side, side))
    k = patch_size // side
    return blocks.repeat_interleave(k, dim=-2).repeat_interleave(k, dim=-1).flatten(2)


def from_patches(patches: Tensor, size: tuple[int, int]) -> Tensor:
    """`b n (c p p)` -> `b c h w`, the inverse of `patch_pixels`, for images of `size` (h, w)."""
    (height, width), (b, n, _) = size, patches.shape
    p = math.isqrt(height * width // n)
    blocks = patches.view(b, height // p, width // p, -1, p, p)
    return blocks.permute(0, 3, 1, 4, 2, 5).reshape(b, -1, height, width)


def patch_pixels(images: Float[Tensor, "b c h w"], patch_size: int) -> Float[Tensor, "b n c_p_p"]:
    """The pixels of each patch, channel by channel, patches row by row."""
    (b, c, h, w), p = images.shape, patch_size
    blocks = images.view(b, c, h // p, p, w // p, p)
    return blocks.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def to_bytes(images: Float[Tensor, "b 3 h w"], scale: Scale) -> Int[Tensor, "b 3 h w"]:
    """Undoes the normalisation: whole numbers from 0 to 255, exactly those on disk."""
    shares = images.float() if scale is None else scale.denormalize(images.float())
    return (shares * 255).round().clamp(0, 255).long()
