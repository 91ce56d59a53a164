"""A stem of convolutions in plain NumPy, from the equations, and its entry in the contract."""

from typing import Any

import numpy as np
from scipy.special import erf

from tests.extensions.variants.entries import Entry
from tests.extensions.variants.numpy_variants import Array, Part, Weights
from vit.models.config import ViTConfig


def gelu(x: Array) -> Array:
    return x * (1 + erf(x / np.sqrt(2))) / 2


def correlated(x: Array, kernels: Array, before: int) -> Array:
    """Kernels d c k k at every pixel of b c h w, with zeros around it, `before` of them first."""
    k, (height, width) = kernels.shape[-1], x.shape[2:]
    after = k - 1 - before
    x = np.pad(x, ((0, 0), (0, 0), (before, after), (before, after)))
    total = np.zeros((len(x), len(kernels), height, width))
    for row in range(k):
        for column in range(k):
            part = x[:, :, row : row + height, column : column + width]
            total += np.einsum("bchw,dc->bdhw", part, kernels[:, :, row, column])
    return total


def batch_norm(x: Array, w: Weights, name: str) -> Array:
    """By the statistics of training."""
    names = ("running_mean", "running_var", "weight", "bias")
    mean, variance, scale, shift = (w[f"{name}.{key}"][:, None, None] for key in names)
    return (x - mean) / np.sqrt(variance + 1e-5) * scale + shift


def convolutions(options: dict[str, Any]) -> type[Part]:
    class Stem(Part):
        def patches(self, images: Array) -> Array:
            x, name = images, "patch_embed.backbone"
            if options["window"]:
                directions = self.w[f"{name}.whitening.directions"]
                x = correlated(x, np.concatenate([directions, -directions]), 0)
                x = gelu(x + self.w[f"{name}.whitening.bias"][:, None, None])
            for block in range(len(options["widths"])):
                for i in range(options["convolutions"]):
                    end = f"{name}.blocks.{block}"
                    x = correlated(x, self.w[f"{end}.convs.{i}.weight"], 1)
                    if i == 0:
                        corners = [x[:, :, r::2, c::2] for r in (0, 1) for c in (0, 1)]
                        x = np.max(corners, axis=0)
                    x = gelu(batch_norm(x, self.w, f"{end}.norms.{i}"))
            return super().patches(x)

    return Stem


def macs(config: ViTConfig, options: dict[str, Any]) -> int:
    pixels = config.size[0] * config.size[1]
    c, k = config.in_channels, options["window"]
    total = pixels * 2 * (c * k * k) ** 2
    inputs = 2 * c * k * k or c
    for width in options["widths"]:
        total += pixels * 9 * inputs * width
        pixels //= 4
        total += (options["convolutions"] - 1) * pixels * 9 * width * width
        inputs = width
    embedding = pixels * inputs * config.width
    if (pixels, inputs) == (config.num_patches, config.width):
        embedding = 0
    return total + embedding - config.size[0] * config.size[1] * c * config.width


STEMS = {
    ("stem", "convolutions"): Entry(
        convolutions, {"widths": [16], "convolutions": 1, "window": 0}, macs
    )
}
