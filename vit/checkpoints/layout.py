"""How one project's tensors become another's: a table of rules, read forwards and backwards.

A source lists its rules once (`Rule("blocks.0.attn.qkv.weight", (query, key, value), JOINED)`);
loading runs them from left to right and exporting from right to left, so the two agree.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vit.checkpoints.files import WeightFile
from vit.errors import UserError, some_of
from vit.models.config import ViTConfig
from vit.models.zoo import ModelConfig


class MissingFact(UserError):
    """A fact that the file does not record, and that an option can supply, such as num_heads."""


LazyTensors = dict[str, Callable[[], Tensor]]
"""Our name -> a function that reads the tensor; nothing is read before everything has a place."""


@dataclass(frozen=True)
class Op:
    """A change of layout and its exact inverse; both copy at most."""

    read: Callable[..., Tensor]
    """Their tensors, in the rule's order -> ours."""
    write: Callable[[Tensor], tuple[Tensor, ...]]
    """Ours -> their tensors."""


SAME = Op(lambda t: t, lambda t: (t,))
TRANSPOSED = Op(lambda t: t.mT, lambda t: (t.mT,))
"""A matrix stored as input x output (Flax)."""
HWIO = Op(lambda t: t.permute(3, 2, 0, 1), lambda t: (t.permute(2, 3, 1, 0),))
"""A convolution stored as height, width, input, output (Flax, TensorFlow)."""
JOINED = Op(lambda *ts: torch.cat(ts), lambda t: t.chunk(3))
"""Queries, keys and values that are stored apart."""
KEYLESS = Op(lambda q, v: torch.cat([q, torch.zeros_like(q), v]), lambda t: t.chunk(3)[::2])
"""Biases of queries and values, without those of keys."""
HALVES = Op(lambda *ts: torch.cat(ts), lambda t: t.chunk(2))
"""Two matrices of one input that are stored apart."""


@dataclass(frozen=True)
class Rule:
    """One of our tensors and those that it is made from."""

    ours: str
    theirs: tuple[str, ...]
    op: Op = SAME


def layer(ours: str, *theirs: str, op: Op = SAME) -> list[Rule]:
    """Rules for weight and bias of a layer."""
    return [
        Rule(f"{ours}.{part}", tuple(f"{name}.{part}" for name in theirs), op)
        for part in ("weight", "bias")
    ]


@dataclass(kw_only=True)
class Recognised:
    """A file as a source understands it. No tensor has been read yet."""

    format: str
    """For people: "timm", "Google npz", ..."""
    config: ModelConfig
    tensors: LazyTensors
    used: set[str]
    """Keys of the file that `tensors` reads."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Keys that are knowingly not used -> why."""
    unexpected: list[str] = field(default_factory=list)
    """Keys that no rule knows: an error when the model is built."""
    classes: list[str] | None = None
    preprocess: dict[str, Any] | None = None
    unprepared: str = ""
    """The setting with which images cannot be prepared here, where `preprocess` is None for it."""
    notes: list[str] = field(default_factory=list)
    """Assumptions, for the report."""
    average: bool = False
    """The weights are the average of a training's."""
    check: Callable[[], None] = lambda: None
    """Run before the first tensor is used; UserError if the file is damaged."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Of our own files: recipe, metrics, source."""


def bound(file: WeightFile, rules: Iterable[Rule]) -> tuple[LazyTensors, set[str]]:
    """The rules whose tensors are in the file, as functions that read; and the keys they use.

    Several rules may make one of our tensors, for several spellings: the first of them does.
    """
    tensors: LazyTensors = {}
    used: set[str] = set()
    for rule in rules:
        if rule.ours not in tensors and all(key in file.shapes for key in rule.theirs):
            tensors[rule.ours] = lambda rule=rule: rule.op.read(*map(file.read, rule.theirs))
            used.update(rule.theirs)
    return tensors, used


def fill_qkv_biases(tensors: LazyTensors, config: ViTConfig) -> None:
    """Adds biases of zero to attention that is computed without any, which changes no logit."""
    names = [f"blocks.{i}.attn.qkv.bias" for i in range(config.depth)]
    if tensors.keys().isdisjoint(names):
        tensors |= dict.fromkeys(names, lambda: torch.zeros(3 * config.width))


