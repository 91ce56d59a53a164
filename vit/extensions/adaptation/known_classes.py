"""Rows of a head for classes that the weights know already, and rows of others beside them.

Shapes: n images, d features, k classes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vit.console import say
from vit.logistic import FittedHead, fit_head


def fit_beside(
    head: FittedHead,
    layer: nn.Module,
    known: list[int],
    inputs: Tensor,
    labels: Tensor,
    strengths: Sequence[float],
    class_weights: Tensor | None,
    groups: Tensor | None,
) -> FittedHead:
    """The row of the table `heads`: the known rows stay, unless `head`, which was fitted without
    them, is better on images that were left out."""
    longer = extend_head(layer, known, inputs, labels, strengths, class_weights, groups)
    stays = longer.loss <= head.loss
    change = "stay" if stays else "are fitted again, which is better on images left out"
    say(f"head: the rows of {len(known):,} known classes {change}")
    return longer if stays else head


def extend_head(
    layer: nn.Module,
    known: list[int],
    inputs: Tensor,
    labels: Tensor,
    strengths: Sequence[float],
    class_weights: Tensor | None,
    groups: Tensor | None = None,
) -> FittedHead:
    """The layer's rows of the known classes, and rows of the others, fitted beside them."""
    state = {name: tensor.double().cpu() for name, tensor in layer.state_dict().items()}
    weight, bias = state["weight"].flatten(1), state["bias"]
    fixed = torch.full((len(labels), len(bias)), torch.nan, dtype=torch.float64)
    fixed[:, known] = (inputs @ weight.T + bias)[:, known]
    head = fit_head(inputs, labels, len(bias), strengths, class_weights, fixed, groups)
    head.weight[known], head.bias[known] = weight[known], bias[known]
    return head
