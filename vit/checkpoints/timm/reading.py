"""timm's ViT, DeiT, DeiT-III, DINOv2, hybrids and BiT; and the official DeiT and DINOv2 files.

Our parameters have timm's names, so reading is mostly a question of what the shapes mean.
Sources: timm 1.0, models/{vision_transformer,vision_transformer_hybrid,resnetv2,deit}.py;
facebookresearch/deit and facebookresearch/dinov2 for the names their own files use.
"""

import re
from typing import Any, Literal

from torch import Tensor

from vit.checkpoints.files import WeightFile
from vit.checkpoints.layout import (
    ANTIALIASED,
    NO_QKV_BIASES,
    LazyTensors,
    Recognised,
    Rule,
    bound,
    count_layers,
    fill_qkv_biases,
    grid_of,
    heads_of_width,
    patch_size_of,
)
from vit.checkpoints.preprocessing import (
    HALF,
    IMAGENET_MEAN,
    IMAGENET_STD,
    described,
    from_timm,
    preparation,
)
from vit.checkpoints.timm import dinov3, families
from vit.checkpoints.timm.families import Family
from vit.errors import UserError
from vit.models.config import ROOT_CHANNELS, PosResize, ResNetConfig, Rotary, ViTConfig

_OFFICIAL_NAMES = (
    (re.compile(r"\.gamma_([12])$"), r".ls\1.gamma"),  # DeiT-III
    (re.compile(r"^register_tokens$"), "reg_token"),  # DINOv2
    (re.compile(r"\.mlp\.w12\."), ".mlp.fc1."),
    (re.compile(r"\.mlp\.w3\."), ".mlp.fc2."),
)
_STEM = "patch_embed.backbone."
PREACTIVATION = "stages.0.blocks.0.conv1.weight"


def matches(file: WeightFile) -> bool:
    """Whether the keys are a timm ViT's or ResNet-v2's."""
    return "blocks.0.attn.qkv.weight" in file.shapes or (
        "stem.conv.weight" in file.shapes and PREACTIVATION in file.shapes
    )


def recognise(file: WeightFile) -> Recognised:
    """A timm or official Facebook file as one of our models.

    UserError for an architecture that is not known to give the same logits, and where neither
    tensors nor description say something that changes them.
    """
    if PREACTIVATION in file.shapes:
        return _recognise_resnet(file)
    names = {key: _our_name(key) for key in file.shapes}
    shapes = {names[key]: shape for key, shape in file.shapes.items()}
    rules = [Rule(ours, (key,)) for key, ours in names.items()]
    known = _family(file)
    rotary = dinov3.rotary_of(file, known)
    if rotary is not None:
        shapes, rules = dinov3.joined(file.shapes, names)
    foreign = families.foreign_part(file, shapes.keys())
    families.check_arguments(
        file,
        known,
        has_prefix=not {"cls_token", "reg_token"}.isdisjoint(shapes),
        patch_size=shapes["patch_embed.proj.weight"][-1],
        further=frozenset() if rotary is None else dinov3.arguments(file),
    )
    left_out = {}
    if "mask_token" in shapes:
        left_out["mask_token"] = "used in pre-training only"
    tensors, used = bound(file, [rule for rule in rules if rule.ours != "mask_token"])
    notes: list[str] = []
    config, register_slots = _config(file, shapes, known, notes, rotary)
    bare = known is None and rotary is not None and not rotary.key_bias
    if foreign == NO_QKV_BIASES and (bare or not families.has_qkv_biases(file, known)):
        fill_qkv_biases(tensors, config)
    if known is None and not foreign:
        families.check_silent(file, config)
        if "pos_embed" in shapes and config.class_token and not config.pos_embed_class_slot:
            rows, columns = config.grid
            notes.append(
                f"the table of positions is taken for {rows}x{columns} patches without entries for "
                "the tokens before them; image_size=(height, width) decides"
            )
    if register_slots is not None:
        _registers_without_slots(tensors, register_slots, config.num_registers)
    prepared, assumed = _preprocessing(file, config)
    return Recognised(
        format="DINOv2" if left_out else "timm",
        config=config,
        tensors=tensors,
        used=used,
        left_out=left_out,
        classes=_classes(file.config, config.num_classes),
        **prepared,
        notes=assumed + notes,
        foreign=foreign,
    )


