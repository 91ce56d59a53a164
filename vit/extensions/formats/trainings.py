"""The model in a file, among all that a training of another package saves with it."""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vit.errors import UserError, some_of
from vit.extensions.formats.layout import renamed
from vit.weights.weight_file import SETS, WeightFile, WeightSet

_WRAPPERS = re.compile(
    r"(^|(?<=\.))(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\."
)
# In DINOv2's trainings blocks are in chunks: blocks.1.7 is the eighth.
_CHUNK = re.compile(r"(^|(?<=\.))blocks\.\d+\.(?=\d+\.(norm[12]|attn|ls[12]|mlp)\.)")
# A tensor that every model of a layout has, below any prefix.
_MODEL = re.compile(
    r"((?:.*\.)?)(patch_embed\.proj\.weight|stem\.conv\.weight|conv_proj\.weight|embeddings\."
    r"(position_embeddings|patch_embeddings\.weight)|embedder\.convolution\.weight)"
)
# Beside an encoder of transformers, whose own name is then part of its keys: heads and decoders.
_OF_TRANSFORMERS = (
    *("classifier.weight", "classifier.1.weight", "cls_classifier.weight"),
    *("decoder.0.weight", "decoder.decoder_embed.weight"),
)
_AVERAGE = frozenset("ema average averaged avg teacher momentum target swa shadow".split())
_OPTIMIZER = frozenset("optimizer optimizers optim opt exp sq buffer moment grad grads".split())
_RAW = frozenset("student online current".split())


def flattened(content: Mapping[Any, Any], start: str = "") -> dict[str, Tensor]:
    """Tensors of mappings and lists in each other, by the names that lead to them; those of
    optimizers, which have numbers for names, are left out."""
    tensors: dict[str, Tensor] = {}
    for key, value in content.items():
        if isinstance(value, list | tuple):
            value = {str(number): item for number, item in enumerate(value)}
        if isinstance(value, Tensor):
            tensors[f"{start}{key}"] = value
        elif isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
            tensors |= flattened(value, f"{start}{key}.")
    return tensors


def _unwrapped(name: str) -> str:
    """The name of a tensor without the modules that compile, shard or recompute others."""
    return _CHUNK.sub("blocks.", _WRAPPERS.sub("", name))


def model_of(file: WeightFile, wanted: WeightSet | None) -> WeightFile:
    """The file below the prefix of the model that is meant."""
    file = renamed(file, _unwrapped)
    prefix, average, left_out = _model_in(file.path, file.shapes, wanted)
    size = len(prefix)
    model = renamed(file, lambda key: key[size:] if key.startswith(prefix) else None)
    return replace(model, prefix=prefix, average=average, left_out=left_out)


def _model_in(
    path: Path, shapes: Mapping[str, tuple[int, ...]], wanted: WeightSet | None
) -> tuple[str, bool, dict[str, str]]:
    """The prefix at which the model begins; whether it is the average of a training's weights; and
    other parts of the file, with the reason why they are left out.

    `wanted`: None is the average, if there is one. UserError for several models.
    """
    starts = {_start(m[1], shapes) for m in map(_MODEL.fullmatch, shapes) if m}
    starts = {start for start in starts if not _words(start) & _OPTIMIZER}
    starts = [p for p in starts if not any(p != q and p.startswith(q) for q in starts)]
    if not starts:
        common = os.path.commonprefix([*shapes])
        return common[: common.rfind(".") + 1], False, {}
    starts.sort(key=lambda start: (_rank(start), start))
    raw, average = starts[0], starts[-1]
    prefix = raw if wanted == "raw" else average
    apart = len(starts) == 2 and _rank(raw) < _rank(average)
    if len(starts) > 1 and not (apart and (wanted or _alike(shapes, raw, average))):
        names = some_of((start.rstrip(".") for start in starts), 4)
        choice = "; weights=raw takes the first, average the second" if apart else ""
        raise UserError(f"{path} holds several models, {names}; save one of them alone{choice}")
    averaged = prefix == average if apart else _rank(prefix) > 0
    other: WeightSet = "raw" if averaged else "average"
    left_out: dict[str, str] = {}
    for name, shape in shapes.items():
        if not name.startswith(prefix) and shape:  # counters have no shape
            parts = name.split(".")
            same = len(os.path.commonprefix([parts, prefix.split(".")]))
            group, why = ".".join(parts[: same + 1]), "beside the model"
            if any(start.startswith(f"{group}.") for start in starts):
                why = f"the {SETS[other]}; weights={other} takes them"
            elif _rank(group) > 0 and not _words(group) & _OPTIMIZER:
                why = "it looks like an average, in a layout that is not read"
            left_out[group] = why
    return prefix, averaged, left_out


def _start(prefix: str, shapes: Mapping[str, Any]) -> str:
    """The prefix of the whole model of which `prefix` has the first tensor."""
    above = prefix[: prefix.rstrip(".").rfind(".") + 1]
    return above if any(above + name in shapes for name in _OF_TRANSFORMERS) else prefix


def _words(prefix: str) -> set[str]:
    return set(re.split(r"[._]", prefix))


def _rank(prefix: str) -> int:
    """1 for a name of an average, -1 for one of raw weights beside an average, else 0."""
    words = _words(prefix)
    return 1 if words & _AVERAGE else -1 if words & _RAW else 0


def _alike(shapes: Mapping[str, Any], first: str, second: str) -> bool:
    """True if the layers below two prefixes, whose names have a number, have the same shapes."""
    numbered = {name: shape for name, shape in shapes.items() if re.search(r"\.\d+\.", name)}
    one, other = (
        {name[len(p) :]: shape for name, shape in numbered.items() if name.startswith(p)}
        for p in (first, second)
    )
    return one == other
