"""Hugging Face's DINOv3ViT, read and written: rotary positions, registers, keys without biases.

Files on the hub have `layer.0. ...`, a state dict of transformers 5 `model.layer.0. ...`.
Source: transformers 5.23, models/dinov3_vit/{modeling,configuration}_dinov3_vit.py.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vit.checkpoints.exporting import ANY, check_expressed
from vit.checkpoints.files import WeightFile
from vit.checkpoints.huggingface.families import activation, check_family
from vit.checkpoints.layout import (
    HALVES,
    LazyTensors,
    MissingFact,
    Recognised,
    Rule,
    bound,
    count_layers,
    exported,
    layer,
)
from vit.checkpoints.preprocessing import from_huggingface, preparation
from vit.errors import UserError
from vit.models.config import Rotary, ViTConfig

_PATCHES = "embeddings.patch_embeddings.weight"
_PARTS = ("q", "k", "v")
# Fields of config.json that must hold these values where they are given.
_FIXED = {"proj_bias": True, "mlp_bias": True}


def matches(file: WeightFile) -> bool:
    """Whether the keys are a DINOv3ViT's."""
    return _PATCHES in file.shapes and f"{_stem(file)}0.attention.q_proj.weight" in file.shapes


def _stem(file: WeightFile) -> str:
    """What the keys of the layers begin with, before their number."""
    return "model.layer." if "model.layer.0.norm1.weight" in file.shapes else "layer."


def _rules(stem: str, depth: int, *, gated: bool) -> list[Rule]:
    """All but queries, keys and values."""
    rules = [
        Rule("cls_token", ("embeddings.cls_token",)),
        Rule("reg_token", ("embeddings.register_tokens",)),
        *layer("patch_embed.proj", "embeddings.patch_embeddings"),
        *layer("norm", "norm"),
    ]
    for i in range(depth):
        theirs = f"{stem}{i}."
        rules += [
            Rule(f"blocks.{i}.ls{n}.gamma", (f"{theirs}layer_scale{n}.lambda1",)) for n in (1, 2)
        ]
        rules += [rule for n in (1, 2) for rule in layer(f"blocks.{i}.norm{n}", f"{theirs}norm{n}")]
        rules += layer(f"blocks.{i}.attn.proj", f"{theirs}attention.o_proj")
        if gated:
            names = (f"{theirs}mlp.gate_proj", f"{theirs}mlp.up_proj")
            rules += layer(f"blocks.{i}.mlp.fc1", *names, op=HALVES)
        else:
            rules += layer(f"blocks.{i}.mlp.fc1", f"{theirs}mlp.up_proj")
        rules += layer(f"blocks.{i}.mlp.fc2", f"{theirs}mlp.down_proj")
    return rules


def recognise(file: WeightFile) -> Recognised:
    """A DINOv3ViT as one of our models; config.json supplies what shapes cannot say."""
    if file.config:  # a bare file has keys without biases, a sign of BEiT there
        check_family(file)
    for name, usual in _FIXED.items():
        if file.config.get(name, usual) != usual:
            raise UserError(f"{file.path}: {name}={file.config[name]!r} is not supported here")
    stem = _stem(file)
    depth = count_layers(file.shapes, stem)
    gated = f"{stem}0.mlp.gate_proj.weight" in file.shapes
    tensors, used = bound(file, _rules(stem, depth, gated=gated))
    for i in range(depth):
        for part in ("weight", "bias"):
            _join(file, tensors, used, f"{stem}{i}.attention.", i, part)
    if file.shapes.get("embeddings.register_tokens", (1, 0, 0))[1] == 0:
        tensors.pop("reg_token", None)  # a tensor of 0 tokens
    config = _config(file, stem, depth, gated=gated)
    mask = "embeddings.mask_token"
    return Recognised(
        format="Hugging Face",
        config=config,
        tensors=tensors,
        used=used,
        left_out={mask: "used in pre-training only"} if mask in file.shapes else {},
        **preparation(from_huggingface, file.preprocessor, config.size),
    )


def _join(
    file: WeightFile, tensors: LazyTensors, used: set[str], base: str, i: int, part: str
) -> None:
    """Queries, keys and values in one tensor; zeros for biases that the model is built without."""
    keys = [f"{base}{name}_proj.{part}" for name in _PARTS]
    present = [key in file.shapes for key in keys]
    if part == "weight" and not all(present):
        return  # named as missing when the model is built
    width = file.shapes[f"{base}q_proj.weight"][0]

    def read() -> Tensor:
        return torch.cat(
            [
                file.read(key) if there else torch.zeros(width)
                for key, there in zip(keys, present, strict=True)
            ]
        )

    tensors[f"blocks.{i}.attn.qkv.{part}"] = read
    used.update(key for key, there in zip(keys, present, strict=True) if there)


