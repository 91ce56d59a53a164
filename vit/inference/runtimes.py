"""Models that another runtime computes on the CPU: files of `vit export`, and networks in memory.

The runtimes are rows of the tables `engines` and `runtimes`.

Shapes: b batch, c channels, h w pixels.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import torch
from torch import Tensor

from vit.errors import UserError, did_you_mean
from vit.models.zoo import Model
from vit.preprocessing import Preprocess
from vit.tables import resolve, rows

if TYPE_CHECKING:  # it imports this module
    from vit.inference.classifier import Classifier

Precision = Literal["float32", "bfloat16"]


class Engine(Protocol):
    """A model in a runtime."""

    @property
    def name(self) -> str:
        """Runtime, its version, and the precision."""
        ...

    @property
    def identity(self) -> str:
        """A digest of its weights."""
        ...

    def tensors(self, images: Tensor, /) -> dict[str, Tensor]:
        """`logits` and `features` of images `b c h w` that the preprocessing has cut."""
        ...

    def check_device(self, device: str | torch.device, /) -> None:
        """UserError for another device than the CPU."""
        ...


Opener = Callable[[Path, Precision, str], "Classifier"]
"""A row of `engines`, under the suffix of the files that it opens: the classifier in a file,
computed by the engine that the word names.

UserError for a file that is missing, damaged or an encoder, without the runtime, and for an engine
or a precision that the runtime or the CPU lacks.
"""
Runtime = Callable[[Model, Preprocess, Precision], Engine]
"""A row of `runtimes`, under the word of --engine: a model in memory. UserError as of an Opener."""


def is_export(path: str | Path) -> bool:
    """True for a file name of an exported model."""
    return Path(path).suffix.lower() in rows("engines") and not Path(path).is_dir()


def open_export(
    path: str | Path, precision: Precision = "float32", engine: str = "torch"
) -> "Classifier":
    """The classifier in an exported file. UserError as of an Opener."""
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
