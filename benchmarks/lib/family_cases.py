"""The models of benchmarks/parity/families.py: one per set of build arguments of a library.

timm's come from its registry: every entry of its ViT modules passes its arguments to
`build_model_with_cfg`. Entries that differ only in sizes are one case, at the smallest size.
"""

import functools
import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn

LAYOUTS = ("library", "bare, .safetensors", "bare, .pth")
CLASSES = 5
_TIMM_MODULES = (
    "beit deit eva vision_transformer vision_transformer_hybrid vision_transformer_relpos "
    "vision_transformer_sam naflexvit resnetv2"
).split()
_SIZES = (
    "img_size patch_size embed_dim depth num_heads mlp_ratio layers width_factor channels "
    "num_kv_heads global_attn_indexes ref_feat_shape rel_pos_dim"
).split()
_NOT_ARGUMENTS = (
    "pretrained_filter_fn pretrained_strict feature_cfg pretrained_cfg pretrained_cfg_overlay "
    "cache_dir"
).split()


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model of one library."""

    library: str
    family: str
    model: str
    build: Callable[[], nn.Module]
    save: Callable[[nn.Module, Path], object]
    """Writes what the library writes into a folder."""
    size: Callable[[nn.Module], tuple[int, int]]
    answer: Callable[[nn.Module, Tensor], Tensor]
    shown: dict[str, Any] = field(default_factory=dict)
    """Arguments in addition to the model's name."""
    layouts: tuple[str, ...] = LAYOUTS
    channels: int = 3
    narrow: bool = True
    """Whether the model is small enough to measure repeatedly."""
    unseen: bool = False
    """Whether the arguments change the logits but no tensor of a bare file."""


class _Recorded(Exception):
    """Stops building a model once its arguments are recorded."""


@functools.cache
def timm_arguments(name: str) -> dict[str, Any]:
    """Build arguments of timm's entry `name`, without building it; callables as names."""
    import timm
    from timm.models import _registry

    module = importlib.import_module(f"timm.models.{_registry._model_to_module[name]}")
    seen: dict[str, Any] = {}

    def record(kind: type, variant: str, pretrained: bool, **arguments: Any) -> None:
        seen.update(arguments, cls=kind.__name__)
        raise _Recorded

    modules = [module, importlib.import_module("timm.models.vision_transformer")]
    try:
        with patch.object(modules[0], "build_model_with_cfg", record):
            with patch.object(modules[1], "build_model_with_cfg", record):
                timm.create_model(name)
    except _Recorded:
        pass
    return {key: _word(value) for key, value in seen.items() if key not in _NOT_ARGUMENTS}


def _word(value: Any) -> Any:
    if isinstance(value, functools.partial):
        parts = ", ".join(f"{k}={_word(v)}" for k, v in value.keywords.items() if k != "backbone")
        backbone = value.keywords.get("backbone")
        return f"{_word(value.func)}({parts}{type(backbone).__name__ if backbone else ''})"
    return getattr(value, "__name__", value) if callable(value) else value


def timm_names() -> list[str]:
    """Every ViT-like entry of timm, and a few of its other transformers."""
    import timm
    from timm.models import _registry

    names = timm.list_models()
    # NaFlex's larger models have the base's arguments but for sizes, which timm keeps in a record.
    return [
        name
        for name in names
        if _registry._model_to_module[name] in _TIMM_MODULES
        and (not name.startswith("naflexvit") or name.startswith("naflexvit_base"))
    ]


# Transformers of other modules that a user may try.
OTHERS = (
    "cait_xxs24_224 xcit_nano_12_p16_224 volo_d1_224 vitamin_small_224 convit_tiny pit_ti_224 "
    "levit_128s swin_tiny_patch4_window7_224 hiera_tiny_224 mixer_s16_224 deepseek_vit_412m_enc "
    "gemma4_vit_167m_enc qwen3_vit_88m_enc resnet18"
).split()
# Sizes at which a bare file is more ambiguous than at the smallest of its family.
SHAPES = (
    "vit_base_patch16_siglip_256 vit_large_patch16_siglip_256 vit_large_patch16_siglip_512 "
    "vit_so400m_patch14_siglip_224 vit_so400m_patch16_siglip_256 vit_giantopt_patch16_siglip_256 "
    "vit_base_patch16_siglip_gap_224 vit_base_patch16_siglip_gap_256 vit_base_patch16_gap_224 "
    "vit_so400m_patch14_siglip_gap_224 vit_large_patch16_siglip_gap_256 vit_giant_patch14_224 "
    "vit_so400m_patch14_reg1_tipsv2 vit_gigantic_patch14_224 vit_huge_patch14_224 "
    "vit_base_patch16_224 vit_large_patch16_224"
).split()


