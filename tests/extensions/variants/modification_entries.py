"""Feed-forwards, norms, residuals and stacks: their entries in the contract."""

from math import ceil
from typing import Any

from tests.extensions.variants import numpy_modifications as plain
from tests.extensions.variants.entries import Entry
from tests.extensions.variants.numpy_variants import Part
from vit.models.config import ViTConfig


def mlps(config: ViTConfig) -> int:
    """Multiply-adds of the paper's MLPs."""
    return config.depth * 2 * config.num_tokens * config.width * config.mlp_dim


def gated_macs(config: ViTConfig, options: dict[str, Any]) -> int:
    hidden = {64: 43}[config.mlp_dim]  # two thirds
    return config.depth * 3 * config.num_tokens * config.width * hidden - mlps(config)


def experts_macs(config: ViTConfig, options: dict[str, Any]) -> int:
    chosen, n, e = options.get("chosen", 1), config.num_tokens, options.get("experts", 4)
    taken = e * ceil(options.get("capacity", 1.25) * chosen * n / e)
    return config.depth * n * config.width * e + mlps(config) * taken // n - mlps(config)


def funnel_macs(config: ViTConfig, options: dict[str, Any]) -> int:
    if options.get("stages") == 1:
        return 0

    def layer(n: int) -> int:
        d = config.width
        return 4 * n * d * d + 2 * n * n * d + 2 * n * d * config.mlp_dim

    return layer(config.num_prefix_tokens + config.num_patches // 4) - layer(config.num_tokens)


def same(reference: type[Part]) -> Entry:
    return Entry(lambda options: reference)


MODIFICATIONS = {
    **{("mlp", name): same(plain.activated(f)) for name, f in plain.FUNCTIONS.items()},
    **{
        ("mlp", name): Entry(lambda options, f=f: plain.gated(f), macs=gated_macs)
        for name, f in plain.GATES.items()
    },
    ("mlp", "experts"): Entry(
        plain.experts, {"experts": 2, "chosen": 2, "capacity": 0.5, "expert": "relu"}, experts_macs
    ),
    ("mlp", "none"): Entry(lambda options: plain.NoMlp, macs=lambda config, _: -mlps(config)),
    ("norm", "layer"): same(Part),
    ("norm", "rms"): same(plain.Rms),
    ("residual", "post"): same(plain.Post),
    ("residual", "none"): same(plain.NoResidual),
    ("residual", "rezero"): same(plain.Scaled),
    ("residual", "fixup"): same(plain.Scaled),
    ("stack", "shared"): same(plain.Shared),
    ("stack", "funnel"): Entry(plain.funnel, {"stages": 1}, funnel_macs, other=(48, 32)),
}
