"""Rules by which one project's tensors become another's, read forwards and backwards.

A source lists its rules once (`Rule("blocks.0.attn.qkv.weight", (query, key, value), JOINED)`);
loading runs them from left to right and exporting from right to left, so the two agree.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vit.errors import UserError
from vit.weights.building import listed
from vit.weights.formats import LazyTensors
from vit.weights.weight_file import Shapes, WeightFile


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
    """A tensor of ours, and those of a file that it is made from."""

    ours: str
    theirs: tuple[str, ...]
    op: Op = SAME


def layer(ours: str, *theirs: str, op: Op = SAME) -> list[Rule]:
    """Rules for weight and bias of a layer."""
    return [
        Rule(f"{ours}.{part}", tuple(f"{name}.{part}" for name in theirs), op)
        for part in ("weight", "bias")
    ]


def renamed(file: WeightFile, rename: Callable[[str], str | None]) -> WeightFile:
    """The same tensors under other names; those renamed to None are hidden."""
    pairs = {new: old for old in file.shapes if (new := rename(old)) is not None}
    shapes = Shapes({new: file.shapes[old] for new, old in pairs.items()})
    return replace(file, shapes=shapes, read=lambda name: file.read(pairs[name]))


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
