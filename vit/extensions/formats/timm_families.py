"""Facts about timm's models that no tensor shows: heads, GELU, pooling, rotary positions.

timm describes a file by an architecture and the arguments that were changed (`architecture` and
`model_args` of config.json). Architectures that give the same logits here are in families.yaml, and
a test compares them with timm's own entries; every other one is refused.
Source: timm 1.0.31, models/{vision_transformer,vision_transformer_hybrid,deit,resnetv2,eva}.py.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vit.errors import UserError
from vit.extensions.formats import timm_towers
from vit.extensions.formats.facts import heads_of_width
from vit.extensions.formats.refusals import FAMILIES, refused
from vit.extensions.formats.rotary import Rotary
from vit.models.config import Activation, ViTConfig
from vit.models.fields import JsonObject
from vit.weights.formats import MissingFact
from vit.weights.weight_file import WeightFile

_BIT = re.compile(r"resnetv2_\d+x\d_bit")
_GATES = ("silu", "swish")

# Width and patch size of models without a class token that have the tanh form of GELU -> sides of
# the grids at which only models with the exact form are published.
_SIGLIP_2 = {(768, 32): (), (1024, 16): (16, 24), (1152, 16): (), (1536, 16): ()}
# Sides of the grids at which ViT-B/16 without a class token is only published with 12 heads.
_TWELVE_HEADS = (16, 24, 32)


@dataclass(frozen=True)
class Family:
    """Facts that the name of an architecture states."""

    architecture: str
    width: int
    num_heads: int
    activation: Activation
    pool: str
    """timm's word: "token", "avg" or "map"."""


def architecture_of(file: WeightFile) -> str | None:
    """timm's name of the architecture, without tag and in today's spelling; None without one."""
    name = file.config.get("architecture") or described(file).get("architecture")
    if name is None:
        return None
    name = name.split(".")[0]
    for pattern, new in FAMILIES["renamed"].items():
        name = re.sub(pattern, new, name)
    return name


def tag_of(file: WeightFile) -> str:
    """The tag in the name of the architecture, as older versions of timm wrote it, or ""."""
    name = file.config.get("architecture") or described(file).get("architecture") or ""
    tag = re.search(r"(\.|_224_clip_)(\w+)$", name)
    return tag[2] if tag else ""


def described(file: WeightFile) -> dict[str, Any]:
    """`pretrained_cfg` of config.json, or all of it, as timm wrote it before."""
    config = file.config
    whole = {"label_names": config.get("labels"), **config} if "mean" in config else {}
    return config.get("pretrained_cfg") or whole


def arguments_of(file: WeightFile) -> dict[str, Any]:
    """`model_args` of config.json."""
    return file.config.get("model_args") or {}


def family_of(file: WeightFile) -> Family | None:
    """The family that the description names; None without one. UserError for an unknown one."""
    architecture = architecture_of(file)
    entry = None if architecture is None else family(architecture)
    if architecture is not None and entry is None:
        raise refused("timm", architecture)
    return entry


def family(architecture: str) -> Family | None:
    """The family of an architecture that gives the same logits here; None for any other one."""
    stem = re.sub(r"_\d+$", "", architecture)
    sizes = FAMILIES["sizes"]
    for pattern, pool in FAMILIES["equal"].items():
        if re.fullmatch(re.sub(r"(?<=[_(])S", f"({'|'.join(sizes)})", pattern), stem) is None:
            continue
        size = next((part for part in stem.split("_") if part in sizes), "")
        width, heads = FAMILIES["exceptions"].get(stem) or sizes[size]
        tanh = any(re.search(part, architecture) for part in FAMILIES["tanh"])
        activation = "quick_gelu" if "_quickgelu" in stem else "gelu_tanh" if tanh else "gelu"
        return Family(architecture, width, heads, activation, pool)
    return None


def is_bit(architecture: str) -> bool:
    """True for a BiT of timm's."""
    return _BIT.fullmatch(architecture) is not None


def rotary_of(file: WeightFile, entry: Family | None) -> Rotary | None:
    """Rotary positions by the user's word or DINOv3's arguments; None without."""
    if "rotary" in file.hints:
        hint = file.hints["rotary"]
        return None if hint is None else Rotary.of(hint)
    if entry is None or not re.search("dinov3|lingbot", entry.architecture):
        return None
    values = arguments_of(file)
    return Rotary(
        period=values.get("rope_temperature", 100.0),
        key_bias=values.get("attn_type") == "rope",
        shift=values.get("rope_shift_coords"),
        jitter=values.get("rope_jitter_coords"),
        rescale=values.get("rope_rescale_coords"),
    )


def tower(
    file: WeightFile, entry: Family | None, shapes: dict[str, tuple[int, ...]]
) -> JsonObject | None:
    """The field `tower` of a Perception Encoder or an EVA-02; None for another model."""
    if entry is None or timm_towers.kind_of(entry.architecture) is None:
        return None
    arguments = arguments_of(file)
    if arguments.get("ref_feat_shape", ()) is None:  # coordinates that no grid scales
        raise _unsupported(file, "ref_feat_shape", None)
    return timm_towers.tower_of(entry.architecture, arguments, shapes)


