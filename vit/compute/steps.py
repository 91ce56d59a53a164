"""The measured calls: a forward pass, and a training step with AdamW, on random images."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from vit.compute.units import PRECISIONS

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

Step = Callable[["Tensor"], object]
"""A call with a batch of images `b c h w`."""


def training_loss(model: "nn.Module", images: "Tensor", precision: str) -> "Tensor":
    """The loss on `images` (b c h w) with all labels 0, in this precision."""
    import torch

    labels = torch.zeros(len(images), dtype=torch.long, device=images.device)
    mixed = PRECISIONS[precision].weights > 0
    with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=mixed):
        return torch.nn.functional.cross_entropy(model(images), labels)


def training(model: "nn.Module", precision: str, *, fused: bool | None = True) -> Step:
    """A training step with AdamW: forward, backward, update, zero_grad.

    `precision` is fp32 or bf16 (mixed); `fused` is AdamW's option. Batches of several sizes share
    the moments. The learning rate is small enough for weights to stay finite.
    """
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=fused)
    return stepping(model, optimizer, precision)


def stepping(model: "nn.Module", optimizer: "Optimizer", precision: str) -> Step:
    """A training step with this optimizer, as in `training`."""

    def step(images: "Tensor") -> None:
        if not model.training:
            model.train()
        try:
            training_loss(model, images, precision).backward()
            optimizer.step()
        finally:  # also after running out of memory
            optimizer.zero_grad(set_to_none=True)

    return step


def inference(
    model: "nn.Module", images: "Tensor", precision: str | None = None
) -> Callable[[], object]:
    """A forward pass for the model's logits.

    Without a precision, as a finished model is used: in the dtype of its weights.
    With one, as a model in training is evaluated: float32 weights, autocast for bf16.
    """
    import torch

    if precision is None:
        model.eval()
        images = images.to(next(model.parameters()).dtype)
    mixed = precision is not None and PRECISIONS[precision].weights > 0

    def call() -> object:
        if model.training:
            model.eval()
        with torch.inference_mode(), torch.autocast(images.device.type, torch.bfloat16, mixed):
            return model(images)

    return call
