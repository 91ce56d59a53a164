"""Memory of a training step: what autograd keeps, counted without computing anything.

All sizes are in bytes; GiB is 2^30.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from vit.extensions.compute.timing import training_loss
from vit.models.encoder import Block
from vit.models.resnet import HybridRoot, PostActBottleneck, PreActBottleneck

GIB = 2**30
WORKSPACE = 0.08
"""Fraction of memory reserved for what is not counted: temporary gradients of activations,
library buffers, and fragmentation."""
RECOMPUTED = (Block, HybridRoot, PostActBottleneck, PreActBottleneck)
"""The modules that `activation_checkpointing` recomputes in the backward pass."""
BATCH = 10_007
"""Images in the counted step. No weight has a size that this prime divides, so what it divides
grows with the batch."""


@dataclass(frozen=True, kw_only=True)
class Activations:
    """Memory that a forward pass keeps for the backward pass."""

    saved: int
    """Bytes per image."""
    recomputed: int = 0
    """Bytes per image of the largest module that is recomputed in the backward pass."""
    once: int = 0
    """Bytes independent of the batch size, without copies of weights: standardised kernels."""

    @property
    def per_image(self) -> int:
        """Peak bytes per image."""
        return self.saved + self.recomputed

    def largest_batch(self, memory: int, held: int) -> int:
        """Largest batch of a step in `memory` bytes with `held` for the rest; 0 if none fits."""
        free = memory * (1 - WORKSPACE) - held - self.once
        return max(0, int(free // self.per_image))


@contextmanager
def kept_by_autograd(model: nn.Module) -> Iterator[list[torch.UntypedStorage]]:
    """The storages, but those of parameters, that autograd keeps for the backward pass, in order.

    A storage is listed once for all its views.
    """
    seen = {p.untyped_storage()._cdata for p in model.parameters()}
    storages: list[torch.UntypedStorage] = []  # alive, so that no later one gets the same address

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            storages.append(storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield storages


class OfCuda(TorchFunctionMode):
    """Keeps on a CPU what a GPU keeps: autocast runs its norms in float32, and its dropout has a
    mask of one byte per element."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (F.layer_norm, F.group_norm):
            with torch.autocast("cpu", enabled=False):
                return func(args[0].float(), *args[1:], **kwargs)
        if func is F.dropout and kwargs["training"] and kwargs["p"]:
            return torch.native_dropout(args[0], kwargs["p"], True)[0]
        return func(*args, **kwargs)


def counted_activations(
    model: nn.Module, image_size: tuple[int, int], precision: str, channels: int = 3
) -> Activations:
    """Memory that a training step of a meta model keeps on a GPU, in fp32 or bf16 (mixed).

    `recomputed`: of the largest of RECOMPUTED, as if it were.
    """
    with FakeTensorMode(allow_non_fake_inputs=True), OfCuda():
        model = model.to_empty(device="cpu").train()
        images = torch.empty(BATCH, channels, *image_size)
        with kept_by_autograd(model) as storages:
            starts, units = [], [0]
            for module in model.modules():
                if isinstance(module, RECOMPUTED):
                    module.register_forward_pre_hook(lambda *_: starts.append(len(storages)))
                    module.register_forward_hook(
                        lambda *_: units.append(_per_image(storages[starts[-1] :]))
                    )
            training_loss(model, images, precision)
        saved = _per_image(storages)
        once = sum(storage.nbytes() for storage in storages) - saved * BATCH
        if precision == "bf16":  # autocast's copies
            once -= 2 * sum(p.numel() for p in model.parameters())
    return Activations(saved=saved, recomputed=max(units), once=max(0, once))


def _per_image(storages: Sequence[torch.UntypedStorage]) -> int:
    sizes = [storage.nbytes() for storage in storages]
    return sum(size // BATCH for size in sizes if size % BATCH == 0)
