"""Hugging Face's ViT, DeiT and DINOv2 (with and without registers), read and written.

Files on the hub keep the key names of transformers 4; a state dict of transformers 5 has shorter
ones. Both are read, and the hub's are written, as transformers itself does on saving.
Sources: transformers 5.23, models/{vit,deit,dinov2}/modeling_*.py and conversion_mapping.py.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vit.checkpoints.files import WeightFile
from vit.checkpoints.huggingface_families import (
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
    LazyTensors,
    MissingFact,
    Recognised,
    Rule,
    bound,
    count_layers,
    fill_qkv_biases,
    grid_of,
)
from vit.checkpoints.preprocessing import from_huggingface
from vit.errors import UserError
from vit.models.config import ViTConfig

_POSITIONS = "embeddings.position_embeddings"
_V4_ATTENTION = (
    "attention.attention.query",
    "attention.attention.key",
    "attention.attention.value",
)
_V5_ATTENTION = ("attention.q_proj", "attention.k_proj", "attention.v_proj")


def matches(file: WeightFile) -> bool:
    """Whether the keys are a Hugging Face ViT's, with or without a head."""
    return any(key.endswith(_POSITIONS) for key in file.shapes)


def _prefix(file: WeightFile) -> str:
    """'vit.', 'deit.', 'dinov2.' ... in models with a head, '' in bare ones."""
    return next(key for key in file.shapes if key.endswith(_POSITIONS)).removesuffix(_POSITIONS)


def layer_rules(i: int, base: str, *, dinov2: bool, v5: bool, separate_gate: bool) -> list[Rule]:
    """Layer `i`, whose keys start with `base`."""
    short = v5 and not dinov2
    names = {
        "norm1": "norm1" if dinov2 else "layernorm_before",
        "norm2": "norm2" if dinov2 else "layernorm_after",
        "attn.proj": "attention.o_proj" if v5 else "attention.output.dense",
        "mlp.fc1": "mlp.fc1" if dinov2 or short else "intermediate.dense",
        "mlp.fc2": "mlp.fc2" if dinov2 or short else "output.dense",
    }
    attention = _V5_ATTENTION if v5 else _V4_ATTENTION
    rules = []
    for part in ("weight", "bias"):
        for ours, theirs in names.items():
            rules.append(Rule(f"blocks.{i}.{ours}.{part}", (f"{base}{theirs}.{part}",)))
        joined = tuple(f"{base}{name}.{part}" for name in attention)
        rules.append(Rule(f"blocks.{i}.attn.qkv.{part}", joined, JOINED))
    if dinov2:
        rules += [
            Rule(f"blocks.{i}.ls{n}.gamma", (f"{base}layer_scale{n}.lambda1",)) for n in (1, 2)
        ]
    if separate_gate:
        for part in ("weight", "bias"):
            gate_up = (f"{base}mlp.gate_proj.{part}", f"{base}mlp.up_proj.{part}")
            rules.append(Rule(f"blocks.{i}.mlp.fc1.{part}", gate_up, HALVES))
            rules.append(Rule(f"blocks.{i}.mlp.fc2.{part}", (f"{base}mlp.down_proj.{part}",)))
    return rules


def swiglu_rules(depth: int, stem: str) -> list[Rule]:
    """The gated MLP of DINOv2's largest model under its hub names."""
    return [
        Rule(f"blocks.{i}.mlp.{ours}.{part}", (f"{stem}{i}.mlp.{theirs}.{part}",))
        for i in range(depth)
        for ours, theirs in (("fc1", "weights_in"), ("fc2", "weights_out"))
        for part in ("weight", "bias")
    ]


def _stem(file: WeightFile, prefix: str) -> str:
    """What the keys of the layers begin with, before their number.

    transformers 5 saves ViTMSNForImageClassification with layers that have no prefix.
    """
    stems = [f"{start}{name}" for start in (prefix, "") for name in ("encoder.layer.", "layers.")]
    present = [stem for stem in stems if any(key.startswith(f"{stem}0.") for key in file.shapes)]
    return present[0] if present else stems[0]


def vit_rules(
    prefix: str, stem: str, depth: int, *, dinov2: bool, v5: bool, separate_gate: bool
) -> list[Rule]:
    rules = [
        Rule("cls_token", (f"{prefix}embeddings.cls_token",)),
        Rule("dist_token", (f"{prefix}embeddings.distillation_token",)),
        Rule("reg_token", (f"{prefix}embeddings.register_tokens",)),
        Rule("pos_embed", (f"{prefix}{_POSITIONS}",)),
    ]
    for part in ("weight", "bias"):
        rules += [
            Rule(
                f"patch_embed.proj.{part}",
                (f"{prefix}embeddings.patch_embeddings.projection.{part}",),
            ),
            Rule(f"norm.{part}", (f"{prefix}layernorm.{part}",)),
            Rule(f"pre_logits.fc.{part}", (f"{prefix}pooler.dense.{part}",)),
            Rule(f"head.{part}", (f"classifier.{part}",)),
        ]
    for i in range(depth):
        rules += layer_rules(i, f"{stem}{i}.", dinov2=dinov2, v5=v5, separate_gate=separate_gate)
    return rules


