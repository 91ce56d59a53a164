"""Tensors that are divided among processes by rows, and values of all processes.

The functions take such tensors (DTensor) and ordinary ones, which are whole, and their only part.
"""

from copy import deepcopy
from typing import TypeVar

import torch.distributed as dist
from torch import Tensor, nn

from vit.weights.sealed import full, is_sharded

Value = TypeVar("Value")


def local(tensor: Tensor) -> Tensor:
    """The rows of this process, possibly none; without gradients, a change is one of `tensor`."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # pyright: ignore


def gathered(module: nn.Module) -> nn.Module:
    """A copy that is whole, or the module if it is; every process must call it."""
    parameters = [*module.parameters()]
    if not any(map(is_sharded, parameters)):
        return module
    return deepcopy(module, {id(p): nn.Parameter(full(p.detach())) for p in parameters})


def part(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor divided as `like` is; nothing is sent."""
    if not is_sharded(like) or is_sharded(tensor):
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    mesh, placements = like.device_mesh, like.placements
    return distribute_tensor(tensor.to(like.device), mesh, placements, src_data_rank=None)


def from_all_processes(value: Value) -> list[Value]:
    """The values of all processes, on each; every process must call it."""
    shares = [value]
    if dist.is_initialized():
        shares *= dist.get_world_size()
        dist.all_gather_object(shares, value)
    return shares
