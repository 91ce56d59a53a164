"""Tensors of which each process holds some rows (DTensor), beside ordinary ones.

Every function takes both kinds; an ordinary tensor is whole, and its only part.
"""

from collections.abc import Sequence
from copy import deepcopy

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vit.checkpoints.writing import full, is_sharded


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


def norms(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    """Euclidean norms of tensors whose local rows are `parts`, divided as `like` is."""
    found = torch.stack(torch._foreach_norm([*parts]))  # pyright: ignore[reportPrivateImportUsage]
    if not is_sharded(like):
        return found
    squares = found.square()
    dist.all_reduce(squares, group=like.device_mesh.get_group())  # pyright: ignore
    return squares.sqrt()
