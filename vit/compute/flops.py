"""Multiply-adds of a model and its training step: by formula, and by PyTorch's own counter.

Both count matrix products (including the two in attention) and convolutions, not norms, softmax,
activations or weight standardisation. One multiply-add is two floating-point operations (FLOPs).
The count of attention does not depend on the kernel.
"""

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from vit.compute.convolutional import resnet_units
from vit.compute.transformer import transformer_units
from vit.compute.units import PRECISIONS, Unit
from vit.errors import UserError
from vit.models.config import ResNetConfig
from vit.models.zoo import ModelConfig, config_from_dict

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class Work:
    """Operations of a model for one image."""

    params: int
    """Number of parameters."""
    macs: int
    """Multiply-adds of the forward pass."""
    training_macs: int
    """Multiply-adds of forward and backward pass: three times `macs`, minus the gradient of the
    pixels, which autograd does not compute."""
    probe_macs: int = 0
    """Multiply-adds of a training step of the head on a frozen backbone."""
    training_macs_inside: int = 0
    """`training_macs` without multiplications by padding, which XLA's cost analysis does not count
    (xla/service/hlo_cost_analysis.cc, GetConvolutionFlops)."""

    @property
    def flops(self) -> int:
        """Operations of the forward pass."""
        return 2 * self.macs

    @property
    def training_flops(self) -> int:
        """Operations of forward and backward pass."""
        return 2 * self.training_macs


def sized(
    config: ModelConfig, image_size: tuple[int, int] | None, num_classes: int | None = None
) -> ModelConfig:
    """The configuration with another image size (height, width) or number of classes."""
    changes = {"image_size": image_size, "num_classes": num_classes}
    changes = {name: value for name, value in changes.items() if value is not None}
    return config_from_dict({**config.to_dict(), **changes})


def units(config: ModelConfig, precision: str = "fp32") -> list[Unit]:
    """Units of a model in forward order, for images of `config.size`."""
    kept = PRECISIONS[precision]
    if isinstance(config, ResNetConfig):
        return resnet_units(config, kept)
    return transformer_units(config, kept)


def work(config: ModelConfig) -> Work:
    """Operations by closed formula, for images of `config.size`."""
    parts = units(config)
    macs = sum(unit.macs for unit in parts)
    padding = sum(unit.padding_macs * (2 if unit.reads_pixels else 3) for unit in parts)
    training = sum(unit.training_macs for unit in parts)
    return Work(
        params=sum(unit.params for unit in parts),
        macs=macs,
        training_macs=training,
        probe_macs=macs + sum(unit.classifier_macs for unit in parts),
        training_macs_inside=training - padding,
    )


def counted(model: "nn.Module", image_size: tuple[int, int], channels: int = 3) -> Work:
    """Operations for one image of (height, width) pixels by `torch.utils.flop_counter`.

    Moves the model to the meta device, where nothing is computed and weights are lost. The
    backward pass of grouped convolutions is counted by `grouped_backward` instead.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    model.to("meta").eval()
    images = torch.empty(1, channels, *image_size, device="meta")
    formulas = {torch.ops.aten.convolution_backward: grouped_backward}
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        try:
            logits = model(images)
        except RuntimeError as error:  # raised by torchvision's networks if the image is too small
            size = f"{image_size[0]}x{image_size[1]}"
            reason = str(error).splitlines()[0]
            raise UserError(f"images of {size} do not fit this model: {reason}") from error
        forward = counter.get_total_flops()
        logits.sum().backward()
        training = counter.get_total_flops()
    return Work(
        params=sum(p.numel() for p in model.parameters()),
        macs=forward // 2,
        training_macs=training // 2,
        probe_macs=forward // 2,  # and the gradient of the head's weights, a thousandth of that
    )


def grouped_backward(gradient: Any, images: Any, weight: Any, *rest: Any, **_: Any) -> int:
    """Operations of a convolution's backward pass, from the shapes that FlopCounterMode passes.

    One forward pass each for the gradients of input and weight. PyTorch 2.15 ignores the groups in
    the latter (pytorch/pytorch#183405): 40 times too much for a depthwise EfficientNet.
    """
    needed = rest[-1]  # gradients of input, weight and bias
    return 2 * prod(gradient) * prod(weight[1:]) * (bool(needed[0]) + bool(needed[1]))
