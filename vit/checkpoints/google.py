"""Google's .npz files: ViT, AugReg, SAM and big_vision, hybrids, and BiT.

One layout under seven sets of names: the layers' suffixes of Flax before
and after linen, three prefixes, the position table at the root, layers stacked by `scan`, bfloat16
stored as raw bytes, and attention pooling beside or inside MAPHead_0.
Sources: vision_transformer, vit_jax/{models_vit,models_resnet,checkpoint}.py; big_vision,
models/vit.py; big_transfer, bit_pytorch/models.py.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

from torch import Tensor

from vit.checkpoints.files import WeightFile
from vit.checkpoints.google_layout import bit_rules, block_rules, head_rules, map_rules, stem_rules
from vit.checkpoints.layout import Op, Recognised, Rule, bound, exported, grid_of
from vit.checkpoints.preprocessing import HALF, described
from vit.errors import UserError
from vit.models.config import ResNetConfig, ViTConfig

_PREFIX = re.compile(r"^(opt/target/|params/img/|params/)")
_NUMBERED = re.compile(r"(standardized_conv2d|group_norm|conv2d)_\d+(?=/)")
_STACKED = "Transformer/encoderblock/"
_OLD_MAP = re.compile(r"^(probe$|MultiHeadDotProductAttention_0/|LayerNorm_0/|MlpBlock_0/)")
_ROOT_POSITIONS = "pos_embedding"
_INPUT_POSITIONS = "Transformer/posembed_input/pos_embedding"
_BIT_ROOT = "resnet/root_block/standardized_conv2d/kernel"


def _canonical(key: str) -> str:
    key = _PREFIX.sub("", key)
    if key.startswith("resnet/"):
        return _NUMBERED.sub(r"\1", key)
    return f"MAPHead_0/{key}" if _OLD_MAP.match(key) else key


def matches(file: WeightFile) -> bool:
    """Whether the keys are those of a Flax ViT or a BiT."""
    names = {_canonical(key) for key in file.shapes}
    return "embedding/kernel" in names or _BIT_ROOT in names


def recognise(file: WeightFile) -> Recognised:
    """A Google file as one of our models, with the arithmetic of Google's code."""
    named = file.renamed(_canonical)
    original = {_canonical(key): key for key in file.shapes}
    found = _recognise_bit(named) if _BIT_ROOT in named.shapes else _recognise_vit(named)
    found.used = {original[key] for key in found.used}
    return found


def _recognise_vit(file: WeightFile) -> Recognised:
    shapes = file.shapes
    stacked = any(key.startswith(_STACKED) for key in shapes)
    names = _Names(shapes, _STACKED if stacked else "Transformer/encoderblock_0/")
    query = shapes[f"{names.base}{names.attention}/query/kernel"]
    if stacked:
        depth, query = query[0], query[1:]
    else:
        found = (re.match(r"Transformer/encoderblock_(\d+)/", key) for key in shapes)
        depth = 1 + max(int(match[1]) for match in found if match)
    stem_depths = _stem_depths(shapes)
    config = _config(file, depth, query, stem_depths, names)
    rules = [*head_rules(), *map_rules()]
    if config.pos_embed == "learned":
        root = _ROOT_POSITIONS in shapes
        rules.append(Rule("pos_embed", (_ROOT_POSITIONS if root else _INPUT_POSITIONS,)))
    if stem_depths is not None:
        rules += stem_rules(stem_depths)
    for i in range(depth):
        if stacked:
            layer = block_rules(i, _STACKED, names.attention, names.norm2, names.mlp)
            rules += [_of_layer(rule, i) for rule in layer]
        else:
            base = f"Transformer/encoderblock_{i}/"
            rules += block_rules(i, base, names.attention, names.norm2, names.mlp)
    if stacked:  # else every layer would unpack the arrays of all layers again
        cached = lru_cache(maxsize=None)(file.read)
        file = WeightFile(path=file.path, shapes=shapes, read=cached)
    tensors, used = bound(file, rules)
    sincos = config.pos_embed == "sincos2d"
    return Recognised(
        format="Google npz",
        config=config,
        tensors=tensors,
        used=used,
        # vit_jax squashes (input_pipeline.py); big_vision's sincos2d recipe crops 224 of 256.
        preprocess=described(
            config.size,
            mean=HALF,
            std=HALF,
            interpolation="bilinear",
            crop_fraction=0.875 if sincos else 1.0,
            resize="crop" if sincos else "squash",
        ),
    )


