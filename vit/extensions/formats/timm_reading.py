"""timm's ViT, DeiT, DeiT-III, DINOv2, DINOv3, hybrids and BiT; and official DeiT and DINOv2 files.

Our parameters have timm's names, so reading is mostly a question of what the shapes mean.
Sources: timm 1.0.31, models/{vision_transformer,vision_transformer_hybrid,resnetv2,deit,eva}.py;
facebookresearch/deit and facebookresearch/dinov2 for the names their own files use.
"""

import re
from dataclasses import asdict
from typing import Any, Literal

from vit.errors import UserError
from vit.extensions.formats import timm_families as families
from vit.extensions.formats import timm_towers
from vit.extensions.formats.facts import (
    count_layers,
    fill_qkv_biases,
    grid_of,
    patch_size_of,
    positions_into_token,
)
from vit.extensions.formats.layout import Rule, bound, renamed
from vit.extensions.formats.preprocessing import (
    from_timm,
    of_imagenet,
    preparation,
    squashed,
    without_rest,
)
from vit.extensions.formats.refusals import FAMILIES, refused, sign_of_others
from vit.extensions.formats.rotary import Rotary
from vit.extensions.formats.timm_families import Family
from vit.models.config import ROOT_CHANNELS, PosResize, ResNetConfig, ViTConfig
from vit.models.fields import as_size
from vit.weights.formats import Recognised
from vit.weights.weight_file import WeightFile

_STEM = "patch_embed.backbone."
_FIRST = ("blocks.0.attn.qkv.weight", "blocks.0.attn.q_proj.weight")
_PREACTIVATION = "stages.0.blocks.0.conv1.weight"
# Their name -> ours, where they differ; the last ones in DINOv3 and EVA alone.
_NAMES = (
    (r"\.gamma_([12])$", r".ls\1.gamma"),  # DeiT-III and DINOv3
    (r"^register_tokens$", "reg_token"),  # DINOv2
    (r"\.mlp\.w12\.", ".mlp.fc1."),
    (r"\.mlp\.w3\.", ".mlp.fc2."),
)
_NAMES_OF_PARTS = (
    (r"\.attn\.[qv]_bias$", ".attn.qkv.bias"),
    (r"\.mlp\.fc1_[gx]\.", ".mlp.fc1."),
)
_NAMES_OF_EVA = (*_NAMES_OF_PARTS, (r"\.attn\.[qkv]_proj\.", ".attn.qkv."))


def matches(file: WeightFile) -> bool:
    return not file.shapes.keys().isdisjoint(_FIRST) or (
        "stem.conv.weight" in file.shapes and _PREACTIVATION in file.shapes
    )


def recognise(file: WeightFile) -> Recognised:
    """A timm or official Facebook file as one of our models.

    UserError for an unknown architecture, and where neither tensors nor description state a fact
    that changes the logits.
    """
    if _PREACTIVATION in file.shapes:
        return _recognise_resnet(file)
    decoder = _decoder(file)
    file = renamed(file, lambda key: None if key in decoder else key)
    entry = families.family_of(file)
    rotary = families.rotary_of(file, entry)
    parts = _NAMES_OF_EVA if families.is_eva(entry) else _NAMES_OF_PARTS if rotary else ()
    names = {key: _our_name(key, parts) for key in file.shapes}
    if error := sign_of_others(file.path, names.values()):
        raise error
    shapes = renamed(file, names.get).shapes
    families.check_arguments(file, entry, shapes, rotary)
    notes: list[str] = []
    config, register_slots = _config(file, shapes, entry, notes, rotary)
    unused = ["mask_token"] if "mask_token" in shapes else []
    rules = [_rule(ours, key, config) for key, ours in names.items() if ours not in unused]
    tensors, used = bound(file, rules)
    if not families.has_qkv_biases(file, entry, rotary):
        fill_qkv_biases(tensors, config)
    if entry is None and "blocks.0.attn.qkv.bias" in tensors:
        notes += _open_facts(file, config)
    if register_slots is not None:
        positions_into_token(tensors, "reg_token", register_slots, config.num_registers)
    prepared, assumed = _preprocessing(file, config)
    return Recognised(
        format="DINOv2" if unused else "timm",
        config=config,
        tensors=tensors,
        used=used.union(decoder),
        left_out=dict.fromkeys(
            [*unused, *{"head" if key.startswith("head") else "decoder" for key in decoder}],
            "used in pre-training only",
        ),
        classes=(classes := _classes(file, config.num_classes)),
        **prepared,
        extra=_projection(file, config) if classes is None else {},
        notes=assumed + notes,
    )


def _rule(ours: str, theirs: str, config: ViTConfig) -> Rule:
    if config.tower is not None:
        apart = re.search(r"_proj\.|fc1_", theirs) is not None
        return timm_towers.rule(ours, theirs, config.num_heads, keyless=theirs != ours, apart=apart)
    keyless, split = theirs.endswith(("q_bias", "v_bias")), ".mlp.fc1_" in theirs
    return timm_towers.joined(ours, keyless=keyless, split=split) or Rule(ours, (theirs,))


