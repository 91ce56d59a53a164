"""Google's .npz files: ViT, AugReg, SAM and big_vision, hybrids, and BiT.

One layout under several names: the suffixes of Flax before and after linen, three prefixes, the
position table at the root, layers stacked by `scan`, and attention pooling beside or inside
MAPHead_0. Flax keeps matrices as input x output, and attention by head: query, key and value
`d h e`, out `h e d` (d width, h heads, e = d / h).
Sources: vision_transformer, vit_jax/{models_vit,models_resnet,checkpoint}.py; big_vision,
models/vit.py; big_transfer, bit_pytorch/models.py.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import override

from vit.extensions.formats.exporting import (
    ANY,
    Export,
    NativeInfo,
    Writable,
    arithmetic_notes,
    check_expressed,
)
from vit.extensions.formats.facts import grid_of, patch_size_of
from vit.extensions.formats.layout import HWIO, TRANSPOSED, Op, Rule, bound, exported, renamed
from vit.extensions.formats.preprocessing import squashed
from vit.models.config import ROOT_CHANNELS, ResNetConfig, ViTConfig
from vit.models.zoo import ModelConfig
from vit.preprocessing import Preprocess
from vit.weights.formats import Recognised
from vit.weights.weight_file import WeightFile
from vit.writing import atomic

_PREFIX = re.compile(r"^(opt/target/|params/img/|params/)")
_NUMBERED = re.compile(r"(standardized_conv2d|group_norm|conv2d)_\d+(?=/)")
_LAYER, _STACKED = "Transformer/encoderblock_{}/", "Transformer/encoderblock/"
_PARTS = ("MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")
_PARTS_OF_LINEN = ("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")
_OLD_MAP = re.compile(r"^(probe$|MultiHeadDotProductAttention_0/|LayerNorm_0/|MlpBlock_0/)")
_ROOT_POSITIONS = "pos_embedding"
_INPUT_POSITIONS = "Transformer/posembed_input/pos_embedding"
_BIT_ROOT = "resnet/root_block/standardized_conv2d/kernel"


def _canonical(key: str) -> str:
    key = _PREFIX.sub("", key)
    if key.startswith("resnet/"):
        return _NUMBERED.sub(r"\1", key)
    return f"MAPHead_0/{key}" if _OLD_MAP.match(key) else key


class Google(Writable):
    """Row of the table `formats`."""

    suffix = ".npz"

    @override
    def matches(self, file: WeightFile) -> bool:
        names = {_canonical(key) for key in file.shapes}
        return "embedding/kernel" in names or _BIT_ROOT in names

    @override
    def recognise(self, file: WeightFile) -> Recognised:
        """A Google file as one of our models, with the arithmetic of Google's code."""
        named = renamed(file, _canonical)
        original = {_canonical(key): key for key in file.shapes}
        recognised = _recognise_bit(named) if _BIT_ROOT in named.shapes else _recognise_vit(named)
        recognised.used = {original[key] for key in recognised.used}
        return recognised

    @override
    def write(self, config: ModelConfig, state: Mapping[str, Tensor], info: NativeInfo) -> Export:
        """A .npz file as Google's releases are. UserError if its code has no such model."""
        if isinstance(config, ResNetConfig):
            rules = _bit_rules(config.depths)
            notes = arithmetic_notes("Google", config, ws_mode="google_bit")
        else:
            check_expressed(
                "Google's ViT",
                config,
                "try --to timm",
                pool=("cls", "map") if config.class_token else ("gap", "map"),
                class_token=ANY,
                pos_embed=("learned", "sincos2d"),
                image_size=ANY if config.pos_embed == "sincos2d" else [(config.size[0],) * 2],
                pos_embed_class_slot=ANY,
                representation_size=ANY,
                activation=("gelu", "gelu_tanh"),
                stem_depths=ANY,
            )
            root = config.class_token and not config.pos_embed_class_slot
            positions = [_ROOT_POSITIONS if root else _INPUT_POSITIONS]
            rules = _vit_rules(
                config, positions if config.pos_embed == "learned" else [], _LAYER, _PARTS
            )
            theirs = {"ws_mode": "google_hybrid", "activation": "gelu_tanh", "layer_norm_eps": 1e-6}
            notes = arithmetic_notes("Google", config, **theirs)
        tensors = exported(state, rules)

        def save(target: Path) -> list[Path]:
            import numpy as np  # the format is numpy's

            with atomic(target) as temporary, temporary.open("wb") as stream:
                np.savez(stream, allow_pickle=False, **{k: t.numpy() for k, t in tensors.items()})
            return [target]

        return Export(save=save, notes=notes)