def timm_groups() -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Flags as JSON -> the entries that have them, with all their arguments."""
    groups: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for name in timm_names():
        arguments = timm_arguments(name)
        flags = {k: v for k, v in arguments.items() if k not in _SIZES}
        groups.setdefault(json.dumps(flags, sort_keys=True, default=str), []).append(
            (name, arguments)
        )
    return groups


def timm_cases(others: bool = True) -> list[Case]:
    """One case per set of flags, at the smallest size; then SHAPES, OTHERS and VARIATIONS.

    `others`: whether to include OTHERS.
    """
    cases = []
    for members in timm_groups().values():
        name, arguments = min(members, key=_cost)
        cases.append(_timm_case(_family(members), name, {}, arguments))
    cases += [_timm_case(f"{n}, its size", n, {}, timm_arguments(n)) for n in SHAPES]
    cases += [_timm_case(name.split("_")[0], name, {}, {}) for name in OTHERS if others]
    return cases + [
        _timm_case(f"vit, {label}", name, arguments, timm_arguments(name), unseen=unseen)
        for label, name, arguments, unseen in VARIATIONS
    ]


def _cost(member: tuple[str, dict[str, Any]]) -> tuple[int, int]:
    """Sort key: the smallest of several models comes first."""
    name, arguments = member
    side = int(name.rsplit("_", 1)[-1]) if name.rsplit("_", 1)[-1].isdigit() else 0
    width = (arguments.get("embed_dim") or 384) * arguments.get("width_factor", 1)
    return width + 100 * sum(arguments.get("layers", ())), side


def _family(members: list[tuple[str, dict[str, Any]]]) -> str:
    return f"{min((name for name, _ in members), key=len)} and {len(members) - 1} more"


_SMALL = {"embed_dim": 96, "num_heads": 2, "img_size": 32, "patch_size": 8}
_WITHOUT = {"class_token": False, "global_pool": "avg"}
_TI = "vit_tiny_patch16_224"
_SWITCHED_ON = (
    "pre_norm qk_norm scale_attn_norm scale_mlp_norm dynamic_img_size dynamic_img_pad"
).split()
_SWITCHED_OFF = ("final_norm", "qkv_bias", "proj_bias")
# Label, architecture, arguments, and whether these change the logits but no tensor.
VARIATIONS: list[tuple[str, str, dict[str, Any], bool]] = [
    ("narrow, own heads", "vit_base_patch16_224", {**_SMALL}, True),
    ("heads at a known width", "vit_base_patch16_224", {"num_heads": 4}, True),
    ("width without heads", "vit_base_patch16_224", {"embed_dim": 384}, True),
    ("pool avg", _TI, {"global_pool": "avg"}, False),
    ("pool max", _TI, {"global_pool": "max"}, True),
    ("pool avgmax", _TI, {"global_pool": "avgmax"}, True),
    ("pool map", _TI, {"global_pool": "map"}, False),
    ("pool prr", _TI, {"global_pool": "prr"}, True),
    ("no pool", _TI, {"global_pool": ""}, True),
    ("pool avg, fc_norm=False", _TI, {**_WITHOUT, "fc_norm": False}, False),
    ("class token, pool avg, fc_norm=False", _TI, {"global_pool": "avg", "fc_norm": False}, True),
    ("pool token, fc_norm=True", _TI, {"fc_norm": True}, True),
    ("class token pooled", _TI, {**_WITHOUT, "class_token": True}, False),
    ("pool_include_prefix", _TI, {"global_pool": "avg", "pool_include_prefix": True}, True),
    ("pool_include_prefix without a prefix", _TI, {**_WITHOUT, "pool_include_prefix": True}, False),
    ("no class token", _TI, dict(_WITHOUT), False),
    ("no_embed_class", _TI, {"no_embed_class": True}, False),
    ("registers", _TI, {"reg_tokens": 4, "no_embed_class": True}, False),
    ("registers with positions", _TI, {"reg_tokens": 3}, False),
    ("no positions", _TI, {"pos_embed": "none"}, False),
    ("no positions, no class token", _TI, {"pos_embed": "none", **_WITHOUT}, False),
    *[(flag, _TI, {flag: True}, False) for flag in _SWITCHED_ON],
    *[(f"{flag}=False", _TI, {flag: False}, False) for flag in _SWITCHED_OFF],
    ("init_values", _TI, {"init_values": 1e-4}, False),
    *[
        (f"act_layer {act}", _TI, {"act_layer": act}, act != "gelu")
        for act in "gelu gelu_tanh quick_gelu relu silu".split()
    ],
    ("norm_layer layernorm", _TI, {"norm_layer": "layernorm"}, False),
    ("norm_layer rmsnorm", _TI, {"norm_layer": "rmsnorm"}, False),
    ("embed_norm_layer", _TI, {"embed_norm_layer": "layernorm"}, False),
    ("attn_layer diff", _TI, {"attn_layer": "diff"}, False),
    ("in_chans 1", _TI, {"in_chans": 1}, False),
    ("img_size", _TI, {"img_size": (64, 96)}, True),
    ("num_classes 0", _TI, {"num_classes": 0}, False),
    ("drop rates", _TI, {"drop_rate": 0.1, "drop_path_rate": 0.1}, False),
    ("weight_init", _TI, {"weight_init": "jax"}, False),
    ("distilled, narrow", "deit_tiny_distilled_patch16_224", {"num_heads": 2}, True),
    ("registers with act", "vit_small_patch14_reg4_dinov2", {"act_layer": "gelu_tanh"}, True),
    ("gate act", "vit_giant_patch14_dinov2", {**_SMALL, "act_layer": "gelu"}, True),
    ("gate", "vit_giant_patch14_dinov2", {**_SMALL, "mlp_ratio": 4}, True),
    ("rope on DeiT-III's table", "vit_small_patch16_rope_ape_224", {"num_heads": 4}, False),
    ("hybrid, gelu_tanh", "vit_tiny_r_s16_p8_224", {"act_layer": "gelu_tanh"}, True),
    ("bit, one channel", "resnetv2_50x1_bit", {"in_chans": 1}, False),
    ("bit, avg_down", "resnetv2_50x1_bit", {"avg_down": True}, True),
    ("bit, act_layer", "resnetv2_50x1_bit", {"act_layer": "silu"}, True),
    ("bit, pool max", "resnetv2_50x1_bit", {"global_pool": "max"}, True),
    ("bit, output_stride", "resnetv2_50x1_bit", {"output_stride": 16}, True),
]


def _timm_case(
    family: str,
    name: str,
    arguments: dict[str, Any],
    defaults: dict[str, Any],
    unseen: bool = False,
) -> Case:
    import timm

    wide = {**defaults, **arguments}.get("embed_dim") or 384

    def build() -> nn.Module:
        options = {"num_classes": CLASSES, **arguments}
        plain = defaults.get("cls") == "VisionTransformer" and "embed_layer" not in defaults
        if plain and defaults.get("class_token", True):
            # Without a class token, the published size decides whether the file is refused.
            options.setdefault(
                "img_size", 4 * options.get("patch_size", defaults.get("patch_size", 16))
            )
        depth = 1 if wide > 1000 else 2
        tries: list[dict[str, Any]] = [{"depth": depth}, {"layers": [1, 1, 1, 1]}, {}]
        if wide > 2000:  # never at full size, which may exhaust memory
            tries = [{"depth": depth, "embed_dim": 256, "num_heads": 4}]
        for extra in tries:
            try:
                return timm.create_model(name, **{**extra, **options})
            except (TypeError, AssertionError, ValueError, RuntimeError, IndexError):
                continue
        raise RuntimeError(f"timm cannot build {name} at a small size")

    def save(peer: nn.Module, folder: Path) -> None:
        from timm.models import save_for_hf

        save_for_hf(peer, str(folder), safe_serialization=True)

    def size(peer: nn.Module) -> tuple[int, int]:
        published = getattr(getattr(peer, "patch_embed", None), "img_size", None)
        if published is not None:
            return tuple(published)
        return (64, 64) if "resnetv2" in name else peer.pretrained_cfg["input_size"][1:]

    return Case(
        library="timm",
        family=family,
        model=name,
        build=build,
        save=save,
        size=size,
        answer=lambda peer, images: peer(images),
        shown=arguments,
        layouts=LAYOUTS if wide < 400 else LAYOUTS[:2],
        channels=arguments.get("in_chans", 3),
        narrow=wide < 400 and "embed_layer" not in defaults,
        unseen=unseen,
    )


_HF = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
_MLP = {**_HF, "intermediate_size": 96}
_CLIP = {**_MLP, "projection_dim": 32}
_BIT = {"depths": [1, 2, 1], "hidden_sizes": [256, 512, 1024]}
_POS = {**_MLP, "use_absolute_position_embeddings": True}
_ViT, _DeiT = "ViTForImageClassification", "DeiTForImageClassification"
_BEiT, _BiT = "BeitForImageClassification", "BitForImageClassification"
_Data2Vec = "Data2VecVisionForImageClassification"
_DINO, _REG = "Dinov2ForImageClassification", "Dinov2WithRegistersForImageClassification"
# Family, model, configuration. The class of the configuration follows from the model's.
TRANSFORMERS: list[tuple[str, str, dict[str, Any]]] = [
    ("vit", _ViT, _MLP),
    *[
        (f"vit, {act}", _ViT, {**_MLP, "hidden_act": act})
        for act in "gelu_new gelu_pytorch_tanh gelu_fast gelu_python quick_gelu relu silu".split()
    ],
    ("vit, qkv_bias=False", _ViT, {**_MLP, "qkv_bias": False}),
    ("vit, eps 1e-3", _ViT, {**_MLP, "layer_norm_eps": 1e-3}),
    ("vit, heads", _ViT, {**_MLP, "num_attention_heads": 8}),
    ("vit, one channel", _ViT, {**_MLP, "num_channels": 1}),
    ("vit, image of 32x64", _ViT, {**_MLP, "image_size": [32, 64]}),
    ("vit, backbone", "ViTModel", _MLP),
    ("vit, pooler_act", "ViTModel", {**_MLP, "pooler_act": "relu"}),
    ("vit, pooler_output_size", "ViTModel", {**_MLP, "pooler_output_size": 48}),
    ("vit, masked images", "ViTForMaskedImageModeling", _MLP),
    ("deit", _DeiT, _MLP),
    ("deit with teacher", f"{_DeiT}WithTeacher", _MLP),
    ("deit, quick_gelu", _DeiT, {**_MLP, "hidden_act": "quick_gelu"}),
    ("deit, qkv_bias=False", _DeiT, {**_MLP, "qkv_bias": False}),
    ("deit, eps 1e-3", f"{_DeiT}WithTeacher", {**_MLP, "layer_norm_eps": 1e-3}),
    ("deit, backbone", "DeiTModel", _MLP),
    ("deit, pooler_act", "DeiTModel", {**_MLP, "pooler_act": "relu"}),
    ("deit, masked images", "DeiTForMaskedImageModeling", _MLP),
    ("dinov2", _DINO, _HF),
    ("dinov2, backbone", "Dinov2Model", _HF),
    ("dinov2, swiglu", _DINO, {**_HF, "use_swiglu_ffn": True}),
    ("dinov2, swiglu with act", _DINO, {**_HF, "use_swiglu_ffn": True, "hidden_act": "relu"}),
    ("dinov2, gelu_new", _DINO, {**_HF, "hidden_act": "gelu_new"}),
    ("dinov2, quick_gelu", _DINO, {**_HF, "hidden_act": "quick_gelu"}),
    ("dinov2, qkv_bias=False", _DINO, {**_HF, "qkv_bias": False}),
    ("dinov2, eps 1e-3", _DINO, {**_HF, "layer_norm_eps": 1e-3}),
    ("dinov2, no mask token", _DINO, {**_HF, "use_mask_token": False}),
    ("dinov2 with registers", _REG, _HF),
    ("dinov2 with registers, backbone", "Dinov2WithRegistersModel", _HF),
    ("dinov2 with registers, swiglu", _REG, {**_HF, "use_swiglu_ffn": True}),
    ("dinov2 with registers, 2 of them", _REG, {**_HF, "num_register_tokens": 2}),
    ("dinov3", "DINOv3ViTModel", _MLP),
    ("dinov3, gated", "DINOv3ViTModel", {**_MLP, "use_gated_mlp": True}),
    ("dinov3, bias", "DINOv3ViTModel", {**_MLP, "key_bias": True}),
    ("beit", _BEiT, _MLP),
    ("beit, absolute positions", _BEiT, _POS),
    ("beit, backbone", "BeitModel", _POS),
    ("data2vec", _Data2Vec, _MLP),
    ("data2vec, absolute positions", _Data2Vec, _POS),
    ("siglip", "SiglipVisionModel", _MLP),
    ("siglip2", "Siglip2VisionModel", {**_MLP, "num_patches": 16}),
    ("clip", "CLIPVisionModel", _CLIP),
    ("clip, projected", "CLIPVisionModelWithProjection", _CLIP),
    ("metaclip 2", "MetaClip2VisionModel", _CLIP),
    ("mlcd", "MLCDVisionModel", _MLP),
    ("aimv2", "Aimv2VisionModel", _MLP),
    ("vit_mae", "ViTMAEModel", {**_MLP, "mask_ratio": 0.0}),
    (
        "vit_mae, pre-training",
        "ViTMAEForPreTraining",
        {**_MLP, "decoder_hidden_size": 32, "mask_ratio": 0.0},
    ),
    ("vit_msn", "ViTMSNForImageClassification", _MLP),
    ("vit_msn, backbone", "ViTMSNModel", _MLP),
    ("ijepa", "IJepaForImageClassification", _MLP),
    ("ijepa, backbone", "IJepaModel", _MLP),
    ("dpt", "DPTModel", _MLP),
    ("yolos", "YolosModel", {**_MLP, "image_size": [32, 32]}),
    ("vitdet", "VitDetModel", _HF),
    ("vitpose", "VitPoseBackbone", {**_HF, "image_size": [32, 32], "patch_size": [8, 8]}),
    ("audio spectrograms", "ASTModel", {**_MLP, "num_mel_bins": 32, "max_length": 32}),
    ("timesformer", "TimesformerModel", {**_MLP, "num_frames": 2}),
    ("vivit", "VivitModel", {**_MLP, "num_frames": 2}),
    ("videomae", "VideoMAEModel", {**_MLP, "num_frames": 2}),
    (
        "hiera",
        "HieraModel",
        {"embed_dim": 32, "depths": [1, 1], "num_heads": [1, 2], "num_query_pool": 1},
    ),
    ("bit", _BiT, _BIT),
    ("bit, backbone", "BitModel", _BIT),
    ("bit, bottleneck", _BiT, {**_BIT, "layer_type": "bottleneck"}),
    ("bit, SAME", _BiT, {**_BIT, "global_padding": "SAME"}),
    ("bit, groups", _BiT, {**_BIT, "num_groups": 16}),
    ("bit, act", _BiT, {**_BIT, "hidden_act": "silu"}),
    ("bit, stride", _BiT, {**_BIT, "output_stride": 8}),
    ("bit, dynamic", _BiT, {**_BIT, "embedding_dynamic_padding": True}),
    ("bit, width", _BiT, {**_BIT, "width_factor": 2}),
    ("bit, root", _BiT, {**_BIT, "embedding_size": 32}),
    ("bit, hidden sizes", _BiT, {**_BIT, "hidden_sizes": [128, 256, 512]}),
]


def transformers_cases() -> list[Case]:
    """Every case that the installed version of transformers supports."""
    import transformers

    supported = [entry for entry in TRANSFORMERS if hasattr(transformers, entry[1])]
    return [_transformers_case(*entry) for entry in supported]


def _transformers_case(family: str, model: str, arguments: dict[str, Any]) -> Case:
    import transformers

    kind = getattr(transformers, model)
    # Logits if the model has a head of classes, otherwise its pooled output.
    options = {**arguments, "num_labels": CLASSES} if "Classification" in model else arguments

    def answer(peer: nn.Module, images: Tensor) -> Tensor:
        result = (peer.get_submodule("vit") if "PreTraining" in model else peer)(images)
        for name in ("logits", "pooler_output"):
            if getattr(result, name, None) is not None:
                return getattr(result, name).flatten(1)
        return result.last_hidden_state[:, 0]

    def size(_: nn.Module) -> tuple[int, int]:
        side = arguments.get("image_size", 64)
        return (side, side) if isinstance(side, int) else (side[0], side[1])

    return Case(
        library="transformers",
        family=family,
        model=model,
        build=lambda: kind(kind.config_class(**options)),
        save=lambda peer, folder: peer.save_pretrained(folder),  # pyright: ignore
        size=size,
        answer=answer,
        shown={k: v for k, v in arguments.items() if v not in (_MLP.get(k), _BIT.get(k))},
        layouts=("library", "bare, .safetensors"),
        channels=arguments.get("num_channels", 3),
        unseen=family.startswith("bit, "),
    )