def _decoder(file: WeightFile) -> list[str]:
    """Keys of what is used in pre-training only."""
    is_mae = "decoder_embed.weight" in file.shapes  # of facebookresearch/mae
    starts = ("decoder_", "mask_token") if is_mae else ()
    # A head of several layers makes projections for a pre-training (MoCo v3).
    return [key for key in file.shapes if key.startswith(starts) or re.match(r"head\.\d", key)]


def _open_facts(file: WeightFile, config: ViTConfig) -> list[str]:
    """A note where the table of positions could also have an entry for the class token. UserError
    as of `check_silent`."""
    families.check_silent(file, config)
    if config.pos_embed != "learned" or not config.class_token or config.pos_embed_class_slot:
        return []
    rows, columns = config.grid
    return [
        f"the table of positions is taken for {rows}x{columns} patches without entries for "
        "the tokens before them; image_size=(height, width) decides"
    ]


def _our_name(key: str, parts: tuple[tuple[str, str], ...]) -> str:
    for pattern, name in (*_NAMES, *parts):
        key = re.sub(pattern, name, key)
    return key


def _preprocessing(file: WeightFile, config: ViTConfig) -> tuple[dict[str, Any], list[str]]:
    """`preparation` of the images, and what had to be assumed."""
    description = families.described(file)
    size = families.arguments_of(file).get("img_size")
    if size and description.get("fixed_input_size"):  # decides in timm, too
        description = {**description, "input_size": [3, *as_size(size)]}
    if description:
        return without_rest(preparation(from_timm, description), config.patch_size)
    stated = f"activation={config.activation!r} and epsilon {config.layer_norm_eps:g}"
    notes = [f"the file has no description: {stated} are assumed, as in timm"]
    if config.layer_scale is None and not config.distillation_token:
        return {}, [*notes, "the file does not say how images were normalised"]
    fraction = 0.875 if config.layer_scale is None else 1.0
    assumed = "images are taken to be normalised as ImageNet's, as DeiT and DINOv2 do"
    preprocess = of_imagenet(config.size, interpolation="bicubic", crop_fraction=fraction)
    return {"preprocess": preprocess}, [*notes, assumed]


def _config(
    file: WeightFile,
    shapes: dict[str, tuple[int, ...]],
    entry: Family | None,
    notes: list[str],
    rotary: Rotary | None,
) -> tuple[ViTConfig, int | None]:
    """The architecture, and the first entry of the registers in the position table, if any."""
    patch_size, in_channels, stem_depths = _patches(file, shapes)
    width, hidden = shapes["blocks.0.mlp.fc2.weight"]
    scaled, registers = "blocks.0.ls1.gamma" in shapes, shapes.get("reg_token", (1, 0))[1]
    learned = len({"cls_token", "dist_token"} & shapes.keys())
    grid, slots, resize = _positions(file, shapes, learned, registers, patch_size)
    config = ViTConfig(
        image_size=(grid[0] * patch_size, grid[1] * patch_size),
        patch_size=patch_size,
        in_channels=in_channels,
        num_classes=shapes.get("head.weight", (0,))[0],
        width=width,
        depth=count_layers(shapes, "blocks."),
        mlp_dim=hidden,
        num_heads=families.heads(file, entry, width, notes, scaled=scaled),
        pool=_pool(families.pooling(file, entry), shapes, width),
        norm_after_pool="fc_norm.weight" in shapes,
        class_token="cls_token" in shapes,
        distillation_token="dist_token" in shapes,
        num_registers=registers,
        pos_embed="learned" if "pos_embed" in shapes else "none",
        pos_embed_class_slot=bool(slots),
        pos_resize=resize,
        representation_size=(shapes.get("pre_logits.fc.weight") or (None,))[0],
        layer_scale=1e-5 if scaled else None,
        activation=families.activation(file, entry, shapes),
        layer_norm_eps=families.epsilon(file, entry, rotary),
        pre_norm="norm_pre.weight" in shapes,
        rotary=None if rotary is None else asdict(rotary),
        tower=families.tower(file, entry, shapes),
        stem_depths=stem_depths,
        ws_mode="timm",
    )
    return config, learned if slots > learned else None


