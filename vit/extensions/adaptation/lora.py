"""Low-rank adaptation of a pre-trained ViT (LoRA, Hu et al., arXiv:2106.09685).

Queries, keys, values and both layers of each MLP get factors, which are trained with the head.
Shapes: n tokens, g blocks of rows (3 for queries, keys and values), r rank, d inputs, k outputs of
a block.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.errors import UserError
from vit.models.encoder import Attention, Mlp
from vit.models.vision_transformer import VisionTransformer
from vit.models.zoo import Model
from vit.shapes import Float
from vit.training.learning import Adaptation
from vit.weights.lora import A, B, merged


class LoraLinear(nn.Linear):
    """A frozen linear layer with trained factors A `g r d` and B `g k r`: x W^T + b + x A^T B^T."""

    plain: type[nn.Linear]
    """The class of the layer without factors."""
    lora_a: nn.Parameter
    lora_b: nn.Parameter

    def forward(self, input: Float[Tensor, "*n d"]) -> Float[Tensor, "*n k"]:
        blocks, rank, _ = self.lora_a.shape
        low = F.linear(input, self.lora_a.flatten(0, 1))  # * n (g r)
        if blocks == 1:
            update = F.linear(low, self.lora_b[0])
        else:
            parts = low.unflatten(-1, (blocks, rank)).unbind(-2)
            pairs = zip(parts, self.lora_b.unbind(), strict=True)
            update = torch.cat([F.linear(part, b) for part, b in pairs], -1)
        return self.plain.forward(self, input) + update


class LoRA(Adaptation):
    """Low-rank updates of queries, keys, values and MLP (arXiv:2106.09685).

    Args:
        rank: From 1 to the width of the model.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def apply(self, network: Model) -> None:
        add_lora(network, self.rank)

    def merge(self, network: Model) -> None:
        merge_lora(network)


def add_lora(model: Model, rank: int) -> None:
    """Freezes all but the head and adds factors of this rank, in place.

    B starts at zero and A as in peft, so that nothing changes before the first step. The state dict
    gains `lora_a` and `lora_b`. UserError for a ResNet, and for a rank above the width.
    """
    if not isinstance(model, VisionTransformer):
        raise UserError(
            f"model.lora={rank} is for Vision Transformers: a ResNet has no queries, keys and "
            "values; leave it out, or train the head alone: --model.learning.freeze_backbone true"
        )
    width = model.config.width
    if not 1 <= rank <= width:
        raise UserError(f"model.lora={rank} is not a rank between 1 and the model's width, {width}")
    adapted = _adapted(model)
    if not adapted:
        raise UserError(
            f"model.lora={rank}: this model's variant has neither queries and keys nor MLPs to "
            "adapt; leave it out"
        )
    model.requires_grad_(False)
    for layer in model.head_layers:
        layer.requires_grad_(True)
    for layer, blocks in adapted:
        outputs, inputs = layer.weight.shape
        plain, layer.__class__ = type(layer), LoraLinear
        assert isinstance(layer, LoraLinear)
        layer.plain = plain
        a = layer.weight.new_empty(blocks, rank, inputs)
        b = layer.weight.new_zeros(blocks, outputs // blocks, rank)
        for block in a:
            nn.init.kaiming_uniform_(block, a=math.sqrt(5))
        layer.register_parameter(A, nn.Parameter(a))
        layer.register_parameter(B, nn.Parameter(b))


@torch.no_grad()
def merge_lora(model: nn.Module) -> None:
    """Adds the factors, if any, to the weights, in place; then the whole model can train."""
    adapted = [layer for layer in model.modules() if isinstance(layer, LoraLinear)]
    for layer in adapted:
        layer.weight.copy_(merged(layer.weight, layer.lora_a, layer.lora_b))
        del layer.lora_a, layer.lora_b
        layer.__class__ = layer.plain  # pyright: ignore[reportAttributeAccessIssue]
    if adapted:
        model.requires_grad_(True)


def _adapted(model: VisionTransformer) -> list[tuple[nn.Linear, int]]:
    """The layers that get factors, and the matrices that each one joins."""
    layers: list[tuple[nn.Linear, int]] = []
    for module in model.blocks.modules():
        if isinstance(module, Attention):
            layers.append((module.qkv, 3))
        elif isinstance(module, Mlp):
            layers += [(module.fc1, 1), (module.fc2, 1)]
    return layers
