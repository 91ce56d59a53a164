"""The image tower of open_clip's CLIP, read: OpenAI, LAION, DataComp, DFN and MetaCLIP.

The text tower is left out. open_clip_config.json beside the file states the form of GELU, the heads
and the preparation of images. Source: open_clip 3.3, {model,transformer,transform,pos_embed}.py.
"""

from collections.abc import Mapping
from typing import Any

import torch
from typing_extensions import override

from vit.errors import UserError
from vit.extensions.formats.facts import count_layers, grid_of, heads_of_width
from vit.extensions.formats.layout import TRANSPOSED, Op, Rule, bound, layer
from vit.extensions.formats.preprocessing import Inexpressible, preparation
from vit.models.config import Activation, ViTConfig
from vit.models.fields import JsonObject, as_size, is_list, is_object, is_whole
from vit.preprocessing import Preprocess
from vit.weights.formats import Format, MissingFact, Recognised
from vit.weights.weight_file import WeightFile, read_json

_FIRST = "transformer.resblocks.0.attn.in_proj_weight"
_NEEDED = ("class_embedding", "positional_embedding", "ln_pre.weight", "ln_post.weight", "proj")
_BLOCKS = "transformer.resblocks."
_READ = frozenset(
    "layers width head_width mlp_ratio patch_size image_size patch_dropout output_tokens "
    "pool_type pos_embed_type timm_model_pretrained timm_drop timm_pool timm_proj "
    "attn_pooler_queries attn_pooler_heads".split()
)
"""Fields of vision_cfg that are read, that tensors show, or that change nothing."""
_USUAL = {"pool_type": "tok", "pos_embed_type": "learnable"}
_MODES = {"shortest": "crop", "squash": "squash"}
_MEAN = (0.48145466, 0.4578275, 0.40821073)
_STD = (0.26862954, 0.26130258, 0.27577711)
_TOKEN = Op(lambda t: t[None, None], lambda t: (t[0, 0],))
_TABLE = Op(lambda t: t[None], lambda t: (t[0],))


class OpenClip(Format):
    """Row of the table `formats`."""

    @override
    def matches(self, file: WeightFile) -> bool:
        return any(f"{prefix}{_FIRST}" in file.shapes for prefix in ("visual.", "")) and any(
            f"{prefix}conv1.weight" in file.shapes for prefix in ("visual.", "")
        )

    @override
    def recognise(self, file: WeightFile) -> Recognised:
        """The image tower with the projection as its head. UserError for another tower."""
        described = read_json(file.path.parent / "open_clip_config.json")
        model, preprocess = (_part(file, described, f"{part}_cfg") for part in _PARTS)
        prefix = "visual." if f"visual.{_FIRST}" in file.shapes else ""
        _check(file, prefix, model)
        notes: list[str] = []
        config = _config(file, prefix, model, notes)
        tensors, used = bound(file, _rules(prefix, config.depth))
        tensors["head.bias"] = lambda: torch.zeros(config.num_classes)
        beside = {key for key in file.shapes if not key.startswith(prefix)}
        return Recognised(
            format="open_clip",
            config=config,
            tensors=tensors,
            used=used | beside,
            left_out={"text": "the text tower"} if beside else {},
            **(preparation(_preprocess, preprocess, config.size) if described else {}),
            extra={"projection": True},
            notes=notes,
        )


_PARTS = ("model", "preprocess")


def _part(file: WeightFile, described: JsonObject, name: str) -> JsonObject:
    part = described.get(name, {})
    if not is_object(part) or not is_object(part.get("vision_cfg", {})):
        raise UserError(f"{file.path}: {name} of open_clip_config.json is not an object")
    return part


def _check(file: WeightFile, prefix: str, model: JsonObject) -> None:
    """UserError for a tower that is not CLIP's."""
    missing = [name for name in _NEEDED if f"{prefix}{name}" not in file.shapes]
    if missing or any(key.startswith(f"{prefix}attn_pool.") for key in file.shapes):
        what = f"no {missing[0]}" if missing else "an attention pooling"
        raise UserError(f"{file.path} has {what}: it is an image tower of open_clip's other kinds")
    values: Mapping[str, object] = model.get("vision_cfg", {})
    for name, value in values.items():
        if value and (name not in _READ or value != _USUAL.get(name, value)):
            raise UserError(f"{file.path}: open_clip's {name}={value!r} is not supported here")
    if "multimodal_cfg" in model:
        raise UserError(f"{file.path} is a CoCa (multimodal_cfg), which is not read here")