def _patches(
    file: WeightFile, shapes: dict[str, tuple[int, ...]]
) -> tuple[int, int, tuple[int, ...] | None]:
    """Pixels of a patch, channels of the images, and depths of the convolutional stem, if any."""
    _, _, side, other_side = shapes["patch_embed.proj.weight"]
    if side != other_side:
        raise UserError(f"{file.path} has patches of {side}x{other_side} pixels; only squares fit")
    stem_depths = None
    if any(key.startswith(_STEM) for key in shapes):
        stem_depths = _depths(shapes, f"{_STEM}stages.")
    first = {None: "patch_embed.proj", (): f"{_STEM}conv"}.get(stem_depths, f"{_STEM}stem.conv")
    if f"{first}.weight" not in shapes:
        raise UserError(f"{file.path} has another convolutional stem, which is not supported here")
    return patch_size_of(side, stem_depths), shapes[f"{first}.weight"][1], stem_depths


def _positions(
    file: WeightFile,
    shapes: dict[str, tuple[int, ...]],
    learned: int,
    registers: int,
    patch_size: int,
) -> tuple[tuple[int, int], int, PosResize]:
    """Grid, prefix slots, and the rule for other grids."""
    resize: PosResize = "bicubic_antialias"
    of_dino = {"teacher", "student"} & {*file.prefix.split(".")} and "backbone." in file.prefix
    if ("mask_token" in shapes or of_dino) and not registers:
        resize = "bicubic_offset"  # DINO's trainings, and dinov2's hub models without registers
    input_size = families.described(file).get("input_size")
    size = tuple(input_size[1:]) if input_size else file.hints.get("image_size")
    img_size = families.arguments_of(file).get("img_size")
    size = size if img_size is None else as_size(img_size)
    if "pos_embed" not in shapes:
        size = size or (14 * patch_size, 14 * patch_size)
        return (size[0] // patch_size, size[1] // patch_size), learned, resize
    choices = [0, learned, learned + registers]
    if "mask_token" in shapes:
        choices = [learned]  # DINOv2's own tables always have one for the class token alone
    stated = bool(input_size or img_size)
    grid, slots = grid_of(shapes["pos_embed"][1], choices, size, patch_size, stated=stated)
    return grid, slots, resize


def _pool(
    word: str | None, shapes: dict[str, tuple[int, ...]], width: int
) -> Literal["cls", "gap", "map", "cls_gap"]:
    """`word`: timm's, if the description has one."""
    if "attn_pool.latent" in shapes:
        return "map"
    if shapes.get("head.weight", (0, 0))[1] == 2 * width:
        return "cls_gap"
    # fc_norm is timm's sign of average pooling, unless the description says otherwise.
    averaged = "fc_norm.weight" in shapes or "cls_token" not in shapes
    if word in ("avg", "token"):
        averaged = word == "avg"
    return "gap" if averaged else "cls"


def _depths(shapes: dict[str, tuple[int, ...]], prefix: str) -> tuple[int, ...]:
    stages = range(count_layers(shapes, prefix))
    return tuple(count_layers(shapes, f"{prefix}{s}.blocks.") for s in stages)


def _classes(file: WeightFile, num_classes: int) -> list[str] | None:
    names = file.config.get("label_names") or families.described(file).get("label_names")
    if not names or len(names) != num_classes:
        return None
    words = file.config.get("label_descriptions") or {}
    return [str(words.get(name, name)) for name in names]


def _projection(file: WeightFile, config: ViTConfig) -> dict[str, Any]:
    """`extra` of a CLIP or a Perception Encoder whose head gives an embedding, and no classes."""
    tag = families.described(file).get("tag") or families.tag_of(file)
    is_clip = config.pre_norm or "_clip" in (families.architecture_of(file) or "")
    is_embedding = config.num_classes in FAMILIES["projections"] and "_ft_" not in tag
    is_stated = file.config.get("projection") is True  # by this package
    return {"projection": True} if is_stated or (is_clip and is_embedding) else {}


def _recognise_resnet(file: WeightFile) -> Recognised:
    architecture = families.architecture_of(file)
    if architecture is not None and not families.is_bit(architecture):
        raise refused("timm", architecture)
    if error := sign_of_others(file.path, file.shapes):
        raise error
    families.check_arguments(file, None, {})
    families.check_bit(file)
    tensors, used = bound(file, [Rule(key, (key,)) for key in file.shapes])
    description = families.described(file)
    root, in_channels, _, _ = file.shapes["stem.conv.weight"]
    config = ResNetConfig(
        image_size=tuple(description.get("input_size", [3, 224, 224])[1:]),
        in_channels=in_channels,
        num_classes=file.shapes.get("head.fc.weight", (0,))[0],
        depths=_depths(file.shapes, "stages."),
        width_factor=root // ROOT_CHANNELS,
        ws_mode="timm",
    )
    prepared = preparation(from_timm, description)
    if prepared == {"preprocess": None}:  # nothing is said of it
        prepared["preprocess"] = squashed(config.size)
    assumed = "the file has no description: BiT's own pooling, ReLU and strides are assumed"
    return Recognised(
        format="timm",
        config=config,
        tensors=tensors,
        used=used,
        classes=_classes(file, config.num_classes),
        notes=[] if file.config else [assumed],
        **prepared,
    )
