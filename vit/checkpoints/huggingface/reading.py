"""Hugging Face's ViT, DeiT and DINOv2 (with and without registers), read and written.

Files on the hub keep the key names of transformers 4; a state dict of transformers 5 has shorter
ones. Both are read, and the hub's are written, as transformers itself does on saving.
Sources: transformers 5.23, models/{vit,deit,dinov2}/modeling_*.py and conversion_mapping.py.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from vit.checkpoints.files import WeightFile
from vit.checkpoints.huggingface.families import (
    activation,
    check_family,
    check_pooler,
    epsilon,
)
from vit.checkpoints.layout import (
    ANTIALIASED,
    HALVES,
    JOINED,
    NO_QKV_BIASES,
    SAME,
    LazyTensors,
    MissingFact,
    Recognised,
    Rule,
    bound,
    count_layers,
    fill_qkv_biases,
    grid_of,
    layer,
)
from vit.checkpoints.preprocessing import from_huggingface, preparation
from vit.errors import UserError
from vit.models.config import ViTConfig

_POSITIONS = "embeddings.position_embeddings"
# Family -> our name of a layer's part -> theirs; several are stored apart.
_VIT = {
    "norm1": ("layernorm_before",),
    "norm2": ("layernorm_after",),
    "attn.qkv": tuple(f"attention.attention.{name}" for name in ("query", "key", "value")),
    "attn.proj": ("attention.output.dense",),
    "mlp.fc1": ("intermediate.dense",),
    "mlp.fc2": ("output.dense",),
}
_DINOV2 = {
    **_VIT,
    **{name: (name,) for name in ("norm1", "norm2", "mlp.fc1", "mlp.fc2")},
}
SPELLINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "vit": _VIT,
    "dinov2": _DINOV2,
    "dinov2, gated": {
        **_DINOV2,
        "mlp.fc1": ("mlp.weights_in",),
        "mlp.fc2": ("mlp.weights_out",),
    },
    "transformers 5": {
        "attn.qkv": tuple(f"attention.{name}_proj" for name in "qkv"),
        "attn.proj": ("attention.o_proj",),
    },
    "transformers 5, gated": {
        "mlp.fc1": ("mlp.gate_proj", "mlp.up_proj"),
        "mlp.fc2": ("mlp.down_proj",),
    },
}
_OPS = {1: SAME, 2: HALVES, 3: JOINED}


def matches(file: WeightFile) -> bool:
    """Whether the keys are a Hugging Face ViT's, with or without a head."""
    return any(key.endswith(_POSITIONS) for key in file.shapes)


def _prefix(file: WeightFile) -> str:
    """'vit.', 'deit.', 'dinov2.' ... in models with a head, '' in bare ones."""
    return next(key for key in file.shapes if key.endswith(_POSITIONS)).removesuffix(_POSITIONS)


def layer_rules(i: int, base: str, spellings: Iterable[str]) -> list[Rule]:
    """Layer `i`, whose keys start with `base`."""
    rules = [Rule(f"blocks.{i}.ls{n}.gamma", (f"{base}layer_scale{n}.lambda1",)) for n in (1, 2)]
    for spelling in spellings:
        for ours, names in SPELLINGS[spelling].items():
            theirs = (f"{base}{name}" for name in names)
            rules += layer(f"blocks.{i}.{ours}", *theirs, op=_OPS[len(names)])
    return rules


def _stem(file: WeightFile, prefix: str) -> str:
    """What the keys of the layers begin with, before their number.

    transformers 5 saves ViTMSNForImageClassification with layers that have no prefix.
    """
    stems = [f"{start}{name}" for start in (prefix, "") for name in ("encoder.layer.", "layers.")]
    present = [stem for stem in stems if any(key.startswith(f"{stem}0.") for key in file.shapes)]
    return present[0] if present else stems[0]


def vit_rules(prefix: str, stem: str, depth: int, spellings: Iterable[str]) -> list[Rule]:
    """All of a model but DeiT's two heads. `stem`: what the keys of the layers begin with."""
    rules = [
        Rule("cls_token", (f"{prefix}embeddings.cls_token",)),
        Rule("dist_token", (f"{prefix}embeddings.distillation_token",)),
        Rule("reg_token", (f"{prefix}embeddings.register_tokens",)),
        Rule("pos_embed", (f"{prefix}{_POSITIONS}",)),
        *layer("patch_embed.proj", f"{prefix}embeddings.patch_embeddings.projection"),
        *layer("norm", f"{prefix}layernorm"),
        *layer("pre_logits.fc", f"{prefix}pooler.dense"),
        *layer("head", "classifier"),
    ]
    for i in range(depth):
        rules += layer_rules(i, f"{stem}{i}.", spellings)
    return rules


def teacher_rules() -> list[Rule]:
    """The two heads of DeiTForImageClassificationWithTeacher."""
    return [*layer("head", "cls_classifier"), *layer("head_dist", "distillation_classifier")]


