"""Small architectures of every kind, and weights in which no parameter is trivial."""

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from vit.models.config import ResNetConfig, ViTConfig
from vit.models.resnet import ResNet
from vit.models.vision_transformer import VisionTransformer
from vit.models.zoo import build_model

M = TypeVar("M", bound=nn.Module)

SMALL: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "num_classes": 7,
    "width": 32,
    "depth": 3,
    "mlp_dim": 64,
    "num_heads": 4,
}


def small_vit(**overrides: Any) -> VisionTransformer:
    """A plain ViT, 16 patches at 32 pixels, in evaluation mode with random weights everywhere."""
    model = build_model(ViTConfig(**{**SMALL, **overrides}))
    assert isinstance(model, VisionTransformer)
    return filled(model)


def small_hybrid(**overrides: Any) -> VisionTransformer:
    """Three ResNet stages of one block, stride 16, before 2 x 2 patches at 32 pixels."""
    stem: dict[str, Any] = {"stem_depths": (1, 1, 1), "patch_size": 16, "depth": 2}
    return small_vit(**{**stem, **overrides})


def small_rotary(**overrides: Any) -> VisionTransformer:
    """As DINOv3: rotary positions alone, which move in training, and registers."""
    rotary = {"pos_embed": "none", "num_registers": 2, "rotary": {"shift": 0.1, "rescale": 2.0}}
    return small_vit(**{**rotary, **overrides})


def small_bit(**overrides: Any) -> ResNet:
    """Three stages of a BiT ResNet, full width, stride 16."""
    config: dict[str, Any] = {"image_size": 64, "num_classes": 7, "depths": (1, 2, 1), **overrides}
    return filled(ResNet(ResNetConfig(**config)))


BACKBONES = {
    "vit": small_vit,
    "rotary": small_rotary,
    "hybrid": small_hybrid,
    "bit": small_bit,
}


def filled(model: M, seed: int = 0) -> M:
    """The model in evaluation mode, without trivial biases, norms, scales, tokens or heads."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.ndim == 1 and "bias" not in name:
                parameter.copy_(1 + 0.2 * noise)  # norms and LayerScale
            elif parameter.ndim in (2, 4):
                parameter.copy_(noise * parameter[0].numel() ** -0.5)
            else:
                parameter.copy_(0.3 * noise)
    return model.eval()


def random_images(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    """Normal noise `b c h w`."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm of what was expected."""
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    difference = actual.double() - expected.double()
    return (difference.norm() / expected.double().norm()).item()
