"""Attaches this machine's routes to the layers of a model, and takes them off.

The class of a layer is replaced by one with the same parameters and another `forward`, so that
state dicts, copies, pickles, hooks and wrappers of the model work as before. Where a model is
compiled, exported or traced, the layers compute as the plain ones do.
"""

from typing import TypeVar

import torch.nn.functional as F
from torch import Tensor, nn

from vit.kernels.attention import attend
from vit.kernels.dense import dense
from vit.kernels.packing import unpack
from vit.models.encoder import Attention, Mlp
from vit.models.pooling import AttentionPool
from vit.models.rotary import Rotation, rotated
from vit.shapes import Float

Model = TypeVar("Model", bound=nn.Module)


class AcceleratedAttention(Attention):
    """`Attention` with the machine's products and attention."""

    def forward(
        self, x: Float[Tensor, "b n d"], rotation: Rotation | None = None
    ) -> Float[Tensor, "b n d"]:
        qkv = dense(self.qkv, x).unflatten(-1, (3, self.num_heads, -1))  # b n 3 heads e
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # b heads n e
        if rotation is not None:
            q, k = rotated(q, rotation), rotated(k, rotation)
        return self.drop(dense(self.proj, attend(q, k, v).transpose(1, 2).flatten(2)))


class AcceleratedMlp(Mlp):
    """`Mlp` with the machine's products and GELU."""

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        if self.activation == "swiglu":
            gate, value = dense(self.fc1, x).chunk(2, dim=-1)
            x = F.silu(gate) * value
        else:
            x = dense(self.fc1, x, self.activation)
        return self.drop(dense(self.fc2, self.drop(x)))


class AcceleratedAttentionPool(AttentionPool):
    """`AttentionPool` with the machine's product of keys and values."""

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b d"]:
        return self.pooled(x, dense(self.kv, x))


_CLASSES: dict[type[nn.Module], type[nn.Module]] = {
    Attention: AcceleratedAttention,
    Mlp: AcceleratedMlp,
    AttentionPool: AcceleratedAttentionPool,
}
_PLAIN = {fast: slow for slow, fast in _CLASSES.items()}


def accelerate(model: Model) -> Model:
    """Lets the layers of `model` compute by the fastest routes of this machine; returns the model.

    The routes are measured when first needed, within two seconds in total, and recorded in the
    cache. They are for CPUs; on other devices nothing changes.
    """
    return _replaced(model, _CLASSES)


def plain(model: Model) -> Model:
    """Undoes `accelerate` and `pack`: the layers compute by PyTorch's own operations alone."""
    unpack(model)
    return _replaced(model, _PLAIN)


def _replaced(model: Model, classes: dict[type[nn.Module], type[nn.Module]]) -> Model:
    for module in model.modules():
        if type(module) in classes:
            module.__class__ = classes[type(module)]
    return model
