"""Weights in which every parameter matters, and comparison with the libraries they belong to."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def scatter(module: nn.Module, seed: int = 0) -> nn.Module:
    """Random values of a sensible size everywhere: biases, norms, LayerScale and tokens too."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                is_scale = name.endswith(("weight", "gamma", "lambda1"))
                parameter.copy_(float(is_scale) + 0.2 * noise)
            elif name.endswith("weight"):
                # A mean other than zero, as weight standardisation removes it.
                parameter.copy_((noise + 0.1) / parameter[0].numel() ** 0.5)
            else:
                parameter.copy_(0.5 * noise)
    return module.eval()


def outputs(model: Callable[[Tensor], Tensor], size: tuple[int, int], channels: int = 3) -> Tensor:
    """Logits in double precision for two random images."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(2, channels, *size, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        return model(images)


def assert_same(ours: Tensor, theirs: Tensor, tolerance: float = 1e-9) -> None:
    """Equal up to rounding in double precision, and of a size at which errors would show."""
    assert ours.shape == theirs.shape
    assert theirs.abs().max() > 0.1
    assert (ours - theirs).abs().max() / theirs.abs().max() < tolerance