def epsilon(file: WeightFile, entry: Family | None, rotary: Rotary | None) -> float:
    """Epsilon of the norms: timm's 1e-6, or the 1e-5 of DINOv3 and CLIP."""
    if entry is None:
        is_tower = "norm_pre.weight" in file.shapes
    else:  # timm's own layer, if it is named, has 1e-6
        is_clip = re.search("^vit_.*(clip|pe)_", entry.architecture) is not None
        is_tower = is_clip and not arguments_of(file).get("norm_layer")
    usual = 1e-6 if rotary is None and not is_tower else 1e-5
    return file.hints.get("layer_norm_eps", usual)


def check_arguments(
    file: WeightFile,
    entry: Family | None,
    shapes: dict[str, tuple[int, ...]],
    rotary: Rotary | None = None,
) -> None:
    """UserError for an argument in `model_args` that may change logits; `shapes` by our names."""
    arguments, has_prefix = arguments_of(file), not {"cls_token", "reg_token"}.isdisjoint(shapes)
    patch_size = shapes.get("patch_embed.proj.weight", (1,))[-1]
    if {"dist_token", "reg_token"} <= shapes.keys():
        both = "registers beside a distillation token"
        raise UserError(f"{file.path} has {both}, which timm does not use")
    harmless = {
        "norm_layer": str(arguments.get("norm_layer")).replace("_", "").lower() == "layernorm",
        "pool_include_prefix": not (arguments.get("pool_include_prefix") and has_prefix)
        or pooling(file, entry) == "token",
        "dynamic_img_pad": not arguments.get("dynamic_img_pad") or _divides(file, patch_size),
    }
    if rotary is not None:
        harmless |= dict.fromkeys(FAMILIES["known_of_dinov3"].split(), True)
        form = FAMILIES["rotary_form"].items()
        harmless |= {name: arguments.get(name) == value for name, value in form}
    known = FAMILIES["known"].split()
    if entry is not None and (kind := timm_towers.kind_of(entry.architecture)):
        harmless |= dict.fromkeys(kind["known"].split(), True)
        harmless |= {name: arguments.get(name) == value for name, value in kind["form"].items()}
    for name, value in arguments.items():
        if name not in known and value is not None and not harmless.get(name):
            raise _unsupported(file, name, value)


def _divides(file: WeightFile, patch_size: int) -> bool:
    """True if images of the model's own size fill their patches without padding."""
    size = arguments_of(file).get("img_size") or described(file).get("input_size", [0, 0])[1:]
    sides = [size] if isinstance(size, int) else list(size)
    return bool(sides) and not any(side % patch_size for side in sides)


def _unsupported(file: WeightFile, name: str, value: object) -> UserError:
    return UserError(f"{file.path}: timm's {name}={value!r} (config.json) is not supported here")


def activation(
    file: WeightFile, entry: Family | None, shapes: dict[str, tuple[int, ...]]
) -> Activation:
    """GELU's form by the user's word, else the description's, else timm's habit."""
    if "activation" in file.hints:
        return file.hints["activation"]
    name = arguments_of(file).get("act_layer")
    split = "blocks.0.mlp.fc1_g.weight" in file.shapes
    if split or shapes["blocks.0.mlp.fc1.weight"][0] == 2 * shapes["blocks.0.mlp.fc2.weight"][1]:
        if name is not None and name not in _GATES:
            raise _unsupported(file, "act_layer", name)
        return "swiglu"
    if name is None:
        return _of_origin(file, entry, shapes) if entry else "gelu"
    if name not in FAMILIES["activations"]:
        raise _unsupported(file, "act_layer", name)
    return FAMILIES["activations"][name]


def _of_origin(file: WeightFile, entry: Family, shapes: dict[str, tuple[int, ...]]) -> Activation:
    """GELU's form in the training of the weights: by their tag where timm has an entry for each
    form, else the entry's. UserError if both are possible."""
    if entry.architecture not in FAMILIES["quick"]:
        return entry.activation
    projection, *tags = FAMILIES["quick"][entry.architecture]
    tag = described(file).get("tag") or tag_of(file)
    if tag and tag not in tags:
        return entry.activation
    if tag and shapes.get("head.weight", (0,))[0] == projection:
        return "quick_gelu"
    why = "has no tag of its weights"
    if tag:
        why = f"has the tag {tag!r}, which was trained with quick_gelu, and another head"
    raise MissingFact(
        f"{file.path}: config.json of {entry.architecture} {why}, so it does not say which form of "
        "GELU they have; give activation='quick_gelu' or 'gelu'"
    )