def recognise(file: WeightFile) -> Recognised:
    """A Hugging Face file as one of our models; config.json supplies what shapes cannot say."""
    check_family(file)
    prefix = _prefix(file)
    keys = file.shapes
    dinov2 = any(key.endswith(".layer_scale1.lambda1") for key in keys)
    stem = _stem(file, prefix)
    depth = count_layers(keys, stem)
    teacher = "cls_classifier.weight" in keys
    tensors, used = bound(file, [*vit_rules(prefix, stem, depth, SPELLINGS), *teacher_rules()])
    config = _config(file, prefix, stem, depth, dinov2=dinov2, teacher=teacher)
    if file.config.get("qkv_bias") is False:
        fill_qkv_biases(tensors, config)
    if "reg_token" in tensors and not config.num_registers:
        del tensors["reg_token"]  # a tensor of 0 tokens
    if "dist_token" in tensors and not teacher:
        _distillation_as_register(tensors)
    left_out = {}
    if f"{prefix}embeddings.mask_token" in keys:
        left_out[f"{prefix}embeddings.mask_token"] = "used in pre-training only"
    return Recognised(
        format="Hugging Face",
        config=config,
        tensors=tensors,
        used=used,
        left_out=left_out,
        classes=class_names(file.config, config.num_classes),
        **preparation(from_huggingface, file.preprocessor, config.size),
        extra=label_kind(file.config, config.num_classes),
        notes=[] if file.config else ["there is no config.json: exact GELU is assumed"],
        foreign="" if "blocks.0.attn.qkv.bias" in tensors else NO_QKV_BIASES,
    )


def _distillation_as_register(tensors: LazyTensors) -> None:
    """DeiT without its second head: the token only takes part, which is what a register does.

    Its position is added once and for all, since registers have none; the sum is the same.
    """
    token, table = tensors.pop("dist_token"), tensors["pos_embed"]

    def without_slot() -> Tensor:
        whole = table()
        return whole[:, [0, *range(2, whole.shape[1])]]

    tensors["reg_token"] = lambda: token() + table()[:, 1:2]
    tensors["pos_embed"] = without_slot


def _config(
    file: WeightFile, prefix: str, stem: str, depth: int, *, dinov2: bool, teacher: bool
) -> ViTConfig:
    shapes, config = file.shapes, file.config
    projection = f"{prefix}embeddings.patch_embeddings.projection.weight"
    if projection not in shapes or len(shapes[projection]) != 4:
        raise UserError(f"{file.path} has no {projection}: its patches are embedded in another way")
    width, in_channels, patch_size, other_side = shapes[projection]
    if patch_size != other_side:
        raise UserError(
            f"{file.path} has patches of {patch_size}x{other_side} pixels; only squares fit"
        )
    heads = file.hints.get("num_heads") or config.get("num_attention_heads")
    norm_epsilon = epsilon(file, dinov2=dinov2)
    if heads is None or norm_epsilon is None:
        options = {"num_heads=...": heads, "layer_norm_eps=...": norm_epsilon}
        raise MissingFact(
            f"{file.path} needs the config.json that Hugging Face saves beside it: the number of "
            "attention heads and the epsilon of the norms are nowhere else; put it there, or",
            *(option for option, value in options.items() if value is None),
        )
    distillation = f"{prefix}embeddings.distillation_token" in shapes
    register_tokens = shapes.get(f"{prefix}embeddings.register_tokens")
    registers = register_tokens[1] if register_tokens else 0
    size = config.get("image_size")
    known = (size, size) if isinstance(size, int) else tuple(size) if size else None
    slots = 1 + distillation
    grid, _ = grid_of(shapes[f"{prefix}{_POSITIONS}"][1], [slots], known, patch_size)
    head = shapes.get("cls_classifier.weight" if teacher else "classifier.weight")
    pooler = shapes.get(f"{prefix}pooler.dense.weight")
    if pooler:
        check_pooler(file)
    gated = any(f"{stem}0.mlp.{name}.weight" in shapes for name in ("weights_in", "gate_proj"))
    return ViTConfig(
        image_size=(grid[0] * patch_size, grid[1] * patch_size),
        patch_size=patch_size,
        in_channels=in_channels,
        num_classes=head[0] if head else 0,
        width=width,
        depth=depth,
        mlp_dim=_mlp_dim(shapes, stem),
        num_heads=heads,
        pool="cls_gap" if head and head[1] == 2 * width else "cls",
        distillation_token=teacher,
        num_registers=registers + int(distillation and not teacher),
        # transformers resizes the tables of its register models with antialiasing, and no others.
        pos_resize=ANTIALIASED
        if register_tokens
        else "bilinear"
        if config.get("model_type") == "dpt"
        else "bicubic",
        representation_size=pooler[0] if pooler and not head else None,
        layer_scale=float(config.get("layerscale_value", 1.0)) if dinov2 else None,
        activation="swiglu" if gated else activation(file),
        layer_norm_eps=norm_epsilon,
    )


def _mlp_dim(shapes: Mapping[str, tuple[int, ...]], stem: str) -> int:
    for names in SPELLINGS.values():
        key = f"{stem}0.{names.get('mlp.fc2', ('',))[0]}.weight"
        if shapes.get(key):
            return shapes[key][-1]
    raise UserError("the file's MLP layers are missing")


def class_names(config: dict[str, Any], num_classes: int) -> list[str] | None:
    """id2label in order; transformers' placeholders LABEL_0, LABEL_1 ... are no names."""
    labels = {int(key): str(name) for key, name in (config.get("id2label") or {}).items()}
    if sorted(labels) != list(range(num_classes)) or not labels:
        return None
    names = [labels[i] for i in range(num_classes)]
    return None if names == [f"LABEL_{i}" for i in range(num_classes)] else names


THRESHOLDS = "label_thresholds"
"""Field of config.json with a threshold per class; transformers keeps it and does not use it."""


def label_kind(config: dict[str, Any], num_classes: int) -> dict[str, Any]:
    """`extra` of a model whose images may have several labels: its scores are sigmoids."""
    if config.get("problem_type") != "multi_label_classification":
        return {}
    thresholds = config.get(THRESHOLDS)
    if thresholds is None or len(thresholds) != num_classes:
        return {"multilabel": True}
    return {"multilabel": True, "thresholds": thresholds}
