"""The measured calls: a forward pass, and a training step with AdamW, on random images."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Step = Callable[[Tensor], object]
"""A call with a batch of images `b c h w`."""


def training_loss(model: nn.Module, images: Tensor, precision: str) -> Tensor:
    """The loss on `images` (b c h w) with all labels 0, in fp32 or bf16 (mixed)."""
    labels = torch.zeros(len(images), dtype=torch.long, device=images.device)
    with torch.autocast(images.device.type, torch.bfloat16, precision == "bf16"):
        return torch.nn.functional.cross_entropy(model(images), labels)


def training(model: nn.Module, precision: str, optimizer: Optimizer | None = None) -> Step:
    """A training step in fp32 or bf16 (mixed), by default with fused AdamW.

    Batches of several sizes share its moments. Its small learning rate keeps weights finite.
    """
    chosen = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)

    def step(images: Tensor) -> None:
        if not model.training:
            model.train()
        try:
            training_loss(model, images, precision).backward()
            chosen.step()
        finally:  # also after running out of memory
            chosen.zero_grad(set_to_none=True)

    return step


def inference(model: nn.Module, images: Tensor) -> Callable[[], object]:
    """A forward pass for the logits, in the dtype of the weights."""
    model.eval()
    images = images.to(next(model.parameters()).dtype)

    def call() -> object:
        with torch.inference_mode():
            return model(images)

    return call
