"""Image towers of transformers' CLIP, MetaCLIP 2, SigLIP and SigLIP 2, read and written.

A file may hold the tower alone, the tower with its projection, or the whole model, whose text tower
is left out. Source: transformers 5.23, models/{clip,metaclip_2,siglip,siglip2}/modeling_*.py.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vit.errors import UserError
from vit.extensions.formats.exporting import ANY, check_expressed
from vit.extensions.formats.facts import count_layers, grid_of
from vit.extensions.formats.layout import JOINED, SAME, Op, Rule, bound, exported, layer
from vit.extensions.formats.preprocessing import (
    HUGGING_FACE,
    from_huggingface,
    preparation,
    without_rest,
)
from vit.models.config import ViTConfig
from vit.models.fields import JsonObject, as_size
from vit.weights.formats import MissingFact, Recognised
from vit.weights.weight_file import WeightFile

_PATCHES = "embeddings.patch_embedding.weight"
_BESIDE = ("text_model.", "text_projection.", "logit_scale", "logit_bias")
_TOKEN = Op(lambda t: t[None, None], lambda t: (t[0, 0],))
_TABLE = Op(lambda t: t[None], lambda t: (t[0],))
_QUERIES = Op(lambda t: t.chunk(3)[0], lambda t: (t,))
_KEYS_AND_VALUES = Op(lambda t: torch.cat(t.chunk(3)[1:]), lambda t: (t,))
_HIDDEN_ACT = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "quick_gelu": "quick_gelu"}


def matches(file: WeightFile) -> bool:
    return any(key.endswith(_PATCHES) for key in file.shapes)


def is_tower(config: ViTConfig) -> bool:
    """True for a model that can only be one of these towers."""
    return config.pre_norm or config.pool == "map"


def recognise(file: WeightFile) -> Recognised:
    """The image tower of a file, with the projection as its head, if there is one."""
    keys = file.shapes
    prefix = next(key for key in keys if key.endswith(_PATCHES)).removesuffix(_PATCHES)
    config = _config(file, prefix)
    pooled = [
        Rule(f"attn_pool.{name}.{part}", (f"{prefix}head.attention.in_proj_{part}",), op)
        for name, op in (("q", _QUERIES), ("kv", _KEYS_AND_VALUES))
        for part in ("weight", "bias")
    ]
    flat = len(keys[prefix + _PATCHES]) == 2
    tensors, used = bound(file, [*_rules(config, prefix, flat=flat), *pooled])
    if config.num_classes:
        tensors["head.bias"] = lambda: torch.zeros(config.num_classes)
    constants = {key for key in keys if key.endswith("embeddings.position_ids")}
    beside = {key for key in keys if key.startswith(_BESIDE)}
    prepared = preparation(from_huggingface, file.preprocessor, config.size)
    prepared, cut = without_rest(prepared, config.patch_size)
    return Recognised(
        format="Hugging Face",
        config=config,
        tensors=tensors,
        used=used | constants | beside,
        left_out={"text_model": "the text tower"} if beside else {},
        **prepared,
        extra={"projection": True} if config.num_classes else {},
        notes=cut
        + ([] if file.config else ["there is no config.json: the usual epsilon is assumed"]),
    )


def _rules(config: ViTConfig, prefix: str, *, flat: bool) -> list[Rule]:
    """Rules but for the joint matrix of the pooling. `flat`: patches are rows of numbers."""
    side, channels = config.patch_size, config.in_channels
    rows = Op(
        lambda t: t.unflatten(1, (side, side, channels)).permute(0, 3, 1, 2),
        lambda t: (t.permute(0, 2, 3, 1).flatten(1),),
    )
    patches, pool = f"{prefix}embeddings.patch_embedding", f"{prefix}head"
    rules = [
        Rule("cls_token", (f"{prefix}embeddings.class_embedding",), _TOKEN),
        Rule("pos_embed", (f"{prefix}embeddings.position_embedding.weight",), _TABLE),
        Rule("patch_embed.proj.weight", (f"{patches}.weight",), rows if flat else SAME),
        Rule("patch_embed.proj.bias", (f"{patches}.bias",)),
        *layer("norm_pre", f"{prefix}pre_layrnorm"),
        *layer("norm", f"{prefix}post_layernorm"),
        Rule("head.weight", ("visual_projection.weight",)),
        Rule("attn_pool.latent", (f"{pool}.probe",)),
        *layer("attn_pool.proj", f"{pool}.attention.out_proj"),
        *layer("attn_pool.norm", f"{pool}.layernorm"),
        *layer("attn_pool.mlp.fc1", f"{pool}.mlp.fc1"),
        *layer("attn_pool.mlp.fc2", f"{pool}.mlp.fc2"),
    ]
    return rules + encoder_rules(prefix, config.depth)


def encoder_rules(prefix: str, depth: int) -> list[Rule]:
    """Rules of the layers of a tower, of images or texts."""
    rules: list[Rule] = []
    for i in range(depth):
        ours, theirs = f"blocks.{i}.", f"{prefix}encoder.layers.{i}."
        attention = [f"{theirs}self_attn.{name}_proj" for name in "qkv"]
        rules += layer(f"{ours}attn.qkv", *attention, op=JOINED)
        rules += layer(f"{ours}attn.proj", f"{theirs}self_attn.out_proj")
        for n in (1, 2):
            rules += layer(f"{ours}norm{n}", f"{theirs}layer_norm{n}")
            rules += layer(f"{ours}mlp.fc{n}", f"{theirs}mlp.fc{n}")
    return rules


def _config(file: WeightFile, prefix: str) -> ViTConfig:
    shapes = file.shapes
    is_clip = f"{prefix}pre_layrnorm.weight" in shapes
    if not is_clip and f"{prefix}head.probe" not in shapes:
        raise UserError(f"{file.path} has neither CLIP's norm nor SigLIP's pooling, or lacks it")
    values = _described(file, is_clip=is_clip)
    patches = shapes[prefix + _PATCHES]
    naflex = len(patches) == 2
    side = values.get("patch_size") if naflex else patches[2]
    if side is None or (not naflex and patches[2] != patches[3]):
        raise UserError(f"{file.path} does not say the size of its patches, or has no square ones")
    entries = shapes[f"{prefix}embeddings.position_embedding.weight"][0]
    size = None if naflex else values.get("image_size")  # NaFlex resizes a square table
    grid, _ = grid_of(entries, [int(is_clip)], as_size(size) if size else None, side, stated=True)
    return ViTConfig(
        image_size=(grid[0] * side, grid[1] * side),
        patch_size=side,
        in_channels=patches[1] // side**2 if naflex else patches[1],
        num_classes=shapes.get("visual_projection.weight", (0,))[0],
        width=patches[0],
        depth=count_layers(shapes, f"{prefix}encoder.layers."),
        mlp_dim=shapes[f"{prefix}encoder.layers.0.mlp.fc1.weight"][0],
        num_heads=values["num_attention_heads"],
        pool="cls" if is_clip else "map",
        class_token=is_clip,
        pos_embed_class_slot=is_clip,
        pos_resize="bilinear_antialias" if naflex else "bicubic",
        activation=values["activation"],
        pre_norm=is_clip,
        layer_norm_eps=values["layer_norm_eps"],
    )


def _described(file: WeightFile, *, is_clip: bool) -> JsonObject:
    """Fields of config.json, with the library's defaults where it leaves some out; heads, GELU and
    epsilon by the user's word come first. MissingFact for a fact that nothing states."""
    described, hints = file.config.get("vision_config") or file.config, file.hints
    usual = HUGGING_FACE["towers"]["clip" if is_clip else "siglip"]
    if is_clip and (older := file.config.get("vision_config_dict")):  # wins, with its defaults
        described = {**described, **usual, **older}
    values = {**usual, **{k: v for k, v in described.items() if v is not None}}
    if not file.config:
        values = {"layer_norm_eps": usual["layer_norm_eps"]}
    if "hidden_act" in values:
        known = HUGGING_FACE["activations"]
        if (name := values["hidden_act"]) not in known and "activation" not in hints:
            raise UserError(f"{file.path}: hidden_act={name!r} is not one of {', '.join(known)}")
        values["activation"] = known.get(name)
    if "num_heads" in hints:
        values["num_attention_heads"] = hints["num_heads"]
    values |= {name: hints[name] for name in ("activation", "layer_norm_eps") if name in hints}
    forms = "'quick_gelu' or 'gelu'" if is_clip else "'gelu_tanh'"
    options = {"num_attention_heads": "num_heads=...", "activation": f"activation={forms}"}
    if missing := [option for name, option in options.items() if name not in values]:
        raise MissingFact(
            f"{file.path} needs the config.json that Hugging Face saves beside it, which states "
            f"heads and GELU; put it there, or give {' and '.join(missing)}"
        )
    return values