def _family(file: WeightFile) -> Family | None:
    """What the description's architecture says; None without one. UserError for an unknown one."""
    architecture = families.architecture_of(file)
    if architecture is None:
        return None
    known = families.family(architecture)
    if known is None:
        raise UserError(f"{file.path}: {families.refused(architecture)}")
    return known


def _preprocessing(file: WeightFile, config: ViTConfig) -> tuple[dict[str, Any], list[str]]:
    """`preparation` of the images, and what had to be assumed."""
    description = families.described(file)
    if description:
        return preparation(from_timm, description), []
    notes = ["the file has no description: exact GELU and epsilon 1e-6 are assumed, as in timm"]
    if config.layer_scale is None and not config.distillation_token:
        return {}, [*notes, "the file does not say how images were normalised"]
    scaled = config.layer_scale is not None
    preprocess = described(
        config.size,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        interpolation="bicubic",
        crop_fraction=1.0 if scaled else 0.875,
    )
    assumed = "images are taken to be normalised as ImageNet's, as DeiT and DINOv2 do"
    return {"preprocess": preprocess}, [*notes, assumed]


def _our_name(key: str) -> str:
    for pattern, name in _OFFICIAL_NAMES:
        key = pattern.sub(name, key)
    return key


def _config(
    file: WeightFile,
    shapes: dict[str, tuple[int, ...]],
    known: Family | None,
    notes: list[str],
    rotary: Rotary | None,
) -> tuple[ViTConfig, int | None]:
    """The architecture, and where the registers' entries of the position table start, if any."""
    width, _, side, other_side = shapes["patch_embed.proj.weight"]
    if side != other_side:
        raise UserError(f"{file.path} has patches of {side}x{other_side} pixels; only squares fit")
    stem_depths = _stem_depths(shapes)
    patch_size = patch_size_of(side, stem_depths)
    first = {None: "patch_embed.proj", (): f"{_STEM}conv"}.get(stem_depths, f"{_STEM}stem.conv")
    if f"{first}.weight" not in shapes:
        raise UserError(f"{file.path} has another convolutional stem, which is not supported here")
    fc1, fc2 = shapes["blocks.0.mlp.fc1.weight"], shapes["blocks.0.mlp.fc2.weight"]
    gated = fc1[0] == 2 * fc2[1]
    layer_scale = 1e-5 if "blocks.0.ls1.gamma" in shapes else None
    num_heads = families.heads(file, known, width)
    if num_heads is None:
        num_heads = heads_of_width(file, width, notes, scaled=layer_scale is not None)
    registers = shapes.get("reg_token", (1, 0))[1]
    learned = sum(name in shapes for name in ("cls_token", "dist_token"))
    grid, slots, resize = _positions(file, shapes, learned, registers, patch_size)
    head = shapes.get("head.weight")
    pre_logits = shapes.get("pre_logits.fc.weight")
    config = ViTConfig(
        image_size=(grid[0] * patch_size, grid[1] * patch_size),
        patch_size=patch_size,
        in_channels=shapes[f"{first}.weight"][1],
        num_classes=head[0] if head else 0,
        width=width,
        depth=count_layers(shapes, "blocks."),
        mlp_dim=fc2[1],
        num_heads=num_heads,
        pool=_pool(families.pooling(file, known), shapes, width),
        norm_after_pool="fc_norm.weight" in shapes,
        class_token="cls_token" in shapes,
        distillation_token="dist_token" in shapes,
        num_registers=registers,
        pos_embed="learned" if "pos_embed" in shapes else "none",
        pos_embed_class_slot=bool(slots),
        pos_resize=resize,
        representation_size=pre_logits[0] if pre_logits else None,
        layer_scale=layer_scale,
        activation=families.activation(file, known, gated=gated),
        layer_norm_eps=dinov3.epsilon(file, rotary),
        rotary=rotary,
        stem_depths=stem_depths,
        ws_mode="timm",
    )
    return config, learned if slots > learned else None


