"""Weights of dense layers kept in oneDNN's layout, for repeated inference on a CPU.

oneDNN and MKL convert a weight to their own layout in every call; a packed copy is converted once.
"""

from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

# Stride of the sample that detects changes of a packed weight; prime, to cover all columns.
SAMPLED = 251


class _Packed(NamedTuple):
    """A copy of a weight in oneDNN's layout."""

    state: tuple[object, ...]
    """State of the weight when it was copied."""
    copy: Tensor


# Outside the layers, so that state dicts, copies and files of the layers do not change.
_PACKED: WeakKeyDictionary[nn.Module, _Packed | None] = WeakKeyDictionary()


def pack(model: nn.Module) -> None:
    """Lets the dense layers of `model` keep a copy of their weights in oneDNN's layout.

    For repeated inference on a CPU with an accelerated model. The first forward pass copies the
    weights, which doubles their memory; later ones skip the conversion. A changed weight is copied
    again. Changes are detected by address, version and a sample of the values, because fused
    optimizers and edits through `.data` do not change the version. An edit of few numbers through
    `.data` may be missed: call `pack` again.
    """
    for layer in model.modules():
        if type(layer) is nn.Linear:
            _PACKED[layer] = None


def unpack(model: nn.Module) -> None:
    """Undoes `pack`."""
    for layer in model.modules():
        _PACKED.pop(layer, None)


def is_packed(layer: nn.Module) -> bool:
    """Whether `pack` was called for the layer."""
    return layer in _PACKED


def forget(layer: nn.Module) -> None:
    """Frees the copy of a layer that is being trained."""
    if layer in _PACKED:
        _PACKED[layer] = None


def packed(layer: nn.Module, weight: Tensor) -> Tensor:
    """The packed copy of the layer's weight `k d`, updated if needed."""
    if weight.is_inference():  # has no version
        return weight
    sample = weight.detach().flatten()[::SAMPLED].sum().item()
    state = (weight.data_ptr(), weight._version, weight.dtype, weight.shape, sample)
    kept = _PACKED[layer]
    if kept is None or kept.state != state:
        kept = _PACKED[layer] = _Packed(state, packed_copy(weight))
    return kept.copy


def packed_copy(weight: Tensor) -> Tensor:
    """A copy of a weight `k d` in oneDNN's layout."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