def _rules(prefix: str, depth: int) -> list[Rule]:
    rules = [
        Rule("cls_token", (f"{prefix}class_embedding",), _TOKEN),
        Rule("pos_embed", (f"{prefix}positional_embedding",), _TABLE),
        Rule("patch_embed.proj.weight", (f"{prefix}conv1.weight",)),
        *layer("norm_pre", f"{prefix}ln_pre"),
        *layer("norm", f"{prefix}ln_post"),
        Rule("head.weight", (f"{prefix}proj",), TRANSPOSED),
    ]
    return rules + layer_rules(f"{prefix}{_BLOCKS}", depth)


def layer_rules(prefix: str, depth: int) -> list[Rule]:
    """Rules of the layers of a tower, of images or texts; `prefix` ends before their number."""
    rules: list[Rule] = []
    for i in range(depth):
        ours, theirs = f"blocks.{i}.", f"{prefix}{i}."
        for part in ("weight", "bias"):
            rules.append(Rule(f"{ours}attn.qkv.{part}", (f"{theirs}attn.in_proj_{part}",)))
        rules += layer(f"{ours}attn.proj", f"{theirs}attn.out_proj")
        for ours_part, name in (("norm1", "ln_1"), ("norm2", "ln_2")):
            rules += layer(f"{ours}{ours_part}", f"{theirs}{name}")
        for ours_part, name in (("mlp.fc1", "mlp.c_fc"), ("mlp.fc2", "mlp.c_proj")):
            rules += layer(f"{ours}{ours_part}", f"{theirs}{name}")
    return rules


def _config(file: WeightFile, prefix: str, model: JsonObject, notes: list[str]) -> ViTConfig:
    shapes, vision = file.shapes, model.get("vision_cfg", {})
    width, in_channels, side, other_side = shapes[f"{prefix}conv1.weight"]
    if side != other_side:
        raise UserError(f"{file.path} has patches of {side}x{other_side} pixels; only squares fit")
    heads, per_head = file.hints.get("num_heads"), vision.get("head_width", 64)
    if heads is None and vision:
        if not is_whole(per_head) or per_head < 1 or width % per_head:
            raise UserError(f"{file.path}: head_width={per_head!r} does not divide {width}")
        heads = width // per_head
    entries, stated = shapes[f"{prefix}positional_embedding"][0], vision.get("image_size")
    size = as_size(stated) if stated else file.hints.get("image_size")
    grid, _ = grid_of(entries, [1], size, side, stated=bool(stated))
    return ViTConfig(
        image_size=(grid[0] * side, grid[1] * side),
        patch_size=side,
        in_channels=in_channels,
        num_classes=shapes[f"{prefix}proj"][1],
        width=width,
        depth=count_layers(shapes, f"{prefix}{_BLOCKS}"),
        mlp_dim=shapes[f"{prefix}{_BLOCKS}0.mlp.c_fc.weight"][0],
        num_heads=heads or heads_of_width(file, width, notes),
        pos_resize="bicubic_antialias",
        activation=_activation(file, model),
        pre_norm=True,
        layer_norm_eps=file.hints.get("layer_norm_eps", 1e-5),
    )


def _activation(file: WeightFile, model: JsonObject) -> Activation:
    """GELU's form by the user's word or the description."""
    if "activation" in file.hints:
        return file.hints["activation"]
    if not model:
        raise MissingFact(
            f"{file.path} does not say which form of GELU it has; put the open_clip_config.json of "
            "the model beside it, or give activation='quick_gelu' (OpenAI's, MetaCLIP's and some "
            "others) or 'gelu'"
        )
    return "quick_gelu" if model.get("quick_gelu") else "gelu"


def _preprocess(values: JsonObject, size: tuple[int, int]) -> dict[str, Any]:
    """preprocess_cfg with open_clip's defaults. Raises Inexpressible."""
    mode = values.get("resize_mode") or "shortest"
    interpolation = values.get("interpolation") or "bicubic"
    if mode not in _MODES or interpolation not in ("bicubic", "bilinear"):
        raise Inexpressible(f"resize_mode={mode!r}, interpolation={interpolation!r} is not done")
    mean, std = (values.get(name) or usual for name, usual in (("mean", _MEAN), ("std", _STD)))
    if not is_list(mean) or not is_list(std):
        raise Inexpressible(f"mean={mean!r}, std={std!r} are not one number per colour")
    return Preprocess.from_dict(
        {
            "image_size": size,
            "resize": _MODES[mode],
            "crop_fraction": 1.0,
            "interpolation": interpolation,
            "mean": [*mean],
            "std": [*std],
        }
    ).to_dict()
