"""Memory of a training step: predicted from the configuration, counted, measured and tried.

All sizes are in bytes; GiB is 2^30. Precisions are those of vit/compute/units.py.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from vit.compute.flops import units
from vit.compute.steps import training, training_loss
from vit.compute.units import PRECISIONS
from vit.models.zoo import ModelConfig

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from vit.compute.candidate import Candidate

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Activations:
    """Memory that a forward pass keeps for the backward pass."""

    kept: int
    """Bytes per image kept for the backward pass."""
    recomputed: int = 0
    """Bytes per image of the largest unit that is recomputed in the backward pass."""
    once: int = 0
    """Bytes independent of the batch size."""

    @property
    def per_image(self) -> int:
        """Peak bytes per image."""
        return self.kept + self.recomputed


def activations(config: ModelConfig, precision: str, *, checkpointing: bool = False) -> Activations:
    """Prediction for images of `config.size`; `checkpointing` is `activation_checkpointing`."""
    parts = units(config, precision)
    kept = recomputed = once = 0
    lost = False  # whether the previous unit is recomputed
    for unit in parts:
        if checkpointing and unit.input_kept is not None:
            kept, lost = kept + unit.input_kept, True
            recomputed = max(recomputed, unit.kept)
        else:
            kept += unit.kept + (unit.shared if lost else 0)
            once, lost = once + unit.kept_once, False
    return Activations(kept=kept, recomputed=recomputed, once=once)


@dataclass(frozen=True, kw_only=True)
class TrainingMemory:
    """Memory of a training step with AdamW, in bytes."""

    params: int
    """Number of parameters."""
    precision: str
    activations: Activations

    @property
    def fixed(self) -> int:
        """Parameters, gradients and AdamW's two moments in float32; the casts of a mixed step."""
        weights = 4 + 4 + 8 + PRECISIONS[self.precision].weights
        return self.params * weights + self.activations.once

    def total(self, batch_size: int) -> int:
        """Predicted peak of a training step."""
        return self.fixed + batch_size * self.activations.per_image

    def largest_batch(self, memory: int) -> int:
        """Largest batch in `memory` bytes, of which WORKSPACE is reserved; 0 if none fits."""
        free = memory * (1 - WORKSPACE) - self.fixed
        return max(0, int(free // self.activations.per_image))


WORKSPACE = 0.08
"""Fraction of memory reserved for what no formula counts: temporary gradients of activations,
library buffers, and fragmentation."""


def kept_bytes(step: "Callable[[], Tensor]", model: "nn.Module") -> int:
    """Bytes that autograd keeps after `step`, a forward pass with its loss.

    Parameters do not count, and a storage counts once for all its views. Also works on fake
    tensors.
    """
    import torch

    storages = {p.untyped_storage()._cdata: None for p in model.parameters()}
    counted, total = set(storages), 0
    alive = []  # otherwise a later storage could reuse the address of a freed one

    def pack(tensor: "Tensor") -> "Tensor":
        nonlocal total
        storage = tensor.untyped_storage()
        if storage._cdata not in counted:
            counted.add(storage._cdata)
            alive.append(storage)
            total += storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step()
    return total


def counted_activations(
    model: "nn.Module", image_size: tuple[int, int], precision: str, channels: int = 3
) -> Activations:
    """Activations of a model without a formula, counted on fake tensors with CPU kernels.

    The model must be on the meta device; nothing is computed.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    fake = deepcopy(model)  # PyTorch's counter leaves references that prevent converting the model
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = fake.to_empty(device="cpu").train()
        counts = []
        for batch in (2, 4):
            images = torch.empty(batch, channels, *image_size, device="cpu")
            counts.append(kept_bytes(partial(training_loss, fake, images, precision), fake))
    per_image = (counts[1] - counts[0]) // 2
    casts = PRECISIONS[precision].weights * sum(p.numel() for p in model.parameters())
    return Activations(kept=per_image, once=max(0, counts[0] - 2 * per_image - casts))


def measured_activations(model: "nn.Module", images: "Tensor", precision: str) -> int:
    """Bytes per image that the forward pass of a training step on `images` keeps."""
    batch = len(images)
    counts = [
        kept_bytes(partial(training_loss, model.train(), images[:n].clone(), precision), model)
        for n in sorted({1, batch})
    ]
    # The difference cancels what does not grow with the batch, such as standardised kernels.
    return (counts[-1] - counts[0]) // (batch - 1) if batch > 1 else counts[0]


def measured_peak(
    step: Callable[[], object], model: "nn.Module", device: "torch.device"
) -> int | None:
    """Peak bytes of a training step with AdamW; None if the device does not report it.

    `step` is a whole training step of `model`; it runs twice.
    """
    import torch

    if device.type != "cuda":
        return None
    step()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step()
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return torch.cuda.max_memory_allocated(device) - before + 3 * weights  # including two moments


def largest(fits: Callable[[int], bool], start: int) -> int:
    """The largest batch that `fits`, within 1/32, searched from a prediction; 0 if none."""
    low, high = 0, max(1, start)
    while fits(high):
        low, high = high, 2 * high
    while high - low > max(1, low // 32):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def trainable(model: "Candidate", device: "torch.device", precision: str) -> Callable[[int], bool]:
    """Whether a training step with this many images fits on a CUDA device."""
    import torch

    step = training(model.build().to(device), precision)

    def fits(batch_size: int) -> bool:
        shape = (batch_size, model.channels, *model.image_size)
        try:
            for _ in range(2):  # the optimizer's state exists from the second step on
                step(torch.randn(shape, device=device))
        except torch.OutOfMemoryError:
            return False
        finally:
            torch.cuda.empty_cache()
        return True

    return fits
