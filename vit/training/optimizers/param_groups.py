"""Parameter groups: which parameters decay, and how fast each layer learns."""

from collections.abc import Collection, Iterable
from typing import Any

from torch import nn

Group = dict[str, Any]
"""A parameter group of torch: `params`, and options of the optimizer."""


def param_groups(
    parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    depth: int,
    layer_decay: float = 1.0,
    no_weight_decay: Collection[str] = (),
) -> list[Group]:
    """Groups for an optimizer, with their names, `lr_scale`, and weight_decay 0 where none applies.

    It applies to kernels only, as in big_vision: not to vectors (biases, norms), and not to
    `no_weight_decay`, which are matrices in shape alone (tokens, positions). The learning rate of
    layer i is multiplied by layer_decay ** (depth + 1 - i), so that the head learns at the full
    rate (BEiT, arXiv:2106.08254, appendix): i is 0 for what comes before the layers or stages,
    1 to `depth` for those, and depth + 1 after them. Frozen parameters are left out.
    """
    groups: dict[tuple[int, bool], Group] = {}
    place = 0
    for name, parameter in parameters:
        parts = name.split(".")
        if parts[0] in ("blocks", "stages"):
            place = int(parts[1]) + 1
        elif place:
            place = depth + 1
        if not parameter.requires_grad:
            continue
        layer = place if layer_decay < 1 else depth + 1
        key = (layer, parameter.dim() >= 2 and name not in no_weight_decay)
        if key not in groups:
            scale = layer_decay ** (depth + 1 - layer)
            groups[key] = {"params": [], "names": [], "lr_scale": scale}
            if not key[1]:
                groups[key]["weight_decay"] = 0.0
        groups[key]["params"].append(parameter)
        groups[key]["names"].append(name)
    return [groups[key] for key in sorted(groups)]