def _recognise_vit(file: WeightFile) -> Recognised:
    shapes = file.shapes
    stacked = any(key.startswith(_STACKED) for key in shapes)
    layer = _STACKED if stacked else _LAYER
    linen = f"{layer.format(0)}{_PARTS_OF_LINEN[2]}/Dense_0/kernel" in shapes
    names = _PARTS_OF_LINEN if linen else _PARTS
    query = shapes[f"{layer.format(0)}{names[0]}/query/kernel"]
    if stacked:
        depth, query = query[0], query[1:]
    else:
        depth = len({key.split("/")[1] for key in shapes if "/encoderblock_" in key})
    mlp_dim = shapes[f"{layer.format(0)}{names[2]}/Dense_0/kernel"][-1]
    config = _config(file, depth, query, mlp_dim)
    positions = [name for name in (_ROOT_POSITIONS, _INPUT_POSITIONS) if name in shapes]
    rules = _vit_rules(config, positions[:1], layer, names)
    if stacked:  # else every layer would unpack the arrays of all layers again
        cached = lru_cache(maxsize=None)(file.read)
        file = WeightFile(path=file.path, shapes=shapes, read=cached)
    tensors, used = bound(file, rules)
    # vit_jax squashes (input_pipeline.py); big_vision's sincos2d recipe crops 224 of 256.
    sincos = config.pos_embed == "sincos2d"
    preprocess = Preprocess(image_size=config.size).to_dict() if sincos else squashed(config.size)
    assumed = "no table of positions tells the size: 224 pixels (vit convert --image-size)"
    return Recognised(
        format="Google npz",
        config=config,
        tensors=tensors,
        used=used,
        notes=[assumed] if sincos and "image_size" not in file.hints else [],
        preprocess=preprocess,
    )


def _config(file: WeightFile, depth: int, query: tuple[int, ...], mlp_dim: int) -> ViTConfig:
    shapes = file.shapes
    side, _, in_channels, width = shapes["embedding/kernel"]
    stem_depths = _depths(shapes, "") if "conv_root/kernel" in shapes else None
    patch_size = patch_size_of(side, stem_depths)
    class_token, pooled = "cls" in shapes, "MAPHead_0/probe" in shapes
    grid, slots = _positions(shapes, class_token, file.hints.get("image_size"), patch_size)
    pre_logits = shapes.get("pre_logits/kernel")
    return ViTConfig(
        image_size=(grid[0] * patch_size, grid[1] * patch_size),
        patch_size=patch_size,
        in_channels=in_channels if stem_depths is None else shapes["conv_root/kernel"][2],
        num_classes=shapes.get("head/kernel", (0, 0))[1],
        width=width,
        depth=depth,
        mlp_dim=mlp_dim,
        num_heads=query[1],
        pool="map" if pooled else "cls" if class_token else "gap",
        class_token=class_token,
        pos_embed="sincos2d" if slots is None else "learned",
        pos_embed_class_slot=bool(slots),
        pos_resize="bilinear_corners",
        representation_size=pre_logits[1] if pre_logits else None,
        activation="gelu_tanh",
        layer_norm_eps=1e-6,
        stem_depths=stem_depths,
        ws_mode="google_hybrid",
    )