def refuses(model_type: str) -> bool:
    """False for the type of a model whose image tower is read here."""
    name = re.sub("_vision_model$", "", model_type)
    return name not in ("clip", "metaclip_2", "siglip", "siglip2")


def write(
    config: ViTConfig, state: Mapping[str, Tensor], classes: list[str] | None
) -> tuple[dict[str, Tensor], dict[str, Any], list[str]]:
    """Tensors, config.json, and notes. UserError where no tower of the library is the same."""
    kind, flat = _kind(config), config.pos_resize == "bilinear_antialias"
    tensors, prefix = dict(state), "vision_model." if config.num_classes else ""
    bias = tensors.pop("head.bias", None)
    if classes is not None or (bias is not None and bool(bias.any())):
        raise UserError(
            "transformers' CLIP has a projection without a bias, and no classes on the class "
            "token; try --to timm"
        )
    if config.pool == "map":
        for part in ("weight", "bias"):
            pair = [tensors.pop(f"attn_pool.{name}.{part}") for name in ("q", "kv")]
            tensors[f"attn_pool.in_proj.{part}"] = torch.cat(pair)
    rules = _rules(config, prefix, flat=flat)
    for part in ("weight", "bias"):
        rules.append(Rule(f"attn_pool.in_proj.{part}", (f"head.attention.in_proj_{part}",)))
    architecture, model_type = HUGGING_FACE["towers"][kind]["written"]
    values = {
        "architectures": [architecture + ("WithProjection" if config.num_classes else "")],
        "model_type": model_type,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "hidden_act": _HIDDEN_ACT[config.activation],
        "layer_norm_eps": config.layer_norm_eps,
        "image_size": config.size[0],
        "patch_size": config.patch_size,
        "num_channels": config.in_channels,
        **({"projection_dim": config.num_classes} if config.num_classes else {}),
        **({"num_patches": config.num_patches} if kind == "siglip2" else {}),
    }
    return exported(tensors, rules), values, []


def _kind(config: ViTConfig) -> str:
    """The tower that computes the same. UserError where none does."""
    expressed: dict[str, Any] = {
        "image_size": [(config.size[0],) * 2],
        "activation": tuple(_HIDDEN_ACT),
    }
    if config.pre_norm:
        kind, expressed["pre_norm"] = "clip", (True,)
    else:
        kind = "siglip2" if config.pos_resize == "bilinear_antialias" else "siglip"
        expressed |= {"pool": ("map",), "class_token": (False,), "pos_embed_class_slot": ANY}
        expressed["num_classes"] = (0,)
    check_expressed(f"Hugging Face's {kind}", config, "try --to timm", **expressed)
    return kind
