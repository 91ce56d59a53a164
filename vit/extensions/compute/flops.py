"""Operations of a model and of its training step, by PyTorch's own counter.

Matrix products (including the two in attention) and convolutions are counted, not norms, softmax,
activations or weight standardisation. One multiply-add is two floating-point operations (FLOPs).
"""

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vit.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Work:
    """Operations of a model for one image."""

    params: int
    """Number of parameters."""
    flops: int
    """Of the forward pass."""
    training_flops: int
    """Of forward and backward pass, without the gradient of the pixels, which autograd does not
    compute."""


def counted(model: nn.Module, image_size: tuple[int, int], channels: int = 3) -> Work:
    """Operations for one image of (height, width) pixels by `torch.utils.flop_counter`.

    Moves the model to the meta device: its weights are lost. Frozen parameters cost no gradient.
    """
    model.to("meta").eval()
    images = torch.empty(1, channels, *image_size, device="meta")
    with counting() as counter:
        try:
            logits = model(images)
        except RuntimeError as error:  # raised by torchvision's networks if the image is too small
            size = f"{image_size[0]}x{image_size[1]}"
            reason = str(error).splitlines()[0]
            raise UserError(f"images of {size} do not fit this model: {reason}") from error
        forward = counter.get_total_flops()
        if logits.requires_grad:
            logits.sum().backward()
        training = counter.get_total_flops()
    params = sum(p.numel() for p in model.parameters())
    return Work(params=params, flops=forward, training_flops=training)


def counting() -> FlopCounterMode:
    """PyTorch's counter, corrected; its `get_total_flops` is that of all within it so far."""
    rules = {torch.ops.aten.convolution_backward: convolution_backward}
    return FlopCounterMode(display=False, custom_mapping=rules)


def convolution_backward(gradient: Any, images: Any, weight: Any, *rest: Any, **_: Any) -> int:
    """Operations of a convolution's backward pass, from the shapes that FlopCounterMode passes.

    One forward pass each for the gradients of input and weight. PyTorch 2.15 ignores the groups in
    the latter (pytorch/pytorch#183405): 40 times too much for a depthwise EfficientNet.
    """
    needed = rest[-1]  # gradients of input, weight and bias
    return 2 * prod(gradient) * prod(weight[1:]) * (bool(needed[0]) + bool(needed[1]))