class _Names:
    """How this file calls the parts of a layer: before linen they were numbered through."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], base: str) -> None:
        def present(*choices: str) -> str:
            for name in choices:
                if any(key.startswith(f"{base}{name}/") for key in shapes):
                    return name
            raise UserError(f"the file has no {base}{choices[0]}")

        self.base = base
        self.attention = present("MultiHeadDotProductAttention_1", "MultiHeadDotProductAttention_0")
        self.norm2 = present("LayerNorm_2", "LayerNorm_1")
        self.mlp = present("MlpBlock_3", "MlpBlock_0")


def _of_layer(rule: Rule, i: int) -> Rule:
    """The same rule for arrays with a leading axis of layers."""
    read = rule.op.read
    return Rule(rule.ours, rule.theirs, Op(lambda *ts: read(*(t[i] for t in ts)), rule.op.write))


def _config(
    file: WeightFile,
    depth: int,
    query: tuple[int, ...],
    stem_depths: tuple[int, ...] | None,
    names: _Names,
) -> ViTConfig:
    shapes = file.shapes
    side, _, in_channels, width = shapes["embedding/kernel"]
    stride = 1 if stem_depths is None else 4 * 2 ** max(len(stem_depths) - 1, 0)
    patch_size = side * stride
    class_token = "cls" in shapes
    pool: Literal["cls", "gap", "map"] = "cls" if class_token else "gap"
    if "MAPHead_0/probe" in shapes:
        pool = "map"
    hinted = file.hints.get("image_size")
    grid, slots = _positions(shapes, class_token, hinted, patch_size)
    pre_logits = shapes.get("pre_logits/kernel")
    return ViTConfig(
        image_size=(grid[0] * patch_size, grid[1] * patch_size),
        patch_size=patch_size,
        in_channels=in_channels if stem_depths is None else shapes["conv_root/kernel"][2],
        num_classes=shapes.get("head/kernel", (0, 0))[1],
        width=width,
        depth=depth,
        mlp_dim=shapes[f"{names.base}{names.mlp}/Dense_0/kernel"][-1],
        num_heads=query[1],
        pool=pool,
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


def _stem_depths(shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    if "conv_root/kernel" not in shapes:
        return None
    units = [re.match(r"block(\d+)/unit(\d+)/", key) for key in shapes]
    pairs = {(int(m[1]), int(m[2])) for m in units if m}
    stages = sorted({s for s, _ in pairs})
    return tuple(max(u for t, u in pairs if t == s) for s in stages)


def _recognise_bit(file: WeightFile) -> Recognised:
    units = [re.match(r"resnet/block(\d+)/unit(\d+)/", key) for key in file.shapes]
    pairs = {(int(m[1]), int(m[2])) for m in units if m}
    stages = sorted({s for s, _ in pairs})
    depths = tuple(max(u for t, u in pairs if t == s) for s in stages)
    _, _, in_channels, root = file.shapes[_BIT_ROOT]
    config = ResNetConfig(
        in_channels=in_channels,
        num_classes=file.shapes.get("resnet/head/conv2d/kernel", (0,))[-1],
        depths=depths,
        width_factor=root // 64,
        ws_mode="google_bit",
    )
    tensors, used = bound(file, bit_rules(depths))
    return Recognised(
        format="BiT npz",
        config=config,
        tensors=tensors,
        used=used,
        preprocess=described(
            config.size,
            mean=HALF,
            std=HALF,
            interpolation="bilinear",
            crop_fraction=1.0,
            resize="squash",
        ),
    )


def write(
    config: ViTConfig | ResNetConfig, state: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """Tensors under the names of Google's releases, and what Google would compute differently."""
    if isinstance(config, ResNetConfig):
        tensors = exported(state, bit_rules(config.depths))
        differs = config.ws_mode != "google_bit"
        return tensors, ["weight standardisation has another epsilon there"] if differs else []
    problems = {
        "distillation": config.distillation_token,
        "registers": bool(config.num_registers),
        "LayerScale": config.layer_scale is not None,
        "norm_after_pool": config.norm_after_pool,
        "swiglu": config.activation == "swiglu",
        f"pool={config.pool!r}": config.pool == "cls_gap"
        or (config.pool == "gap" and config.class_token),
        f"pos_embed={config.pos_embed!r}": config.pos_embed == "none",
    }
    found = [name for name, present in problems.items() if present]
    if found:
        raise UserError(f"Google's ViT has no {', '.join(found)}; try --to timm")
    rules = [*head_rules(), *map_rules(config.num_heads)]
    if config.pos_embed == "learned":
        root = config.class_token and not config.pos_embed_class_slot
        rules.append(Rule("pos_embed", (_ROOT_POSITIONS if root else _INPUT_POSITIONS,)))
    if config.stem_depths is not None:
        rules += stem_rules(config.stem_depths)
    for i in range(config.depth):
        base = f"Transformer/encoderblock_{i}/"
        rules += block_rules(
            i, base, "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3", config.num_heads
        )
    notes = []
    if config.activation != "gelu_tanh":
        notes.append("Google computes GELU by its tanh approximation, this model exactly")
    if config.layer_norm_eps != 1e-6:
        notes.append(f"Google's epsilon is 1e-6, this model's {config.layer_norm_eps:g}")
    if config.stem_depths is not None and config.ws_mode != "google_hybrid":
        notes.append("weight standardisation and GroupNorm have other epsilons there")
    return exported(state, rules), notes