def _config(file: WeightFile, stem: str, depth: int, *, gated: bool) -> ViTConfig:
    shapes, config, hints = file.shapes, file.config, file.hints
    width, in_channels, patch_size, other_side = shapes[_PATCHES]
    if patch_size != other_side:
        raise UserError(
            f"{file.path} has patches of {patch_size}x{other_side} pixels; only squares fit"
        )
    heads = hints.get("num_heads") or config.get("num_attention_heads")
    if heads is None or not (config or "rotary" in hints):
        raise MissingFact(
            f"{file.path} needs the config.json that Hugging Face saves beside it: the number of "
            "attention heads and the form of the rotary positions are nowhere else; put it there, "
            "or",
            *([] if heads else ["num_heads=..."]),
            *([] if "rotary" in hints else ["rotary={}, DINOv3's,"]),
        )
    if gated and config.get("hidden_act", "silu") != "silu":
        raise UserError(
            f"{file.path}: hidden_act={config['hidden_act']!r} in a gated MLP is not supported "
            "here, only 'silu'"
        )
    size = hints.get("image_size") or config.get("image_size", 224)
    rows, columns = (size, size) if isinstance(size, int) else size
    down = shapes.get(f"{stem}0.mlp.down_proj.weight")
    if down is None:
        raise UserError(f"{file.path} has an MLP of other layers, which is not supported here")
    return ViTConfig(
        # The grid of an image is that of its whole patches.
        image_size=(rows // patch_size * patch_size, columns // patch_size * patch_size),
        patch_size=patch_size,
        in_channels=in_channels,
        num_classes=0,
        width=width,
        depth=depth,
        mlp_dim=down[1],
        num_heads=heads,
        num_registers=shapes.get("embeddings.register_tokens", (1, 0))[1],
        pos_embed="none",
        rotary=Rotary.of(hints["rotary"]) if "rotary" in hints else _rotary(file),
        layer_scale=float(config.get("layerscale_value", 1.0)),
        activation="swiglu" if gated else activation(file),
        layer_norm_eps=float(hints.get("layer_norm_eps", config.get("layer_norm_eps", 1e-5))),
    )


def _rotary(file: WeightFile) -> Rotary:
    """The positions of config.json, with the library's defaults."""
    config = file.config
    kinds = config.get("rope_parameters") or config.get("rope_scaling")
    if kinds:
        raise UserError(
            f"{file.path}: rotary positions with rope_parameters={kinds!r} are not supported here"
        )
    return Rotary(
        period=float(config.get("rope_theta", 100.0)),
        key_bias=bool(config.get("key_bias", False)),
        shift=config.get("pos_embed_shift"),
        jitter=config.get("pos_embed_jitter"),
        rescale=config.get("pos_embed_rescale", 2.0),
    )


def write(
    config: ViTConfig, state: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Any], list[str]]:
    """Tensors, config.json and notes; UserError where the library's DINOv3ViT is another model."""
    rotary = config.rotary
    assert rotary is not None
    check_expressed(
        "Hugging Face's dinov3_vit",
        config,
        "try --to timm",
        rotary=ANY,
        num_registers=ANY,
        pos_embed=("none",),
        pool=("cls", "gap", "cls_gap"),
        activation=("gelu", "gelu_tanh", "swiglu"),
        layer_scale=ANY,
    )
    if config.layer_scale is None or config.num_classes:
        part = "model without LayerScale" if config.layer_scale is None else "classifier"
        raise UserError(f"Hugging Face's dinov3_vit has no {part}; try --to timm")
    gated = config.activation == "swiglu"
    rest = {key: tensor for key, tensor in state.items() if ".attn.qkv." not in key}
    tensors = exported(rest, _rules("layer.", config.depth, gated=gated))
    for i in range(config.depth):
        for part in ("weight", "bias"):
            whole = state[f"blocks.{i}.attn.qkv.{part}"]
            for name, third in zip(_PARTS, whole.chunk(3), strict=True):
                if (name, part) != ("k", "bias") or rotary.key_bias:
                    key = f"layer.{i}.attention.{name}_proj.{part}"
                    tensors[key] = third.contiguous()
    token = state["cls_token"]
    tensors["embeddings.mask_token"] = torch.zeros_like(token)  # for pre-training alone
    if not config.num_registers:
        tensors["embeddings.register_tokens"] = token.new_zeros(1, 0, config.width)
    notes = []
    if config.pool != "cls":
        notes.append(
            "DINOv3ViTModel gives the class token as pooler_output, this model gives "
            f"pool={config.pool!r}; the tokens are the same"
        )
    form = "gelu_pytorch_tanh" if config.activation == "gelu_tanh" else "gelu"
    values = {
        "architectures": ["DINOv3ViTModel"],
        "model_type": "dinov3_vit",
        "hidden_size": config.width,
        "intermediate_size": config.mlp_dim,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "hidden_act": "silu" if gated else form,
        "use_gated_mlp": gated,
        "layer_norm_eps": config.layer_norm_eps,
        "image_size": config.size[0] if config.size[0] == config.size[1] else list(config.size),
        "patch_size": config.patch_size,
        "num_channels": config.in_channels,
        "num_register_tokens": config.num_registers,
        "query_bias": True,
        "key_bias": rotary.key_bias,
        "value_bias": True,
        "proj_bias": True,
        "mlp_bias": True,
        "layerscale_value": config.layer_scale,
        "drop_path_rate": config.drop_path,
        "rope_theta": rotary.period,
        "pos_embed_shift": rotary.shift,
        "pos_embed_jitter": rotary.jitter,
        "pos_embed_rescale": rotary.rescale,
    }
    return tensors, values, notes