def positions_into_token(tensors: LazyTensors, name: str, start: int, count: int) -> None:
    """Moves the entries `start` to `start + count` of the position table into their token."""
    token, table, end = tensors[name], tensors["pos_embed"], start + count
    tensors[name] = lambda: token() + table()[:, start:end]
    tensors["pos_embed"] = lambda: torch.cat([table()[:, :start], table()[:, end:]], dim=1)


def exported(state: Mapping[str, Tensor], rules: Iterable[Rule]) -> dict[str, Tensor]:
    """Our tensors under the names and in the layout of the rules' project."""
    by_name = {rule.ours: rule for rule in rules}
    if unnamed := state.keys() - by_name.keys():
        raise UserError(f"this format has no place for {listed(unnamed)}")
    theirs: dict[str, Tensor] = {}
    for name, tensor in state.items():
        parts = (part.contiguous() for part in by_name[name].op.write(tensor))
        theirs.update(zip(by_name[name].theirs, parts, strict=True))
    return theirs


def listed(keys: Iterable[str], sign: str = "", most: int = 6) -> str:
    """`-a -b and 7 more`: enough keys to see the pattern, on one line."""
    return some_of((sign + key for key in sorted(keys)), most, " ")


def count_layers(keys: Iterable[str], prefix: str) -> int:
    """Number of layers whose keys are `prefix` + number + '.' + ...; they start at 0."""
    digits = (key[len(prefix) :].split(".")[0] for key in keys if key.startswith(prefix))
    return max((int(number) + 1 for number in digits if number.isdigit()), default=0)


def patch_size_of(side: int, stem_depths: tuple[int, ...] | None) -> int:
    """Pixels from one token to the next, where `side` positions of the stem's map make a patch."""
    return side * ViTConfig(stem_depths=stem_depths, patch_size=32).stem_stride


def grid_of(
    entries: int, slot_choices: Iterable[int], size: tuple[int, int] | None, patch_size: int
) -> tuple[tuple[int, int], int]:
    """Grid (rows, columns) and number of prefix slots of a position table with so many entries.

    A known image size decides; else the first choice of slots that leaves a square.
    """
    choices = list(slot_choices)
    grid = (size[0] // patch_size, size[1] // patch_size) if size else (0, 0)
    slots = entries - math.prod(grid)
    if size and slots in choices:
        return grid, slots
    for slots in choices:
        side = math.isqrt(max(entries - slots, 0))
        if side > 0 and side * side == entries - slots:
            return (side, side), slots
    raise MissingFact(
        f"the position table has {entries} entries, which is no square grid; give "
        "image_size=(height, width), the size that the file was made for"
    )


# Width and heads of the size that has this name in timm; every published model of a width has so
# many heads, but at 1536.
SIZES = {
    "tiny": (192, 3),
    "wee": (256, 4),
    "little": (320, 5),
    "small": (384, 6),
    "medium": (512, 8),
    "mediumd": (512, 8),
    "betwixt": (640, 10),
    "base": (768, 12),
    "so150m": (896, 14),
    "so150m2": (832, 13),
    "large": (1024, 16),
    "so400m": (1152, 16),
    "huge": (1280, 16),
    "giant": (1408, 16),
    "giantopt": (1536, 16),
    "gigantic": (1664, 16),
}


def heads_of_width(file: WeightFile, width: int, notes: list[str], *, scaled: bool = False) -> int:
    """Heads of the published models of this width, for files that do not record them. Adds a note.

    At width 1536 they differ: DINOv2's ViT-g, which has LayerScale (`scaled`), has 24.
    """
    number = dict(SIZES.values()).get(width)
    if width == 1536:
        number = 24 if scaled else None
    if number is None:
        raise MissingFact(
            f"{file.path} does not say how many attention heads its width of {width} is divided "
            "into; give num_heads=..."
        )
    notes.append(
        f"the file does not record the number of heads: {number} is taken, as in the published "
        f"models of width {width}"
    )
    return number