def teacher_rules() -> list[Rule]:
    """The two heads of DeiTForImageClassificationWithTeacher."""
    return [
        Rule(f"{ours}.{part}", (f"{theirs}.{part}",))
        for ours, theirs in (("head", "cls_classifier"), ("head_dist", "distillation_classifier"))
        for part in ("weight", "bias")
    ]


def recognise(file: WeightFile) -> Recognised:
    """A Hugging Face file as one of our models; config.json supplies what shapes cannot say."""
    check_family(file)
    prefix = _prefix(file)
    keys = file.shapes
    dinov2 = any(key.endswith(".layer_scale1.lambda1") for key in keys)
    v5 = any(".attention.q_proj." in key for key in keys)
    separate_gate = any(".mlp.gate_proj." in key for key in keys)
    swiglu = separate_gate or any(".mlp.weights_in." in key for key in keys)
    stem = _stem(file, prefix)
    depth = count_layers(keys, stem)
    rules = vit_rules(prefix, stem, depth, dinov2=dinov2, v5=v5, separate_gate=separate_gate)
    if swiglu and not separate_gate:
        rules += swiglu_rules(depth, stem)
    teacher = "cls_classifier.weight" in keys
    if teacher:
        rules = [r for r in rules if r.theirs[0][:11] != "classifier."] + teacher_rules()
    tensors, used = bound(file, rules)
    config = _config(file, prefix, stem, depth, dinov2=dinov2, swiglu=swiglu, teacher=teacher)
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
        preprocess=from_huggingface(file.preprocessor, config.size),
        extra=label_kind(file.config),
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
    file: WeightFile,
    prefix: str,
    stem: str,
    depth: int,
    *,
    dinov2: bool,
    swiglu: bool,
    teacher: bool,
) -> ViTConfig:
    shapes, given = file.shapes, file.config
    projection = f"{prefix}embeddings.patch_embeddings.projection.weight"
    if projection not in shapes or len(shapes[projection]) != 4:
        raise UserError(f"{file.path} has no {projection}: its patches are embedded in another way")
    width, in_channels, patch_size, other_side = shapes[projection]
    if patch_size != other_side:
        raise UserError(
            f"{file.path} has patches of {patch_size}x{other_side} pixels; only squares fit"
        )
    heads = file.hints.get("num_heads") or given.get("num_attention_heads")
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
    size = given.get("image_size")
    known = (size, size) if isinstance(size, int) else tuple(size) if size else None
    slots = 1 + distillation
    grid, _ = grid_of(shapes[f"{prefix}{_POSITIONS}"][1], [slots], known, patch_size)
    head = shapes.get("cls_classifier.weight" if teacher else "classifier.weight")
    pooler = shapes.get(f"{prefix}pooler.dense.weight")
    if pooler:
        check_pooler(file)
    mlp = _mlp_dim(shapes, stem)
    return ViTConfig(
        image_size=(grid[0] * patch_size, grid[1] * patch_size),
        patch_size=patch_size,
        in_channels=in_channels,
        num_classes=head[0] if head else 0,
        width=width,
        depth=depth,
        mlp_dim=mlp // 2 if swiglu and mlp != _separate_gate_dim(shapes) else mlp,
        num_heads=heads,
        pool="cls_gap" if head and head[1] == 2 * width else "cls",
        distillation_token=teacher,
        num_registers=registers + int(distillation and not teacher),
        # transformers resizes the tables of its register models with antialiasing, and no others.
        pos_resize=ANTIALIASED
        if register_tokens
        else "bilinear"
        if given.get("model_type") == "dpt"
        else "bicubic",
        representation_size=pooler[0] if pooler and not head else None,
        layer_scale=float(given.get("layerscale_value", 1.0)) if dinov2 else None,
        activation="swiglu" if swiglu else activation(file),
        layer_norm_eps=norm_epsilon,
    )


def _mlp_dim(shapes: Mapping[str, tuple[int, ...]], stem: str) -> int:
    for name in ("intermediate.dense", "mlp.fc1", "mlp.weights_in", "mlp.gate_proj"):
        if f"{stem}0.{name}.weight" in shapes:
            return shapes[f"{stem}0.{name}.weight"][0]
    raise UserError("the file's MLP layers are missing")


def _separate_gate_dim(shapes: Mapping[str, tuple[int, ...]]) -> int | None:
    return next((s[0] for key, s in shapes.items() if key.endswith(".mlp.gate_proj.weight")), None)


def class_names(config: dict[str, Any], num_classes: int) -> list[str] | None:
    """id2label in order; transformers' placeholders LABEL_0, LABEL_1 ... are no names."""
    labels = {int(key): str(name) for key, name in (config.get("id2label") or {}).items()}
    if sorted(labels) != list(range(num_classes)) or not labels:
        return None
    names = [labels[i] for i in range(num_classes)]
    return None if names == [f"LABEL_{i}" for i in range(num_classes)] else names


def label_kind(config: dict[str, Any]) -> dict[str, Any]:
    """`extra` of a model whose images may have several labels: its scores are sigmoids."""
    several = config.get("problem_type") == "multi_label_classification"
    return {"multilabel": True} if several else {}
