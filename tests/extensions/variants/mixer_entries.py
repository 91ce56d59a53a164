"""Mixers: their entries in the contract. `macs` replace the paper's 4 m d^2 + 2 m^2 d a layer."""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

from tests.extensions.variants import numpy_mixers as plain
from tests.extensions.variants.entries import Entry
from vit.models.config import ViTConfig

Count = Callable[[ViTConfig, dict[str, Any]], int]


def instead(count: Count) -> Count:
    """Beyond the paper's layers, from the multiply-adds of a mixer."""

    def macs(config: ViTConfig, options: dict[str, Any]) -> int:
        m, d = config.num_tokens, config.width
        return config.depth * (count(config, options) - 4 * m * d * d - 2 * m * m * d)

    return macs


def softmax(config: ViTConfig, options: dict[str, Any]) -> int:
    m, a = config.num_tokens, config.num_heads * (options["head_size"] or config.head_size)
    return 4 * m * config.width * a + 2 * m * m * a


def dot_product(config: ViTConfig, options: dict[str, Any]) -> int:
    m, d = config.num_tokens, config.width
    return 2 * m * m * d + options["projected"] * 4 * m * d * d


def local(config: ViTConfig, size: int) -> int:
    m, p, d = config.num_tokens, config.num_prefix_tokens, config.width
    return 4 * m * d * d + 2 * config.num_patches * (size + p) * d + 2 * p * m * d


def axial(config: ViTConfig, options: dict[str, Any]) -> int:
    """Of a layer of two halves; layers with one half, in turns, have half of it in the mean."""
    both = sum(local(config, side) for side in config.grid)
    return both if options["axes"] == "both" else both // 2


def linformer(config: ViTConfig, options: dict[str, Any]) -> int:
    m, d = config.num_tokens, config.width
    return 4 * m * d * d + 4 * options["k"] * m * d


def bigbird(config: ViTConfig, options: dict[str, Any]) -> int:
    m, d, s = config.num_tokens, config.width, options["block"]
    n = -(-m // s)
    inner, seen = (n - 2) * s, min(n, options["window"] + 2 + options["random"])
    return 4 * m * d * d + 2 * inner * seen * s * d + 2 * (m - inner) * m * d


def recurrent(gates: int, config: ViTConfig, options: dict[str, Any]) -> int:
    ways = 1 + options["two_way"]
    return ways * (2 * gates + 1) * config.num_tokens * config.width**2


def convolution(config: ViTConfig, options: dict[str, Any]) -> int:
    m, d, k = config.num_tokens, config.width, options["kernel"]
    return k * m * d + m * d * d if options["depthwise"] else k * m * d * d


def lightweight(dynamic: int, config: ViTConfig, options: dict[str, Any]) -> int:
    m, d, k = config.num_tokens, config.width, options["kernel"]
    return 3 * m * d * d + (1 + dynamic * config.num_heads) * k * m * d


def synthesizer(kind: str, config: ViTConfig, options: dict[str, Any]) -> int:
    m, d = config.num_tokens, config.width
    scores = {
        "dense": m * d * d + m * m * d,
        "random": 0,
        "factorized": config.num_heads * options.get("k", 0) * m * m,
    }
    return 2 * m * d * d + m * m * d + scores[kind]


MACS: dict[str, Count] = {
    "softmax": softmax,
    "dot_product": dot_product,
    "window": lambda config, options: local(config, prod(options["size"])),
    "axial": axial,
    "linformer": linformer,
    "bigbird": bigbird,
    "rnn": partial(recurrent, 1),
    "lstm": partial(recurrent, 4),
    "gru": partial(recurrent, 3),
    "convolution": convolution,
    "lightweight": partial(lightweight, 0),
    "dynamic": partial(lightweight, 1),
    **{f"synthesizer_{k}": partial(synthesizer, k) for k in ("dense", "random", "factorized")},
}
"""Multiply-adds of a layer's mixer."""
PLAIN: dict[str, tuple[Any, dict[str, Any], dict[str, Any], tuple[int, int] | None]] = {
    "softmax": (plain.full, {"head_size": 4, "causal": True}, {}, (48, 40)),
    "dot_product": (plain.dot_product, {"projected": False}, {}, (48, 40)),
    "window": (
        plain.window, {"size": (4, 2), "shift": False, "bias": False}, {"size": (2, 2)}, (32, 64)
    ),
    "axial": (plain.axial, {"axes": "alternate"}, {}, (48, 40)),
    "linformer": (plain.linformer, {"k": 6, "shared": True}, {"k": 4}, None),
    "bigbird": (
        plain.bigbird, {"block": 4, "window": 1, "random": 2, "seed": 1}, {"block": 3}, (48, 40)
    ),
    **{
        cell: (plain.recurrent(cell), {"two_way": False}, {}, (48, 40))
        for cell in ("rnn", "lstm", "gru")
    },
    "convolution": (plain.convolution, {"kernel": 7, "depthwise": True}, {"kernel": 5}, (48, 40)),
    "lightweight": (plain.lightweight, {"kernel": 5}, {}, (48, 40)),
    "dynamic": (partial(plain.lightweight, dynamic=True), {"kernel": 5}, {}, (48, 40)),
    "synthesizer_dense": (plain.synthesizer("dense"), {}, {}, None),
    "synthesizer_random": (plain.synthesizer("random"), {}, {}, None),
    "synthesizer_factorized": (plain.synthesizer("factorized"), {"k": 2}, {}, None),
}  # fmt: skip
"""Reference, changes, options, other size."""
MIXERS = {
    ("mixer", name): Entry(reference, changes, instead(MACS[name]), options, other)
    for name, (reference, changes, options, other) in PLAIN.items()
}
