"""Named models, by the table in zoo.json: sizes, parameter counts and their sources."""

import json
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from vit.errors import UserError, did_you_mean, shorten, some_of
from vit.models.config import ResNetConfig, ViTConfig
from vit.models.fields import is_object, known_fields
from vit.synonyms import keywords
from vit.tables import resolve, rows

if TYPE_CHECKING:
    from vit.models.resnet import ResNet
    from vit.models.vision_transformer import VisionTransformer

ModelConfig: TypeAlias = ViTConfig | ResNetConfig
Model: TypeAlias = "VisionTransformer | ResNet"


class Builder(Protocol):
    """Builds a Vision Transformer that a field of its configuration changes: a row of the table
    `builders`, under the field's name. Rows are asked in order."""

    def __call__(
        self, config: ViTConfig, model: "VisionTransformer | None", /
    ) -> "VisionTransformer":
        """A model with fresh weights, or that of the rows before, changed. UserError for a value
        of the field that it cannot build."""
        ...


@dataclass(frozen=True)
class Entry:
    """A named architecture."""

    config: ModelConfig
    num_params: int
    """Parameter count with 1000 classes at 224 pixels, without a tanh layer before the head."""
    source: str
    """Publication of the sizes."""


def config_from_dict(values: object) -> ModelConfig:
    """Inverse of a configuration's `to_dict`; "architecture" selects the class."""
    kinds: dict[str, type[ModelConfig]] = {"vit": ViTConfig, "resnet": ResNetConfig}
    if not is_object(values):
        raise UserError(f"model={shorten(values)} is not an object of fields")
    architecture = values.get("architecture", "vit")
    if not isinstance(architecture, str) or architecture not in kinds:
        raise UserError(f"architecture={shorten(repr(architecture))} is not one of {[*kinds]}")
    kind = kinds[architecture]
    return kind(**known_fields(kind, values))


def _read_zoo() -> dict[str, Entry]:
    table = json.loads(Path(__file__).with_name("zoo.json").read_text(encoding="utf-8"))
    zoo: dict[str, Entry] = {}
    for name, row in table["models"].items():
        values = {**table["families"].get(row.pop("family", ""), {}), **row}
        num_params, source = values.pop("num_params"), values.pop("source")
        if size := values.pop("size", None):
            sizes = ("width", "depth", "mlp_dim", "num_heads")
            values |= zip(sizes, table["sizes"][size], strict=True)
        zoo[name] = Entry(config_from_dict(values), num_params, source)
    return zoo


ZOO = _read_zoo()


@keywords
def list_models(pattern: str = "*") -> list[str]:
    """Names of the models that match a shell-style pattern such as "vit_b*"."""
    return [name for name in ZOO if fnmatchcase(name, pattern)]


def _key(name: str) -> str:
    """Letters and digits of a name, with the paper's Table 6 spellings unified."""
    text = re.sub(r"[^a-z0-9]", "", name.lower()).replace("resnet", "r")
    text = re.sub(r"^(r\d+)x1(?=vit)", r"\1", text)  # R50x1+ViT-B/16
    return re.sub(r"^(?=r\d+x\d+$)", "bit", text)  # ResNet50x1


def canonical_name(name: str) -> str:
    """'ViT-B/16' and 'vit_b_16' are vit_b16, 'R50+ViT-B/16' r50_vit_b16, 'BiT-R50x1' bit_r50x1.

    UserError lists the nearest known names.
    """
    by_key = {_key(entry): entry for entry in ZOO}
    if _key(name) not in by_key:
        known = f"; known: {some_of(ZOO, 8)} (`vit models` lists them)"
        hint = did_you_mean(name.lower(), ZOO) or known
        raise UserError(f"unknown model {shorten(name)!r}{hint}")
    return by_key[_key(name)]


def model_config(name: str, **overrides: object) -> ModelConfig:
    """The configuration of a named model with other values in some fields."""
    config = ZOO[canonical_name(name)].config
    return config_from_dict({**config.to_dict(), **overrides})


def build_model(config: ModelConfig) -> Model:
    """A model with fresh weights."""
    # Imported here, so that `vit models` reads the table without torch.
    from vit.models.resnet import ResNet
    from vit.models.vision_transformer import VisionTransformer

    if isinstance(config, ResNetConfig):
        return ResNet(config)
    model, plain = None, vars(ViTConfig())
    for field, row in rows("builders").items():
        if vars(config).get(field, plain.get(field)) != plain.get(field):
            build: Builder = resolve(row)
            model = build(config, model)
    return VisionTransformer(config) if model is None else model
