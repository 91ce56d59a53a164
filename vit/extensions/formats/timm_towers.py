"""timm's Perception Encoder and EVA-02: rows of the rules, and arguments of both.

Source: timm 1.0.31, models/eva.py (vit_pe_* and eva02_*). Its pairs of channels that turn together
are neighbours; ours are half a head apart, so that rows of queries and keys change their places.
EVA-02's keys have no biases, and some store queries, keys and values, gate and value apart.
"""

import re
from typing import Any

import torch
from torch import Tensor

from vit.errors import UserError
from vit.extensions.formats.exporting import ANY
from vit.extensions.formats.layout import HALVES, JOINED, KEYLESS, Op, Rule
from vit.extensions.formats.refusals import FAMILIES
from vit.models.config import ViTConfig
from vit.models.fields import JsonObject, as_size

_KINDS: dict[str, dict[str, Any]] = FAMILIES["towers"]


def kind_of(architecture: str) -> dict[str, Any] | None:
    """Row of families.yaml for a tower of timm's; None for another model."""
    return next((k for k in _KINDS.values() if architecture.startswith(k["start"])), None)


def tower_of(
    architecture: str, arguments: JsonObject, shapes: dict[str, tuple[int, ...]]
) -> JsonObject:
    """The field `tower` of a file, by the architecture and the arguments that were changed."""
    if kind_of(architecture) is _KINDS["eva"]:
        return _eva_of(architecture, arguments, shapes)
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


def _eva_of(
    architecture: str, arguments: JsonObject, shapes: dict[str, tuple[int, ...]]
) -> JsonObject:
    is_enormous = "enormous" in architecture
    turns = arguments.get("use_rot_pos_emb", not is_enormous)
    return {
        "reference": list(as_size(arguments.get("ref_feat_shape", 16))),
        "offset": arguments.get("rope_grid_offset", 0.0),
        "period": arguments.get("rope_temperature", 10_000.0) if turns else None,
        "order": "yx",
        "final_norm": not shapes.keys().isdisjoint({"norm.weight", "fc_norm.weight"}),
        "key_bias": False,
        "inner_norm": "blocks.0.attn.norm.weight" in shapes,
        "mlp_norm": "blocks.0.mlp.norm.weight" in shapes,
        "post_norm": arguments.get("use_post_norm", is_enormous),
    }


def joined(ours: str, *, keyless: bool, split: bool) -> Rule | None:
    """Rule for one of our tensors that timm's Eva stores apart; None for any other.

    `keyless`: the keys have no biases; `split`: the gate and the value of the MLP are two layers.
    """
    if keyless and ours.endswith(".attn.qkv.bias"):
        block = ours.removesuffix("qkv.bias")
        return Rule(ours, (f"{block}q_bias", f"{block}v_bias"), KEYLESS)
    if split and ".mlp.fc1." in ours:
        return Rule(ours, tuple(ours.replace("fc1", f"fc1_{part}") for part in "gx"), HALVES)
    return None


def rule(ours: str, theirs: str, num_heads: int, *, keyless: bool, apart: bool) -> Rule:
    """Rule for one of a tower's tensors, which timm spells as `theirs` if it is alone.

    As `joined`; `apart`: queries, keys and values are layers of their own, too.
    """
    rule = joined(ours, keyless=keyless, split=apart) or Rule(ours, (theirs,))
    block, layer, part = ours.partition("qkv.")
    if layer and apart:
        letters = "qv" if keyless and part == "bias" else "qkv"
        names = tuple(f"{block}{letter}_proj.{part}" for letter in letters)
        rule = Rule(ours, names, KEYLESS if letters == "qv" else JOINED)
    return Rule(ours, rule.theirs, _halves(num_heads, rule.op)) if layer else rule


def _halves(num_heads: int, op: Op) -> Op:
    """The change of place of the rows of queries and keys after `op`, and its inverse."""

    def changed(joint: Tensor, *, read: bool) -> Tensor:
        q, k, v = joint.chunk(3)
        pairs = (num_heads, -1, 2) if read else (num_heads, 2, -1)
        q, k = (t.unflatten(0, pairs).transpose(1, 2).flatten(0, 2) for t in (q, k))
        return torch.cat([q, k, v])

    return Op(
        lambda *ts: changed(op.read(*ts), read=True),
        lambda t: op.write(changed(t, read=False)),
    )


def entry_of(tower: JsonObject) -> tuple[str, str, dict[str, Any]]:
    """Name of such towers, the entry of timm that is written, and the values that its fields have.

    UserError for options of a tower that timm's have not.
    """
    kind = _KINDS["eva" if parts(tower)["keyless"] else "perception"]
    for name, usual in kind["options"].items():
        if tower.get(name, usual) != usual:
            raise UserError(f"{kind['project']} has {name}={usual!r}; keep it --to native")
    scales = {"layer_scale": (None,)} if tower.get("post_norm") else {}
    return kind["project"], kind["entry"], {"tower": ANY, **kind["fields"], **scales}


def parts(tower: JsonObject) -> dict[str, bool]:
    """Options of `rule` by which a tower is written: apart as in the published weights."""
    return {"keyless": not tower.get("key_bias", True), "apart": bool(tower.get("mlp_norm"))}


def arguments(config: ViTConfig, tower: JsonObject) -> JsonObject:
    """Arguments of the entry beside those of every ViT."""
    shared = {
        "no_embed_class": bool(config.class_token and not config.pos_embed_class_slot),
        "ref_feat_shape": tower["reference"],
        "rope_grid_offset": tower["offset"],
        "use_post_transformer_norm": tower["final_norm"] and not config.norm_after_pool,
    }
    keyless, apart = parts(tower).values()
    if not keyless:
        return {
            **_KINDS["perception"]["form"],
            **shared,
            "rope_temperature": tower["period"],
            "attn_pool_num_heads": tower["pool_heads"],
            "attn_pool_mlp_ratio": tower["pool_mlp_dim"] / config.width,
        }
    return {
        **_KINDS["eva"]["form"],
        **shared,
        "rope_temperature": tower["period"] or 10_000.0,
        "use_rot_pos_emb": tower["period"] is not None,
        "use_fc_norm": config.norm_after_pool,
        "use_post_norm": tower["post_norm"],
        "qkv_fused": not apart,
        "swiglu_mlp": config.activation == "swiglu",
        "scale_mlp": apart,
        "scale_attn_inner": tower["inner_norm"],
    }
