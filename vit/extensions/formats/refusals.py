"""Reasons for refusing families of ViTs that are published but compute other logits here."""

import re
from collections.abc import Iterable

from vit.errors import UserError, shorten

# Beginning of a word in the name of an architecture, a model_type or a repository -> what it has.
_FAMILIES = (
    ("siglip2|naflex", "patches of NaFlex"),
    ("(?<!_)siglip", "key names that are not read; timm's files of SigLIP are"),
    ("eva02_(?!enormous)|rope|mlcd", "rotary positions other than DINOv3's (EVA-02, RoPE-ViT)"),
    ("eva", "biases of queries and values that are stored apart (EVA)"),
    ("(meta)?clip|pe_|mci", "a norm before the blocks (CLIP, Perception Encoder)"),
    ("beit3", "norms inside attention and MLP"),
    ("beit|data2vec|relpos|samvit", "relative positions"),
    ("aimv2|sapiens2", "RMS norms"),
    ("xp_|pwee|18x2", "branches side by side in each layer"),
    ("dwee|dlittle", "differential attention"),
    ("radio|intern", "no norm after the last block"),
    ("resnetv2", "another ResNet than BiT's"),
    ("vit-hybrid|resnet", "another convolutional stem"),
    ("timesformer|vivit|videomae", "videos as input"),
)
# Part of a tensor's name -> what its model has.
_SIGNS = (
    (r"^norm_pre\.|pre_layrnorm", "a norm before the blocks (CLIP)"),
    (r"(^|\.)rope\.", "rotary positions"),
    (r"^rope_embed\.", "periods in bfloat16 (Meta's own DINOv3; timm's and Hugging Face's fit)"),
    (r"rel_pos|relative_position", "relative positions (as in BEiT)"),
    (r"\.attn\.[qk]_norm\.", "norms of queries and keys"),
    (r"\.attn\.q_proj\.", "queries, keys and values that are stored apart (EVA)"),
    (r"\.running_mean$", "batch norms"),
)


def reason(name: str) -> str:
    """A part of the models of that name that ours do not have, or ""."""
    parts = (why for start, why in _FAMILIES if re.search(rf"(^|[_./-])({start})", name.lower()))
    return next(parts, "")


def refused(owner: str, name: str) -> UserError:
    """For a family that is on no list of equal ones."""
    if why := reason(name):
        return UserError(f"{owner}'s {shorten(name)} has {why}, which is not supported here")
    return UserError(
        f"{owner}'s {shorten(name)} is no model that is known here to give the same logits"
    )


def sign_of_others(path: object, keys: Iterable[str]) -> UserError | None:
    """The error if a tensor's name shows a part that our models do not have."""
    keys = list(keys)
    for sign, why in _SIGNS:
        if any(re.search(sign, key) for key in keys):
            return UserError(f"{path} has {why}, which is not supported here")
    return None
