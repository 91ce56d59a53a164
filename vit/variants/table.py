"""The parts by kind and name, and the model that `ViTConfig.variant` describes.

`variant` has a name and options for a kind: {"positions": {"name": "relative", "size": 4}}.
To add a part: a row of the kind's table, and its entry in tests/variants/test_contract.py.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, NamedTuple, Protocol

from vit.errors import UserError, did_you_mean, shorten
from vit.models.config import ViTConfig
from vit.models.fields import known_fields
from vit.models.vision_transformer import VisionTransformer
from vit.variants import additive, relative
from vit.variants.additive import FixedOptions, LearnedOptions, Nothing, Sized, added
from vit.variants.relative import biased


class Positions(Protocol):
    """Builds positions: what the stem of `VisionTransformer` adds, and the layers, if changed."""

    def __call__(self, options: Any, config: ViTConfig, /) -> additive.Built: ...


class Part(NamedTuple):
    """A mechanism."""

    options: type
    """A frozen dataclass, whose constructor checks its fields."""
    build: Positions


POSITIONS: dict[str, Part] = {
    "none": Part(Nothing, additive.unordered),
    "learned": Part(LearnedOptions, added(additive.Learned)),
    "learned2d": Part(LearnedOptions, added(additive.Learned2d)),
    "sinusoids": Part(FixedOptions, added(additive.Sinusoids)),
    "sincos2d": Part(FixedOptions, added(additive.Sincos2d)),
    "relative": Part(Sized, biased(relative.Relative)),
    "shaw": Part(relative.ShawOptions, biased(relative.Shaw, relative.ShawAttention)),
    "bias_table": Part(Sized, biased(relative.BiasTable)),
    "alibi": Part(Nothing, biased(relative.Alibi)),
}
KINDS = {"positions": POSITIONS}


def build(config: ViTConfig) -> VisionTransformer:
    """The model with fresh weights; its configuration has all options of its parts.

    UserError for an unknown kind, part or option.
    """
    chosen = _mapping("variant", config.variant)
    for kind in map(str, chosen):
        if kind not in KINDS:
            raise UserError(
                f"variant has no kind {kind!r}{did_you_mean(kind, KINDS) or _of(KINDS)}"
            )
    part, name, options = _part("positions", chosen["positions"])
    if getattr(options, "size", ()) is None:
        options = replace(options, size=config.grid)
    table, layers = part.build(options, config)
    values = {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(options).items()}
    config = replace(config, variant={"positions": {"name": name, **values}})
    return VisionTransformer(config, positions=table, layers=layers)


def _part(kind: str, given: Any) -> tuple[Part, str, Any]:
    """The part that a section of `variant` names, its name, and its options."""
    values, table = _mapping(f"variant.{kind}", given), KINDS[kind]
    name = values.pop("name", None)
    if not isinstance(name, str) or name not in table:
        hint = did_you_mean(str(name or ""), table) or _of(table)
        raise UserError(f"variant.{kind}.name={shorten(repr(name))} is not known{hint}")
    try:
        return table[name], name, table[name].options(**known_fields(table[name].options, values))
    except UserError as error:
        raise UserError(f"variant.{kind}, {name}: {error}") from None


def _mapping(what: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise UserError(
            f"{what}={shorten(repr(given))} is not an object of options; write it as "
            "variant.positions='{name: relative}'"
        )
    return dict(given)


def _of(table: Mapping[str, Any]) -> str:
    return f"; choose {', '.join(table)}"
