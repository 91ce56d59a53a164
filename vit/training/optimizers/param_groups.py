"""Parameter groups: which parameters decay, and how fast each layer learns."""

from collections.abc import Iterable
from typing import Any

from torch import nn

# Matrices in shape, but not in meaning: big_vision decays `.*/kernel$` only.
TOKENS = ("pos_embed", "cls_token", "reg_token", "dist_token")
NOT_KERNELS = (*TOKENS, "attn_pool.latent")
TABLE = "_table"
"""Ends the name of a table of embeddings or biases in a variant."""


def decays(name: str, parameter: nn.Parameter) -> bool:
    """True if weight decay applies: kernels only; no biases, norms, tokens or positions."""
    return parameter.dim() >= 2 and name not in NOT_KERNELS and not name.endswith(TABLE)


def layer_index(name: str, depth: int) -> int:
    """0 for the embedding, 1 to `depth` for the layers or stages, depth + 1 for the rest."""
    parts = name.split(".")
    if parts[0] in ("patch_embed", "stem", "positions") or name in TOKENS:
        return 0
    if parts[0] in ("blocks", "stages"):
        return int(parts[1]) + 1
    return depth + 1


def param_groups(
    parameters: Iterable[tuple[str, nn.Parameter]], *, depth: int, layer_decay: float = 1.0
) -> list[dict[str, Any]]:
    """Groups for an optimizer, with their names, `lr_scale`, and weight_decay 0 where none applies.

    The learning rate of layer i is multiplied by layer_decay ** (depth + 1 - i), so that the head
    learns at the full rate (BEiT, arXiv:2106.08254, appendix). Frozen parameters are left out.
    """
    groups: dict[tuple[int, bool], dict[str, Any]] = {}
    for name, parameter in parameters:
        if not parameter.requires_grad:
            continue
        layer = layer_index(name, depth) if layer_decay < 1 else depth + 1
        key = (layer, decays(name, parameter))
        if key not in groups:
            scale = layer_decay ** (depth + 1 - layer)
            groups[key] = {"params": [], "names": [], "lr_scale": scale}
            if not key[1]:
                groups[key]["weight_decay"] = 0.0
        groups[key]["params"].append(parameter)
        groups[key]["names"].append(name)
    return [groups[key] for key in sorted(groups)]
