"""Models that another runtime computes on the CPU: files of `vit export`, and networks in memory.

The runtimes are rows of the tables `engines` and `runtimes`.

Shapes: b batch, c channels, h w pixels.
"""

from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor

from vit.errors import UserError, did_you_mean
from vit.models.zoo import Model
from vit.preprocessing import Preprocess
from vit.tables import resolve, rows

Precision = Literal["float32", "bfloat16"]


class Description(Protocol):
    """What an exported file says of its model; the fields are those of a Classifier."""

    @property
    def classes(self) -> list[str] | None:
        """In the order of the logits; None for an encoder."""
        ...

    @property
    def preprocess(self) -> Preprocess:
        """Without the normalisation, which the file does itself, this is left to the caller."""
        ...

    @property
    def multilabel(self) -> bool: ...

    @property
    def thresholds(self) -> list[float] | None: ...

    @property
    def temperature(self) -> float: ...

    @property
    def tree(self) -> bool: ...


class Engine(Protocol):
    """A model in a runtime."""

    @property
    def name(self) -> str:
        """Runtime, its version, and the precision."""
        ...

    @property
    def description(self) -> Description: ...

    @property
    def identity(self) -> str:
        """What tells its weights from others."""
        ...

    def tensors(self, images: Tensor, /) -> dict[str, Tensor]:
        """`logits` and `features` of images `b c h w` that the preprocessing has cut."""
        ...

    def check_device(self, device: str | torch.device, /) -> None:
        """UserError for another device than the CPU."""
        ...


class Opener(Protocol):
    """A row of `engines`, under the suffix of the files that it opens."""

    def __call__(self, path: Path, precision: Precision, engine: str, /) -> Engine:
        """The model in a file; `engine`: the word of --engine.

        UserError for a file that is missing or damaged, without the runtime, and for an engine or a
        precision that the runtime or the CPU lacks.
        """
        ...


class Runtime(Protocol):
    """A row of `runtimes`, under the word of --engine."""

    def __call__(self, model: Model, preprocess: Preprocess, precision: Precision, /) -> Engine:
        """The model in memory. UserError as of an Opener."""
        ...


def is_export(path: str | Path) -> bool:
    """True for a file name of an exported model."""
    return Path(path).suffix.lower() in rows("engines") and not Path(path).is_dir()


def open_engine(
    path: str | Path, precision: Precision = "float32", engine: str = "torch"
) -> Engine:
    """The model in an exported file. UserError as of an Opener."""
    openers, path = rows("engines"), Path(path)
    if path.suffix.lower() not in openers:
        raise UserError(f"{path} is no exported model: its name ends in none of {[*openers]}")
    opener: Opener = resolve(openers[path.suffix.lower()])
    return opener(path, precision, engine)


def computed(model: Model, preprocess: Preprocess, precision: Precision, engine: str) -> Engine:
    """The model in memory, computed by the runtime that `engine` names. UserError as of an Opener,
    and for an unknown name."""
    runtimes = rows("runtimes")
    if engine not in runtimes:
        known = ["torch", *runtimes]
        raise UserError(f"engine={engine!r} is not one of {known}{did_you_mean(engine, known)}")
    runtime: Runtime = resolve(runtimes[engine])
    return runtime(model, preprocess, precision)
