"""The parts by kind and name, and those that `ViTConfig.variant` names.

`variant` has a name, or a name and options, for a kind: {"positions": {"name": "relative", "size":
4}, "mlp": "geglu"}.
To add a part: a row of the kind's table, and its entry in tests/variants (`Entry`).
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, Generic, NamedTuple, TypeVar

from torch import nn

from vit.errors import UserError, did_you_mean, shorten
from vit.extensions.variants import (
    additive,
    convolution,
    recurrent,
    relative,
    residuals,
    softmax,
    sparse,
    stacks,
    synthesizers,
)
from vit.extensions.variants.additive import FixedOptions, LearnedOptions, added
from vit.extensions.variants.convolutional_stem import ConvPatchEmbed, ConvStemOptions
from vit.extensions.variants.experts import ExpertsOptions, experts
from vit.extensions.variants.feedforward import FEEDFORWARDS, feedforward, without_mlp
from vit.extensions.variants.mixing import OneGrid, mixed
from vit.extensions.variants.options import Change, Options, Sized
from vit.extensions.variants.relative import biased
from vit.models.config import ViTConfig
from vit.models.encoder import Block
from vit.models.fields import known_fields

Build = TypeVar("Build")


Positions = Callable[[Any, ViTConfig, list[Block]], additive.Placed]
"""Builds what the stem adds, and positions in the list of the paper's layers, in place."""


class Part(NamedTuple, Generic[Build]):
    """A mechanism."""

    options: type[Options]
    build: Build


POSITIONS: dict[str, Part[Positions]] = {
    "none": Part(Options, additive.unordered),
    "learned": Part(LearnedOptions, added(additive.Learned)),
    "learned2d": Part(LearnedOptions, added(additive.Learned2d)),
    "sinusoids": Part(FixedOptions, added(additive.Sinusoids)),
    "sincos2d": Part(FixedOptions, added(additive.Sincos2d)),
    "relative": Part(Sized, biased(relative.Relative)),
    "shaw": Part(relative.ShawOptions, biased(relative.Shaw, relative.ShawAttention)),
    "bias_table": Part(Sized, biased(relative.BiasTable)),
    "alibi": Part(Options, biased(relative.Alibi)),
}
MIXERS: dict[str, Part[Change]] = {
    "softmax": Part(softmax.SoftmaxOptions, softmax.softmax),
    "dot_product": Part(softmax.DotProductOptions, softmax.dot_product),
    "window": Part(sparse.WindowOptions, mixed(sparse.WindowAttention)),
    "axial": Part(sparse.AxialOptions, mixed(sparse.Axial)),
    "linformer": Part(softmax.LinformerOptions, mixed(softmax.Linformer)),
    "bigbird": Part(sparse.BigBirdOptions, mixed(sparse.BigBird)),
    "rnn": Part(recurrent.RecurrentOptions, mixed(recurrent.rnn)),
    "lstm": Part(recurrent.RecurrentOptions, mixed(recurrent.lstm)),
    "gru": Part(recurrent.RecurrentOptions, mixed(recurrent.gru)),
    "convolution": Part(convolution.ConvolutionOptions, mixed(convolution.Convolution)),
    "lightweight": Part(convolution.KernelOptions, mixed(convolution.Lightweight)),
    "dynamic": Part(convolution.KernelOptions, mixed(convolution.Dynamic)),
    "synthesizer_dense": Part(OneGrid, mixed(synthesizers.Dense)),
    "synthesizer_random": Part(OneGrid, mixed(synthesizers.Random)),
    "synthesizer_factorized": Part(synthesizers.FactorizedOptions, mixed(synthesizers.Factorized)),
}
"""What lets tokens see each other: replaces `Block.attn`."""
MLPS: dict[str, Part[Change]] = {
    **{name: Part(Options, feedforward(name)) for name in FEEDFORWARDS},
    "experts": Part(ExpertsOptions, experts),
    "none": Part(Options, without_mlp),
}
"""What follows attention: replaces `Block.mlp`."""
RESIDUALS: dict[str, Part[Change]] = {
    "post": Part(Options, residuals.post),
    "none": Part(Options, residuals.without),
    "rezero": Part(Options, residuals.rezero),
    "fixup": Part(Options, residuals.fixup),
}
"""How branches are added to their input: the class of the layers, and whether they have norms."""
NORMS: dict[str, Part[Change]] = {
    "layer": Part(Options, residuals.normed(nn.LayerNorm)),
    "rms": Part(Options, residuals.normed(residuals.RMSNorm)),
}
"""The norms of the branches, also for residuals that have none of their own."""
STACKS: dict[str, Part[Change]] = {
    "shared": Part(Options, stacks.shared),
    "funnel": Part(stacks.FunnelOptions, stacks.funnel),
}
"""What the layers have in common."""
CHANGES = {
    "mixer": MIXERS,
    "mlp": MLPS,
    "residual": RESIDUALS,
    "norm": NORMS,
    "stack": STACKS,
}
"""Kinds whose parts change the layers, in the order in which they do."""
STEMS = {"convolutions": Part(ConvStemOptions, ConvPatchEmbed)}
"""What makes patches of pixels: replaces `patch_embed`."""
KINDS: dict[str, Mapping[str, Part[Any]]] = {"positions": POSITIONS, **CHANGES, "stem": STEMS}
Chosen = tuple[Part[Any], str, Options]
"""A part, its name, and its options."""


def chosen_parts(config: ViTConfig) -> dict[str, Chosen]:
    """Parts of `config.variant`, by kind. UserError for an unknown kind, part or option."""
    chosen: object = config.variant
    if not isinstance(chosen, Mapping):
        raise UserError(
            f"variant={shorten(repr(chosen))} is not an object of parts by kind; write it as "
            "variant='{positions: relative}'"
        )
    for kind in map(str, chosen):
        if kind not in KINDS:
            raise UserError(
                f"variant has no kind {kind!r}{did_you_mean(kind, KINDS) or _of(KINDS)}"
            )
    return {kind: _part(kind, chosen[kind], config) for kind in KINDS if kind in chosen}


def completed(config: ViTConfig) -> ViTConfig:
    """The configuration with all options of its parts. UserError as in `chosen_parts`."""
    written = {}
    for kind, (_, name, options) in chosen_parts(config).items():
        values = {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(options).items()}
        written[kind] = {"name": name, **values}
    return replace(config, variant=written)


def _part(kind: str, section: object, config: ViTConfig) -> Chosen:
    """The part that a section of `variant` names, its name, and its options."""
    table = KINDS[kind]
    values = {"name": section} if isinstance(section, str) else section
    if not isinstance(values, Mapping) or not isinstance(values.get("name"), str):
        raise UserError(
            f"variant.{kind}={shorten(repr(section))} has no name{_of(table)}; a part with options "
            f"is {{name: {next(iter(table))}, ...}}"
        )
    name, values = values["name"], {key: v for key, v in values.items() if key != "name"}
    if name not in table:
        hint = did_you_mean(name, table) or _of(table)
        raise UserError(f"variant.{kind}={shorten(repr(name))} is not known{hint}")
    try:
        options = table[name].options(**known_fields(table[name].options, values))
    except UserError as error:
        raise UserError(f"variant.{kind}, {name}: {error}") from None
    if isinstance(options, Sized) and options.size is None:
        options = replace(options, size=config.grid)
    return table[name], name, options


def _of(table: Mapping[str, object]) -> str:
    return f"; choose {', '.join(table)}"
