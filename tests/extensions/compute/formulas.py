"""Closed formulas, from the papers alone: an independent check of what is counted.

ViT (arXiv:2010.11929), equations 1-4; BiT (arXiv:1912.11370), section 3.1. Letters: n tokens, d
width, m MLP. Images of a multiple of 32 pixels.
"""

from vit.models.config import ROOT_CHANNELS, ResNetConfig
from vit.models.zoo import ModelConfig


def multiply_adds(config: ModelConfig) -> tuple[int, int]:
    """(those of the forward pass, those of the layer that reads the pixels)."""
    height, width = config.size
    if isinstance(config, ResNetConfig):
        pixels, stages = residual(config.depths, config.root_channels, height * width)
        channels = 4 * config.root_channels * 2 ** (len(config.depths) - 1)
        return pixels + stages + channels * config.num_classes, pixels
    pixels = stem = 0
    d, m, n = config.width, config.mlp_dim, config.num_tokens
    side, channels = config.patch_size, config.in_channels
    if config.stem_depths is not None:
        pixels, stem = residual(config.stem_depths, ROOT_CHANNELS, height * width)
        side = config.patch_size // (2 * 2 ** len(config.stem_depths) if config.stem_depths else 4)
        channels = 4 * ROOT_CHANNELS * 2 ** (len(config.stem_depths) - 1)
        channels = channels if config.stem_depths else ROOT_CHANNELS
    patches = height * width // config.patch_size**2
    embedding = patches * side**2 * channels * d
    gated = 2 if config.activation == "swiglu" else 1
    layer = 4 * n * d * d + 2 * n * n * d + (1 + gated) * n * d * m
    head = (2 if config.distillation_token else 1) * d * config.num_classes
    total = pixels + stem + embedding + config.depth * layer + head
    return total, pixels or embedding


def residual(depths: tuple[int, ...], root: int, area: int) -> tuple[int, int]:
    """(multiply-adds of the 7x7 convolution, those of the residual units)."""
    area, channels, total = area // 4, root, 0
    pixels = area * 49 * 3 * root
    area //= 4  # max pooling
    for s, depth in enumerate(depths):
        mid = root * 2**s
        for b in range(depth):
            smaller = 4 if s and not b else 1
            total += area * channels * mid + area // smaller * 9 * mid * mid
            total += area // smaller * 4 * mid * mid
            if not b:
                total += area // smaller * channels * 4 * mid
            area, channels = area // smaller, 4 * mid
    return pixels, total