def heads(
    file: WeightFile, entry: Family | None, width: int, notes: list[str], *, scaled: bool
) -> int:
    """Attention heads by the user's word or the description, else as of `heads_of_width`.

    An architecture's number holds at its own width, and where `embed_dim` was changed alone.
    """
    arguments = arguments_of(file)
    number = file.hints.get("num_heads") or arguments.get("num_heads")
    if number is None and entry is not None and (width == entry.width or "embed_dim" in arguments):
        number = entry.num_heads
    return number or heads_of_width(file, width, notes, scaled=scaled)


def has_qkv_biases(file: WeightFile, entry: Family | None, rotary: Rotary | None = None) -> bool:
    """True if the queries, keys and values have biases."""
    if entry is None and rotary is not None and not rotary.key_bias:
        return False
    has_biases = entry is None or not re.search(FAMILIES["without_qkv_biases"], entry.architecture)
    return arguments_of(file).get("qkv_bias", has_biases) is not False


def pooling(file: WeightFile, entry: Family | None) -> str | None:
    """timm's word for the pooling, None if it is not stated. UserError for one we do not have."""
    if "pool" in file.hints:
        return None
    name = file.config.get("global_pool")
    if name is None:
        name = arguments_of(file).get("global_pool", entry.pool if entry else None)
    # The attention pooling of timm's Eva sees the class token, too.
    if name not in (None, "token", "avg", "map") or (name == "map" and is_eva(entry)):
        raise _unsupported(file, "global_pool", name)
    return name


def is_eva(entry: Family | None) -> bool:
    """True for an EVA-g or an EVA-02, whose biases of queries and values are apart."""
    return entry is not None and entry.architecture.startswith(("eva_giant", "eva02"))


def check_bit(file: WeightFile) -> None:
    """UserError for a BiT with another pooling or activation."""
    arguments = arguments_of(file)
    for name, usual in (("global_pool", "avg"), ("act_layer", "relu")):
        value = arguments.get(name) or file.config.get(name) or usual
        if value != usual:
            raise _unsupported(file, name, value)


def _check_clip(file: WeightFile, config: ViTConfig, stated: Mapping[str, object]) -> None:
    """UserError where a file with a norm before the blocks is not sure to be a CLIP of one GELU."""
    if config.pool == "map" or config.layer_scale is not None or "tower" in file.hints:
        raise UserError(
            f"{file.path} may be a Perception Encoder, whose rotary positions leave no tensors; "
            "load it with the config.json that timm saves beside it"
        )
    if "activation" not in stated:
        raise MissingFact(
            f"{file.path} has a norm before the blocks, as CLIP has, and does not say which form "
            "of GELU: OpenAI's, MetaCLIP's and some others have the quick one; give "
            "activation='quick_gelu' or 'gelu'"
        )


def check_silent(file: WeightFile, config: ViTConfig) -> None:
    """UserError where a file without an architecture's name leaves open a fact that changes logits.

    The user's options supply it. What timm's habit decides (exact GELU at most shapes) is only a
    note of the report.
    """
    hints, stated = file.hints, {**file.hints, **arguments_of(file)}
    if config.pre_norm:
        _check_clip(file, config, stated)
    if config.rotary is None and config.pos_embed == "none" and "pos_embed" not in stated:
        raise MissingFact(
            f"{file.path} has no table of positions and no description of its model: rotary "
            "positions leave no tensors, so load one with the config.json that timm saves beside "
            "it; give pos_embed='none' if it has no positions at all"
        )
    # DeiT's own files have their tensors in an entry "model".
    spelled_gamma = "blocks.0.gamma_1" in file.shapes and file.prefix != "model."
    if config.rotary is None and spelled_gamma and "pos_embed" not in hints:
        raise MissingFact(
            f"{file.path} may be DeiT-III's or one of timm's ViTs with rotary positions: their "
            "tensors are the same, so load those with the config.json that timm saves beside them; "
            "give pos_embed='learned' if it is DeiT-III's"
        )
    if config.pool == "map" and config.num_registers and config.layer_scale is not None:
        raise UserError(
            f"{file.path} does not say whether its attention pooling sees the registers; load it "
            "with the config.json that timm saves beside it"
        )
    if config.class_token or config.num_registers or config.norm_after_pool:
        return
    shape, side = (config.width, config.patch_size), config.grid[0]
    if shape in _SIGLIP_2 and side not in _SIGLIP_2[shape] and "activation" not in hints:
        raise MissingFact(
            f"{file.path} does not say which form of GELU it has: of SigLIP's models of width "
            f"{config.width} with patches of {config.patch_size}, some have the tanh form; give "
            "activation='gelu_tanh' or 'gelu'"
        )
    if config.pool == "gap" and shape == (768, 16) and side not in _TWELVE_HEADS:
        if "num_heads" not in stated:
            raise MissingFact(
                f"{file.path} does not say how many attention heads it has: of timm's models of "
                "width 768 without a class token, SigLIP's have 12 and vit_base_patch16_gap_224 "
                "has 16; give num_heads=..."
            )
