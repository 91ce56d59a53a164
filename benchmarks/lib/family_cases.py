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

import torch
import yaml
from torch import Tensor, nn

TABLE: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
CONFIGURATIONS: dict[str | None, dict[str, Any]] = TABLE["configurations"]
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
    """One case per set of flags, at the smallest size; then those of the table.

    `others`: whether to include the models of other modules.
    """
    cases = []
    for members in timm_groups().values():
        name, arguments = min(members, key=_cost)
        cases.append(_timm_case(_family(members), name, {}, arguments))
    cases += [
        _timm_case(f"{n}, its size", n, {}, timm_arguments(n)) for n in TABLE["shapes"].split()
    ]
    others_of_timm = TABLE["others"].split()
    cases += [_timm_case(name.split("_")[0], name, {}, {}) for name in others_of_timm if others]
    return cases + [
        _timm_case(f"vit, {label}", name, arguments, timm_arguments(name), unseen=unseen)
        for label, name, arguments, unseen in TABLE["variations"]
    ]


def _cost(member: tuple[str, dict[str, Any]]) -> tuple[int, int]:
    """Sort key: the smallest of several models comes first."""
    name, arguments = member
    side = int(name.rsplit("_", 1)[-1]) if name.rsplit("_", 1)[-1].isdigit() else 0
    width = (arguments.get("embed_dim") or 384) * arguments.get("width_factor", 1)
    return width + 100 * sum(arguments.get("layers", ())), side


def _family(members: list[tuple[str, dict[str, Any]]]) -> str:
    return f"{min((name for name, _ in members), key=len)} and {len(members) - 1} more"


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
        plain = plain or "use_pre_transformer_norm" in defaults  # Perception Encoder
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


def transformers_cases() -> list[Case]:
    """Every case that the installed version of transformers supports."""
    import transformers

    return [
        _transformers_case(family, model, {**CONFIGURATIONS.get(base, {}), **changes})
        for family, model, base, changes in TABLE["transformers"]
        if hasattr(transformers, model)
    ]


def _patches(images: Tensor, side: int) -> dict[str, Tensor]:
    """Images `b c h w` as SigLIP 2 (NaFlex) takes them: rows of pixels, and the grid."""
    b, c, height, width = images.shape
    grid = height // side, width // side
    rows = images.reshape(b, c, grid[0], side, grid[1], side).permute(0, 2, 4, 3, 5, 1)
    return {
        "pixel_values": rows.reshape(b, grid[0] * grid[1], side * side * c),
        "pixel_attention_mask": images.new_ones(b, grid[0] * grid[1]),
        "spatial_shapes": torch.tensor([grid] * b),
    }


def _transformers_case(family: str, model: str, arguments: dict[str, Any]) -> Case:
    import transformers

    kind = getattr(transformers, model)
    # Logits if the model has a head of classes, otherwise its pooled output.
    options = {**arguments, "num_labels": CLASSES} if "Classification" in model else arguments

    def answer(peer: nn.Module, images: Tensor) -> Tensor:
        if model == "Siglip2VisionModel":
            result = peer(**_patches(images, arguments["patch_size"]))
        else:
            result = (peer.get_submodule("vit") if "PreTraining" in model else peer)(images)
        for name in ("logits", "image_embeds", "pooler_output"):
            if getattr(result, name, None) is not None:
                return getattr(result, name).flatten(1)
        return result.last_hidden_state[:, 0]

    def size(_: nn.Module) -> tuple[int, int]:
        side = arguments.get("image_size", 64)
        return (side, side) if isinstance(side, int) else (side[0], side[1])

    usual = [CONFIGURATIONS[base] for base in ("mlp", "bit")]
    return Case(
        library="transformers",
        family=family,
        model=model,
        build=lambda: kind(kind.config_class(**options)),
        save=lambda peer, folder: peer.save_pretrained(folder),  # pyright: ignore
        size=size,
        answer=answer,
        shown={k: v for k, v in arguments.items() if v not in [each.get(k) for each in usual]},
        layouts=("library", "bare, .safetensors"),
        channels=arguments.get("num_channels", 3),
        unseen=family.startswith("bit, "),
    )
