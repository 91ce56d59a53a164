"""Hugging Face's ViT, DeiT, ViT-MSN, DINOv2 (with and without registers) and DINOv3, read.

Files on the hub keep the key names of transformers 4; a state dict of transformers 5 has shorter
ones. Both are read, and the hub's are written, as transformers itself does on saving. Of vit_mae
and dpt only the encoder is read, without masking, decoder and heads.
Sources: transformers 5.23, models/{vit,deit,vit_msn,vit_mae,dpt,dinov2,dinov2_with_registers,
dinov3_vit}/modeling_*.py and conversion_mapping.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from vit.errors import UserError
from vit.extensions.formats.facts import (
    count_layers,
    fill_qkv_biases,
    grid_of,
    positions_into_token,
)
from vit.extensions.formats.layout import HALVES, JOINED, KEYLESS, SAME, Rule, bound, layer
from vit.extensions.formats.preprocessing import HUGGING_FACE, from_huggingface, preparation
from vit.extensions.formats.refusals import refused, sign_of_others
from vit.extensions.formats.rotary import Rotary
from vit.extensions.huggingface import towers
from vit.extensions.huggingface.labels import label_kind, names_in
from vit.models.config import Activation, PosResize, ViTConfig
from vit.models.fields import as_size
from vit.weights.formats import MissingFact, Recognised
from vit.weights.weight_file import WeightFile

_POSITIONS = "embeddings.position_embeddings"
_PATCHES_OF_DINOV3 = "embeddings.patch_embeddings.weight"
SPELLINGS: dict[str, dict[str, list[str]]] = (
    HUGGING_FACE["spellings"] | HUGGING_FACE["spellings_of_dinov3"]
)
_OPS = {1: SAME, 2: HALVES, 3: JOINED}


def matches(file: WeightFile) -> bool:
    return _is_dinov3(file) or any(key.endswith(_POSITIONS) for key in file.shapes)


def _is_dinov3(file: WeightFile) -> bool:
    return _PATCHES_OF_DINOV3 in file.shapes and any(
        f"{stem}0.attention.q_proj.weight" in file.shapes for stem in ("layer.", "model.layer.")
    )


def vit_rules(
    prefix: str,
    stem: str,
    depth: int,
    spellings: Iterable[Mapping[str, Sequence[str]]],
    *,
    dinov3: bool = False,
    keyless: bool = False,
) -> list[Rule]:
    """Rules of a model, but for DeiT's two heads. `stem`: what the keys of the layers begin with.

    `keyless`: queries and values have biases, and keys have none.
    """
    projection = "patch_embeddings" if dinov3 else "patch_embeddings.projection"
    rules = [
        Rule("cls_token", (f"{prefix}embeddings.cls_token",)),
        Rule("dist_token", (f"{prefix}embeddings.distillation_token",)),
        Rule("reg_token", (f"{prefix}embeddings.register_tokens",)),
        Rule("pos_embed", (f"{prefix}{_POSITIONS}",)),
        *layer("patch_embed.proj", f"{prefix}embeddings.{projection}"),
        *layer("norm", f"{prefix}norm" if dinov3 else f"{prefix}layernorm"),
        *layer("pre_logits.fc", f"{prefix}pooler.dense"),
        *layer("head", "classifier"),
    ]
    for i in range(depth):
        base, ours = f"{stem}{i}.", f"blocks.{i}."
        rules += [Rule(f"{ours}ls{n}.gamma", (f"{base}layer_scale{n}.lambda1",)) for n in (1, 2)]
        for spelling in spellings:
            for part, names in spelling.items():
                theirs = (f"{base}{name}" for name in names)
                rules += layer(f"{ours}{part}", *theirs, op=_OPS[len(names)])
        if keyless:
            rules = [rule for rule in rules if rule.ours != f"{ours}attn.qkv.bias"]
            biases = tuple(f"{base}attention.{name}_proj.bias" for name in "qv")
            rules.append(Rule(f"{ours}attn.qkv.bias", biases, KEYLESS))
    return rules


def teacher_rules() -> list[Rule]:
    """The two heads of DeiTForImageClassificationWithTeacher."""
    return [*layer("head", "cls_classifier"), *layer("head_dist", "distillation_classifier")]


def recognise(file: WeightFile) -> Recognised:
    """A Hugging Face file as one of our models; config.json supplies what shapes cannot say."""
    keys, dinov3 = file.shapes, _is_dinov3(file)
    prefix = ""  # 'vit.', 'deit.', 'dinov2.' ... in models with a head
    if not dinov3:
        prefix = next(key for key in keys if key.endswith(_POSITIONS)).removesuffix(_POSITIONS)
    stem = _stem(file, prefix)
    depth = count_layers(keys, stem)
    keyless = dinov3 and f"{stem}0.attention.k_proj.bias" not in keys
    spellings = HUGGING_FACE["spellings_of_dinov3" if dinov3 else "spellings"].values()
    rules = vit_rules(prefix, stem, depth, spellings, dinov3=dinov3, keyless=keyless)
    tensors, used = bound(file, [*rules, *teacher_rules()])
    config = _config(file, prefix, stem, depth)
    queries = f"{stem}0.attention.q_proj.bias"
    if queries not in keys if dinov3 else file.config.get("qkv_bias") is False:
        fill_qkv_biases(tensors, config)
    if "dist_token" in tensors and not config.distillation_token:
        # DeiT without its second head: the token only takes part, which is what a register does.
        tensors["reg_token"] = tensors.pop("dist_token")
        positions_into_token(tensors, "reg_token", 1, 1)
    if not config.num_registers:
        tensors.pop("reg_token", None)  # a tensor of 0 tokens
    unused = [f"{prefix}embeddings.mask_token"]
    if "decoder.decoder_embed.weight" in keys:  # of ViTMAEForPreTraining
        unused.append("decoder.")
    return Recognised(
        format="Hugging Face",
        config=config,
        tensors=tensors,
        used=used | {key for key in keys if key.startswith(tuple(unused))},
        left_out={
            name.removesuffix("."): "used in pre-training only"
            for name in unused
            if any(key.startswith(name) for key in keys)
        },
        classes=names_in(file.config, config.num_classes),
        **preparation(from_huggingface, file.preprocessor, config.size),
        extra=label_kind(file.config, config.num_classes),
        notes=[] if file.config else ["there is no config.json: exact GELU is assumed"],
    )


def refusal(file: WeightFile) -> UserError | None:
    """The error for a model that is not known to give the same logits here."""
    name = file.config.get("model_type")
    if name is None:
        return sign_of_others(file.path, file.shapes)
    known = name in (*HUGGING_FACE["epsilon"], "bit") or not towers.refuses(name)
    return None if known else refused("Hugging Face", name)


def _stem(file: WeightFile, prefix: str) -> str:
    """The beginning of the layers' keys, before their number.

    transformers 5 saves ViTMSNForImageClassification with layers that have no prefix. DINOv3 has
    the last two.
    """
    stems = [f"{start}{name}" for start in (prefix, "") for name in ("encoder.layer.", "layers.")]
    stems += ["model.layer.", "layer."]
    present = [stem for stem in stems if any(key.startswith(f"{stem}0.") for key in file.shapes)]
    return present[0] if present else stems[0]


def _config(file: WeightFile, prefix: str, stem: str, depth: int) -> ViTConfig:
    shapes, config, dinov3 = file.shapes, file.config, _is_dinov3(file)
    scaled, teacher = f"{stem}0.layer_scale1.lambda1" in shapes, "cls_classifier.weight" in shapes
    width, in_channels, patch_size = _patches(file, prefix)
    heads, epsilon = _heads_and_epsilon(file, scaled=scaled)
    distillation = f"{prefix}embeddings.distillation_token" in shapes
    register_tokens = shapes.get(f"{prefix}embeddings.register_tokens")
    grid = _grid(file, prefix, patch_size, 1 + distillation)
    head = shapes.get("cls_classifier.weight" if teacher else "classifier.weight")
    pooler = shapes.get(f"{prefix}pooler.dense.weight")
    gated = any(f"{stem}0.mlp.{name}.weight" in shapes for name in ("weights_in", "gate_proj"))
    for field, usual, applies in (
        ("pooler_act", "tanh", pooler is not None),
        ("hidden_act", "silu", dinov3 and gated),
        ("num_hidden_layers", depth, True),
    ):
        if applies and (value := config.get(field, usual)) != usual:
            raise UserError(f"{file.path}: {field}={value!r} is not supported here, only {usual!r}")
    # transformers resizes the tables of its register models with antialiasing, and no others.
    resize: PosResize = "bicubic_antialias" if register_tokens else "bicubic"
    return ViTConfig(
        image_size=(grid[0] * patch_size, grid[1] * patch_size),
        patch_size=patch_size,
        in_channels=in_channels,
        num_classes=head[0] if head else 0,
        width=width,
        depth=depth,
        mlp_dim=_mlp_dim(file, stem),
        num_heads=heads,
        pool="cls_gap" if head and head[1] == 2 * width else "cls",
        distillation_token=teacher,
        num_registers=(register_tokens or (1, 0))[1] + int(distillation and not teacher),
        pos_embed="none" if dinov3 else "learned",
        pos_resize="bilinear" if config.get("model_type") == "dpt" else resize,
        rotary=asdict(_rotary(file)) if dinov3 else None,
        representation_size=pooler[0] if pooler and not head else None,
        layer_scale=config.get("layerscale_value", 1.0) if scaled else None,
        activation="swiglu" if gated else _activation(file),
        layer_norm_eps=epsilon,
    )


def _grid(file: WeightFile, prefix: str, patch_size: int, slots: int) -> tuple[int, int]:
    """Rows and columns of patches; `slots`: entries of the position table before those of them."""
    size = file.config.get("image_size")
    if _is_dinov3(file):  # the grid of an image is that of its whole patches
        rows, columns = as_size(file.hints.get("image_size") or size or 224)
        return rows // patch_size, columns // patch_size
    entries, known_size = file.shapes[f"{prefix}{_POSITIONS}"][1], as_size(size) if size else None
    return grid_of(entries, [slots], known_size, patch_size, stated=True)[0]


def _patches(file: WeightFile, prefix: str) -> tuple[int, int, int]:
    """Width, input channels and side of the patches."""
    projection = f"{prefix}embeddings.patch_embeddings.projection.weight"
    projection = _PATCHES_OF_DINOV3 if _is_dinov3(file) else projection
    if len(file.shapes[projection]) != 4:
        raise UserError(f"{file.path} embeds its patches in another way, which is not read here")
    width, in_channels, side, other_side = file.shapes[projection]
    if side != other_side:
        raise UserError(f"{file.path} has patches of {side}x{other_side} pixels; only squares fit")
    return width, in_channels, side


def _mlp_dim(file: WeightFile, stem: str) -> int:
    for names in SPELLINGS.values():
        key = f"{stem}0.{names.get('mlp.fc2', ('',))[0]}.weight"
        if key in file.shapes:
            return file.shapes[key][-1]
    raise UserError(f"{file.path} has an MLP of other layers, which is not supported here")


def _heads_and_epsilon(file: WeightFile, *, scaled: bool) -> tuple[int, float]:
    """Attention heads, and epsilon of the norms, by the user's word or config.json.

    The default epsilon is the family's; without LayerScale (`scaled`) several have these tensors.
    """
    config, hints, dinov3 = file.config, file.hints, _is_dinov3(file)
    family = "dinov3_vit" if dinov3 else "dinov2" if scaled else ""
    default = HUGGING_FACE["epsilon"].get(config.get("model_type") or family)
    epsilon = hints.get("layer_norm_eps", config.get("layer_norm_eps", default))
    heads = hints.get("num_heads") or config.get("num_attention_heads")
    fact, option, stated = "epsilon of the norms", "layer_norm_eps=...", epsilon is not None
    if dinov3:
        fact, option = "form of the rotary positions", "rotary={}, DINOv3's,"
        stated = bool(config) or "rotary" in hints
    if heads is None or not stated:
        raise MissingFact(
            f"{file.path} needs the config.json that Hugging Face saves beside it: the number of "
            f"attention heads and the {fact} are nowhere else; put it there, or give "
            + " and ".join([*([] if heads else ["num_heads=..."]), *([] if stated else [option])])
        )
    return heads, epsilon


def _activation(file: WeightFile) -> Activation:
    """GELU's form by the user's word or config.json. UserError for another activation."""
    if "activation" in file.hints:
        return file.hints["activation"]
    name, known = file.config.get("hidden_act", "gelu"), HUGGING_FACE["activations"]
    if name not in known:
        raise UserError(f"{file.path}: hidden_act={name!r} is not one of {', '.join(known)}")
    return known[name]


def _rotary(file: WeightFile) -> Rotary:
    """Positions by the user's word, or config.json with the library's defaults."""
    config = file.config
    if "rotary" in file.hints:
        return Rotary.of(file.hints["rotary"])
    kinds = config.get("rope_parameters") or config.get("rope_scaling")
    if kinds:
        raise UserError(
            f"{file.path}: rotary positions with rope_parameters={kinds!r} are not supported here"
        )
    return Rotary(
        period=config.get("rope_theta", 100.0),
        key_bias=config.get("key_bias", False),
        shift=config.get("pos_embed_shift"),
        jitter=config.get("pos_embed_jitter"),
        rescale=config.get("pos_embed_rescale", 2.0),
    )
