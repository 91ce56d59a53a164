"""Formats that weights are read from: rows of the table `formats`."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vit.errors import UserError, some_of
from vit.models.fields import JsonObject
from vit.models.zoo import ModelConfig
from vit.tables import made, rows
from vit.weights.report import LoadReport
from vit.weights.weight_file import WeightFile


class MissingFact(UserError):
    """A fact that the file does not record, and that an option can supply, such as num_heads."""


LazyTensors = dict[str, Callable[[], Tensor]]
"""Our name -> a function that reads the tensor; nothing is read before everything has a place."""


@dataclass(kw_only=True)
class Recognised(LoadReport):
    """A file as its format understands it. No tensor has been read yet.

    A load adapts `tensors` to the model, reads them, and becomes the report of what it did.
    """

    config: ModelConfig
    tensors: LazyTensors
    used: set[str]
    """Keys of the file, as in `file.shapes`, that `tensors` reads."""
    unexpected: list[str] = field(default_factory=list[str])
    """Keys that no rule knows: an error when the model is built."""
    average: bool = False
    """The weights are the average of a training's."""
    check: Callable[[], None] | None = None
    """Run before the first tensor is used; UserError if the file is damaged."""
    extra: JsonObject = field(default_factory=dict[str, Any])
    """Recipe, metrics and source of our own files."""


class Format(ABC):
    """Names and layout of the tensors in a project's files, and its descriptions beside them."""

    @abstractmethod
    def matches(self, file: WeightFile) -> bool:
        """True if the names of the tensors are this format's, or a description says so.

        Names in `file.shapes` lack what all keys begin with, `file.prefix`.
        """

    @abstractmethod
    def recognise(self, file: WeightFile) -> Recognised:
        """A file that matches as one of our models. UserError where it would give other logits."""

    def refuse(self, file: WeightFile) -> UserError | None:
        """The error for a file that matches no format, where the project is known to make it."""
        return None


def recognise(file: WeightFile) -> Recognised:
    """The file as the first format of the table that matches understands it.

    UserError for a file that no format matches; a format may know why.
    """
    try:
        refusals: list[UserError] = []
        for row in rows("formats").values():
            format_ = made(row, Format)
            if format_.matches(file):
                return format_.recognise(file)
            if (error := format_.refuse(file)) is not None:
                refusals.append(error)
        if refusals:
            raise refusals[0]
        raise UserError(
            f"{file.path} holds no model that is known here; it has {len(file.shapes)} tensors "
            f"such as {some_of(sorted(file.shapes), 4, ' ')}"
        )
    except UserError as error:
        if type(error) is UserError and str(file.path.parent) not in str(error):
            raise UserError(f"{file.path}: {error}") from error
        raise
