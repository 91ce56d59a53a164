"""Shallow versions of every named model, which are fast to count."""

from vit.extensions.compute.candidate import Candidate, from_config
from vit.models.config import ResNetConfig
from vit.models.zoo import ZOO, ModelConfig, config_from_dict


def shallow(config: ModelConfig) -> ModelConfig:
    """One encoder layer; one residual unit per stage, two in the second stage."""
    values = config.to_dict()
    if isinstance(config, ResNetConfig):
        values["depths"] = [1, 2, 1, 1]
    else:
        values["depth"] = 1
        if config.stem_depths:
            values["stem_depths"] = [1, 2, 1, 1][: len(config.stem_depths)]
    return config_from_dict(values)


def shallow_candidate(
    name: str, size: tuple[int, int] | None = None, **changes: object
) -> Candidate:
    """A shallow model by name, with fields of its configuration changed."""
    values = {**shallow(ZOO[name].config).to_dict(), **changes}
    return from_config(name, config_from_dict(values), size)