def _positions(
    file: WeightFile,
    shapes: dict[str, tuple[int, ...]],
    learned: int,
    registers: int,
    patch_size: int,
) -> tuple[tuple[int, int], int, PosResize]:
    """Grid, prefix slots, and the rule for other grids."""
    resize: PosResize = ANTIALIASED
    if "mask_token" in shapes and not registers:
        resize = "bicubic_offset"  # dinov2's hub models without registers
    input_size = families.described(file).get("input_size")
    size = tuple(input_size[1:]) if input_size else file.hints.get("image_size")
    img_size = families.arguments_of(file).get("img_size")
    if img_size is not None:
        size = (img_size, img_size) if isinstance(img_size, int) else tuple(img_size)
    if "pos_embed" not in shapes:
        size = size or (14 * patch_size, 14 * patch_size)
        return (size[0] // patch_size, size[1] // patch_size), learned, resize
    choices = [0, learned, learned + registers]
    if "mask_token" in shapes:
        choices = [learned]  # DINOv2's own tables always have one for the class token alone
    grid, slots = grid_of(shapes["pos_embed"][1], choices, size, patch_size)
    return grid, slots, resize


def _registers_without_slots(tensors: LazyTensors, start: int, registers: int) -> None:
    """Adds the registers' own positions to them once and for all; the sum is the same."""
    token, table = tensors["reg_token"], tensors["pos_embed"]

    def without_slots() -> Tensor:
        whole = table()
        return whole[:, [*range(start), *range(start + registers, whole.shape[1])]]

    tensors["reg_token"] = lambda: token() + table()[:, start : start + registers]
    tensors["pos_embed"] = without_slots


def _pool(
    said: str | None, shapes: dict[str, tuple[int, ...]], width: int
) -> Literal["cls", "gap", "map", "cls_gap"]:
    """`said`: timm's word from the description, None where there is none."""
    if "attn_pool.latent" in shapes:
        return "map"
    if shapes.get("head.weight", (0, 0))[1] == 2 * width:
        return "cls_gap"
    # fc_norm is timm's sign of average pooling, unless the description says otherwise.
    averaged = "fc_norm.weight" in shapes or "cls_token" not in shapes
    if said in ("avg", "token"):
        averaged = said == "avg"
    return "gap" if averaged else "cls"


def _stem_depths(shapes: dict[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    if not any(key.startswith(_STEM) for key in shapes):
        return None
    return _depths(shapes, f"{_STEM}stages.")


def _depths(shapes: dict[str, tuple[int, ...]], prefix: str) -> tuple[int, ...]:
    stages = range(count_layers(shapes, prefix))
    return tuple(count_layers(shapes, f"{prefix}{s}.blocks.") for s in stages)


def _classes(config: dict[str, Any], num_classes: int) -> list[str] | None:
    names = config.get("label_names") or (config.get("pretrained_cfg") or {}).get("label_names")
    if not isinstance(names, list) or len(names) != num_classes or not names:
        return None
    words = config.get("label_descriptions") or {}
    return [str(words.get(name, name)) for name in names]


def _recognise_resnet(file: WeightFile) -> Recognised:
    architecture = families.architecture_of(file)
    if architecture is not None and not families.is_bit(architecture):
        raise UserError(f"{file.path}: {families.refused(architecture)}")
    families.check_arguments(file, None, has_prefix=False, patch_size=1)
    families.check_bit(file)
    tensors, used = bound(file, [Rule(key, (key,)) for key in file.shapes])
    description = families.described(file)
    root, in_channels, _, _ = file.shapes["stem.conv.weight"]
    size = description.get("input_size", [3, 224, 224])[1:]
    config = ResNetConfig(
        image_size=(size[0], size[1]),
        in_channels=in_channels,
        num_classes=file.shapes.get("head.fc.weight", (0,))[0],
        depths=_depths(file.shapes, "stages."),
        width_factor=root // ROOT_CHANNELS,
        ws_mode="timm",
    )
    prepared = preparation(from_timm, description)
    if prepared == {"preprocess": None}:  # nothing is said of it
        prepared["preprocess"] = described(
            config.size,
            mean=HALF,
            std=HALF,
            interpolation="bilinear",
            crop_fraction=1.0,
            resize="squash",
        )
    return Recognised(
        format="timm",
        config=config,
        tensors=tensors,
        used=used,
        classes=_classes(file.config, config.num_classes),
        foreign=families.foreign_sign(file.shapes),
        notes=[]
        if file.config
        else ["the file has no description: BiT's own pooling, ReLU and strides are assumed"],
        **prepared,
    )