def _positions(
    shapes: Mapping[str, tuple[int, ...]],
    class_token: bool,
    size: tuple[int, int] | None,
    patch_size: int,
) -> tuple[tuple[int, int], int | None]:
    """Grid, and the slots of the table before the patches'; None without a table (sincos2d)."""
    if _ROOT_POSITIONS in shapes:
        return grid_of(shapes[_ROOT_POSITIONS][1], [0, int(class_token)], size, patch_size)
    if _INPUT_POSITIONS in shapes:
        return grid_of(shapes[_INPUT_POSITIONS][1], [int(class_token), 0], size, patch_size)
    height, width = size or (224, 224)
    return (height // patch_size, width // patch_size), None


def _depths(shapes: Mapping[str, tuple[int, ...]], prefix: str) -> tuple[int, ...]:
    """Units of each stage of a ResNet; both count from 1."""
    units = [re.match(rf"{prefix}block(\d+)/unit(\d+)/", key) for key in shapes]
    pairs = {(int(m[1]), int(m[2])) for m in units if m}
    return tuple(max(u for t, u in pairs if t == s) for s in sorted({s for s, _ in pairs}))


def _recognise_bit(file: WeightFile) -> Recognised:
    depths = _depths(file.shapes, "resnet/")
    _, _, in_channels, root = file.shapes[_BIT_ROOT]
    config = ResNetConfig(
        in_channels=in_channels,
        num_classes=file.shapes.get("resnet/head/conv2d/kernel", (0,))[-1],
        depths=depths,
        width_factor=root // ROOT_CHANNELS,
        ws_mode="google_bit",
    )
    tensors, used = bound(file, _bit_rules(depths))
    return Recognised(
        format="BiT npz",
        config=config,
        tensors=tensors,
        used=used,
        preprocess=squashed(config.size),
    )


def _vit_rules(
    config: ViTConfig, positions: Sequence[str], layer: str, names: tuple[str, str, str]
) -> list[Rule]:
    """Rules of a ViT. `layer`: the beginning of a layer's keys, {} in place of its number."""
    rules = [
        *_dense("patch_embed.proj", "embedding", HWIO),
        Rule("cls_token", ("cls",)),
        *(Rule("pos_embed", (name,)) for name in positions),
        *_norm("norm", "Transformer/encoder_norm"),
        *_map_rules(config.num_heads),
        *_dense("pre_logits.fc", "pre_logits"),
        *_dense("head", "head"),
    ]
    if config.stem_depths is not None:
        rules += _stem_rules(config.stem_depths)
    for i in range(config.depth):
        block = _block_rules(i, layer.format(i), *names, config.num_heads)
        rules += [_of_layer(rule, i) for rule in block] if layer == _STACKED else block
    return rules


def _of_layer(rule: Rule, i: int) -> Rule:
    """The same rule for arrays with a leading axis of layers."""
    read = rule.op.read
    return Rule(rule.ours, rule.theirs, Op(lambda *ts: read(*(t[i] for t in ts)), rule.op.write))


_FLAT = Op(lambda t: t.flatten(), lambda t: (t,))
"""Vectors of norms, which some files keep as 1 x 1 x 1 x c."""


def _out(num_heads: int) -> Op:
    """The output projection: h e d -> d (h e)."""
    return Op(lambda t: t.flatten(0, 1).mT, lambda t: (t.mT.unflatten(0, (num_heads, -1)),))


def _projection(ours: str, base: str, names: Sequence[str], num_heads: int) -> list[Rule]:
    """Rules for one of our layers from joined kernels, d h e -> (names h e) d, and biases, h e."""
    heads, parts = (num_heads, -1), len(names)
    kernels = Op(
        lambda *ts: torch.cat([t.flatten(1).mT for t in ts]),
        lambda weight: tuple(part.mT.unflatten(1, heads) for part in weight.chunk(parts)),
    )
    biases = Op(
        lambda *ts: torch.cat([t.flatten() for t in ts]),
        lambda bias: tuple(part.unflatten(0, heads) for part in bias.chunk(parts)),
    )
    return [
        Rule(f"{ours}.weight", tuple(f"{base}{name}/kernel" for name in names), kernels),
        Rule(f"{ours}.bias", tuple(f"{base}{name}/bias" for name in names), biases),
    ]


def _dense(ours: str, theirs: str, kernel: Op = TRANSPOSED) -> list[Rule]:
    return [
        Rule(f"{ours}.weight", (f"{theirs}/kernel",), kernel),
        Rule(f"{ours}.bias", (f"{theirs}/bias",)),
    ]


def _norm(ours: str, theirs: str, scale: str = "scale", bias: str = "bias") -> list[Rule]:
    return [
        Rule(f"{ours}.weight", (f"{theirs}/{scale}",), _FLAT),
        Rule(f"{ours}.bias", (f"{theirs}/{bias}",), _FLAT),
    ]


def _block_rules(
    i: int, base: str, attention: str, norm2: str, mlp: str, num_heads: int
) -> list[Rule]:
    """Encoder layer `i`, whose keys start with `base`."""
    ours, attended = f"blocks.{i}", f"{base}{attention}/"
    return [
        *_norm(f"{ours}.norm1", f"{base}LayerNorm_0"),
        *_projection(f"{ours}.attn.qkv", attended, ("query", "key", "value"), num_heads),
        *_dense(f"{ours}.attn.proj", f"{attended}out", _out(num_heads)),
        *_norm(f"{ours}.norm2", f"{base}{norm2}"),
        *_dense(f"{ours}.mlp.fc1", f"{base}{mlp}/Dense_0"),
        *_dense(f"{ours}.mlp.fc2", f"{base}{mlp}/Dense_1"),
    ]


def _map_rules(num_heads: int) -> list[Rule]:
    """Attention pooling (big_vision, models/vit.py, MAPHead)."""
    base, ours = "MAPHead_0/", "attn_pool"
    attended = f"{base}MultiHeadDotProductAttention_0/"
    return [
        Rule(f"{ours}.latent", (f"{base}probe",)),
        *_projection(f"{ours}.q", attended, ("query",), num_heads),
        *_projection(f"{ours}.kv", attended, ("key", "value"), num_heads),
        *_dense(f"{ours}.proj", f"{attended}out", _out(num_heads)),
        *_norm(f"{ours}.norm", f"{base}LayerNorm_0"),
        *_dense(f"{ours}.mlp.fc1", f"{base}MlpBlock_0/Dense_0"),
        *_dense(f"{ours}.mlp.fc2", f"{base}MlpBlock_0/Dense_1"),
    ]


def _stem_rules(depths: Sequence[int]) -> list[Rule]:
    """The hybrids' ResNet (vit_jax/models_resnet.py)."""
    stem = "patch_embed.backbone."
    root = f"{stem}stem." if depths else stem
    rules = [_conv(f"{root}conv", "conv_root"), *_norm(f"{root}norm", "gn_root")]
    for ours, theirs, first in _units(depths, f"{stem}stages", "block{}/unit{}/"):
        for part in ("1", "2", "3", *(["_proj"] if first else [])):
            conv, norm = f"{ours}conv{part}", f"{ours}norm{part}"
            if part == "_proj":
                conv, norm = f"{ours}downsample.conv", f"{ours}downsample.norm"
            rules += [_conv(conv, f"{theirs}conv{part}"), *_norm(norm, f"{theirs}gn{part}")]
    return rules


def _bit_rules(depths: Sequence[int]) -> list[Rule]:
    """BiT (bit_pytorch/models.py): units have two digits, their convolutions are a, b and c."""
    names, kernel = ("gamma", "beta"), "standardized_conv2d"
    rules = [
        _conv("stem.conv", f"resnet/root_block/{kernel}"),
        *_norm("norm", "resnet/group_norm", *names),
        *_dense("head.fc", "resnet/head/conv2d", HWIO),
    ]
    for ours, theirs, first in _units(depths, "stages", "resnet/block{}/unit{:02d}/"):
        for n, part in enumerate("abc", start=1):
            rules.append(_conv(f"{ours}conv{n}", f"{theirs}{part}/{kernel}"))
            rules += _norm(f"{ours}norm{n}", f"{theirs}{part}/group_norm", *names)
        if first:
            rules.append(_conv(f"{ours}downsample.conv", f"{theirs}a/proj/{kernel}"))
    return rules


def _units(depths: Sequence[int], ours: str, theirs: str) -> Iterator[tuple[str, str, bool]]:
    """Beginnings of the keys of each unit, ours and theirs, and True for the first of a stage."""
    for stage, depth in enumerate(depths):
        for unit in range(depth):
            start = theirs.format(stage + 1, unit + 1)
            yield f"{ours}.{stage}.blocks.{unit}.", start, unit == 0


def _conv(ours: str, theirs: str) -> Rule:
    return Rule(f"{ours}.weight", (f"{theirs}/kernel",), HWIO)
