"""timm's Perception Encoder (core, spatial and lang): its rows of the rules, and its arguments.

Source: timm 1.0.31, models/eva.py (vit_pe_*). Its pairs of channels that turn together are
neighbours; ours are half a head apart, so that rows of queries and keys change their places.
"""

import re
from typing import Any

import torch
from torch import Tensor

from vit.errors import UserError
from vit.extensions.formats.exporting import ANY
from vit.extensions.formats.layout import SAME, Op, Rule
from vit.extensions.formats.refusals import FAMILIES
from vit.models.config import ViTConfig
from vit.models.fields import JsonObject, as_size

ENTRY = "vit_pe_core_tiny_patch16_384"
"""The entry of timm that is written, with all arguments."""


EXPRESSED: dict[str, Any] = {
    "tower": ANY,
    "pre_norm": (True,),
    "pool": ("cls", "gap", "map"),
    "activation": ("gelu",),
    "norm_after_pool": (False,),
    "distillation_token": (False,),
    "num_registers": (0,),
    "pos_embed": ("learned",),
    "stem_depths": (None,),
    "layer_norm_eps": (1e-5,),
}
"""Values of the fields that ENTRY has."""


def is_tower(architecture: str) -> bool:
    """True for a Perception Encoder of timm's."""
    return architecture.startswith("vit_pe_")


def tower_of(
    architecture: str, arguments: JsonObject, shapes: dict[str, tuple[int, ...]]
) -> JsonObject:
    """The field `tower` of a file, by the architecture and the arguments that were changed."""
    # Sides of the patches and of the images of the training.
    patch, side = re.findall(r"\d+", architecture)
    reference = arguments.get("ref_feat_shape", int(side) // int(patch))
    tower: JsonObject = {
        "reference": list(as_size(reference)),
        "offset": arguments.get("rope_grid_offset", 0.0 if "gigantic" in architecture else 1.0),
        "period": arguments.get("rope_temperature", 10_000.0),
        "pool_heads": arguments.get("attn_pool_num_heads", 8),
        "final_norm": "norm.weight" in shapes,
    }
    if "attn_pool.mlp.fc1.weight" in shapes:
        tower["pool_mlp_dim"] = shapes["attn_pool.mlp.fc1.weight"][0]
    return tower


def rule(ours: str, theirs: str, num_heads: int) -> Rule:
    """Rule for one of our tensors."""
    return Rule(ours, (theirs,), _halves(num_heads) if ".attn.qkv." in ours else SAME)


def _halves(num_heads: int) -> Op:
    """The change of place of the rows of queries and keys, and its inverse."""

    def changed(joint: Tensor, *, read: bool) -> Tensor:
        q, k, v = joint.chunk(3)
        pairs = (num_heads, -1, 2) if read else (num_heads, 2, -1)
        q, k = (t.unflatten(0, pairs).transpose(1, 2).flatten(0, 2) for t in (q, k))
        return torch.cat([q, k, v])

    return Op(lambda t: changed(t, read=True), lambda t: (changed(t, read=False),))


def arguments(config: ViTConfig, tower: JsonObject) -> JsonObject:
    """Arguments of ENTRY beside those of every ViT. UserError where it has no such model."""
    if tower["order"] != "xy":
        raise UserError("timm's Perception Encoder has order='xy'; keep it --to native")
    return {
        **FAMILIES["perception_form"],
        "no_embed_class": bool(config.class_token and not config.pos_embed_class_slot),
        "ref_feat_shape": tower["reference"],
        "rope_grid_offset": tower["offset"],
        "rope_temperature": tower["period"],
        "use_post_transformer_norm": tower["final_norm"],
        "attn_pool_num_heads": tower["pool_heads"],
        "attn_pool_mlp_ratio": tower["pool_mlp_dim"] / config.width,
    }
