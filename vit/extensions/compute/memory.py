"""Memory of a training step: what autograd keeps, counted without computing anything.

All sizes are in bytes; GiB is 2^30.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

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
PRODUCTS = (
    F.linear, F.conv2d, F.scaled_dot_product_attention, torch.einsum, torch.bmm,
    torch.matmul, Tensor.matmul, Tensor.__matmul__,
)  # fmt: skip
"""Functions that mixed precision computes in bfloat16."""


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


class TaskStep(NamedTuple):
    """A step of a task half-way through a run: of students, teachers, decoders, and all crops."""

    flops: int
    """Operations per image of forward and backward pass."""
    activations: Activations
    held: int
    """Bytes of weights, copies in bfloat16, gradients and AdamW's moments, on a device alone."""


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


class Attention(torch.autograd.Function):
    """Keeps what a fused kernel keeps: inputs, output, and a sum for each query."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, sums = torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, out, sums)
        return out


class OfCuda(TorchFunctionMode):
    """Keeps on the meta device what a GPU keeps in fp32 or bf16 (mixed): norms are in float32,
    products in bfloat16, attention is fused, and a mask of dropout has one byte per element."""

    def __init__(self, precision: str) -> None:
        super().__init__()
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self.copies: dict[Tensor, Tensor] = {}  # of parameters, each made once

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (F.layer_norm, F.group_norm):
            return func(args[0].float(), *args[1:], **kwargs)
        if func is F.dropout and kwargs["training"] and kwargs["p"]:
            return torch.native_dropout(args[0], kwargs["p"], True)[0]
        if func is F.multi_head_attention_forward:  # the functions that it calls
            with patch.object(F, "has_torch_function", return_value=False), self:
                return func(*args, **kwargs)
        args = [self._narrow(each) for each in args] if func in PRODUCTS else args
        if func is F.scaled_dot_product_attention:
            return Attention.apply(*args[:3])
        return func(*args, **kwargs)

    def _narrow(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype == self.dtype:
            return value
        if not isinstance(value, nn.Parameter):
            return value.to(self.dtype)
        return self.copies.setdefault(value, value.to(self.dtype))


def counted_activations(
    model: nn.Module, image_size: tuple[int, int], precision: str, channels: int = 3
) -> Activations:
    """Memory that a training step of a model keeps on a GPU, in fp32 or bf16 (mixed).

    Moves the model to the meta device: its weights are lost. `recomputed`: of the largest of
    RECOMPUTED, as if it were.
    """
    model.to("meta").train()
    images = torch.empty(BATCH, channels, *image_size, device="meta")
    with kept_by_autograd(model) as storages, OfCuda(precision):
        starts, units = [], [0]
        for module in model.modules():
            if isinstance(module, RECOMPUTED):
                module.register_forward_pre_hook(lambda *_: starts.append(len(storages)))
                module.register_forward_hook(
                    lambda *_: units.append(_per_image(storages[starts[-1] :]))
                )
        F.cross_entropy(model(images).float(), torch.zeros(BATCH, dtype=torch.long, device="meta"))
    saved = _per_image(storages)
    once = sum(storage.nbytes() for storage in storages) - saved * BATCH
    if precision == "bf16":  # copies, which are counted with the weights
        once -= 2 * sum(p.numel() for p in model.parameters())
    return Activations(saved=saved, recomputed=max(units), once=max(0, once))


def _per_image(storages: Sequence[torch.UntypedStorage]) -> int:
    sizes = [storage.nbytes() for storage in storages]
    return sum(size // BATCH for size in sizes if size % BATCH == 0)
