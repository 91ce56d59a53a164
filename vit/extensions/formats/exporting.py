"""Writing in the formats of others: a directory, the refusal of other models, and notes."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from vit.confidence import carried_over
from vit.errors import UserError, shorten
from vit.models.config import ResNetConfig
from vit.models.fields import JsonObject
from vit.models.zoo import ModelConfig
from vit.weights.adapt import HEAD
from vit.weights.formats import Format
from vit.weights.sealed import write_safetensors
from vit.writing import atomic, write_json


@dataclass(frozen=True)
class NativeInfo:
    """The description of a model that is written."""

    classes: list[str] | None = None
    """Class names in the order of the logits."""
    preprocess: JsonObject | None = None
    """`Preprocess.to_dict()`."""
    extra: JsonObject = field(default_factory=dict[str, Any])
    """Recipe, metrics, source: plain JSON types."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """A model in another format, complete in memory."""

    save: Callable[[Path], list[Path]]
    """Writes the file or directory; each file appears whole or not at all. Returns their paths."""
    notes: list[str] = field(default_factory=list)
    """Where the other library's arithmetic differs from the model's."""
    multilabel: bool = False
    """The format records that an image may have several labels."""


class Writable(Format):
    """A format that models are written in, too."""

    suffix: ClassVar[str] = ""
    """Suffix of the file that `write` makes; "" for a directory."""

    @abstractmethod
    def write(self, config: ModelConfig, state: Mapping[str, Tensor], info: NativeInfo) -> Export:
        """A model in this format. UserError where no model of the project gives the same logits."""


def without_temperature(
    state: Mapping[str, Tensor], info: NativeInfo
) -> tuple[dict[str, Tensor], NativeInfo]:
    """The same probabilities and labels from a head that is divided by the temperature."""
    temperature, extra = info.extra["temperature"], {**info.extra}
    del extra["temperature"]
    if "thresholds" in extra:
        extra["thresholds"] = carried_over(extra["thresholds"], temperature)
    heads = {name: t / temperature for name, t in state.items() if name.startswith(HEAD)}
    return {**state, **heads}, replace(info, extra=extra)


def carried(extra: JsonObject) -> JsonObject:
    """Fields that config.json has in every format: the licences."""
    return {name: value for name, value in extra.items() if name == "licences"}


def directory(tensors: Mapping[str, Tensor], files: Mapping[str, dict[str, object]]) -> Any:
    """`save` of a directory with model.safetensors and JSON files by name."""

    def save(target: Path) -> list[Path]:
        with atomic(target / "model.safetensors") as temporary:
            write_safetensors(temporary, tensors, {"format": "pt"})
        for name, values in files.items():
            write_json(target / name, values)
        return [target / name for name in ("model.safetensors", *files)]

    return save


# Fields that every format has, or that change no logit outside training.
_EVERYWHERE = frozenset(
    "image_size patch_size in_channels num_classes width depth mlp_dim num_heads layer_norm_eps "
    "pos_resize dropout drop_path drop_path_uniform ws_mode depths width_factor".split()
)
ANY = object()
"""In place of a list of values: every one."""


def check_expressed(project: str, config: ModelConfig, remedy: str, **expressed: Any) -> None:
    """UserError for a feature that a project's model does not have.

    `project` begins the sentence, such as "Google's ViT"; `remedy` ends it. `expressed`: field ->
    the values that the project's model can have, or ANY; other fields must have their default.
    """
    default = type(config)()
    missing = []
    for name in (entry.name for entry in fields(config)):
        value = config.size if name == "image_size" else getattr(config, name)
        values = expressed.get(name, ANY if name in _EVERYWHERE else (getattr(default, name),))
        if values is not ANY and value not in values:
            missing.append(f"{name}={shorten(repr(value))}")
    if missing:
        raise UserError(f"{project} has no {', '.join(missing)}; {remedy}")


def arithmetic_notes(project: str, config: ModelConfig, **expected: object) -> list[str]:
    """Notes on values of a project's models that differ from this model's."""
    has_convolutions = isinstance(config, ResNetConfig) or config.stem_depths is not None
    notes = []
    for name, theirs in expected.items():
        ours = getattr(config, name, theirs)
        if ours != theirs and (name != "ws_mode" or has_convolutions):
            notes.append(f"{project} computes with {name}={theirs!r}, this model with {ours!r}")
    return notes
