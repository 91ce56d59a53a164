"""Formats that weights are read from and written in: rows of the table `formats`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from vit.errors import UserError, some_of
from vit.models.zoo import ModelConfig
from vit.tables import made, rows
from vit.weights.weight_file import WeightFile


class MissingFact(UserError):
    """A fact that the file does not record, and that an option can supply, such as num_heads."""


LazyTensors = dict[str, Callable[[], Tensor]]
"""Our name -> a function that reads the tensor; nothing is read before everything has a place."""


@dataclass(kw_only=True)
class Recognised:
    """A file as its format understands it. No tensor has been read yet."""

    format: str
    """For people: "timm", "Google npz", ..."""
    config: ModelConfig
    tensors: LazyTensors
    used: set[str]
    """Keys of the file that `tensors` reads."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Keys that are knowingly not used -> why."""
    unexpected: list[str] = field(default_factory=list)
    """Keys that no rule knows: an error when the model is built."""
    classes: list[str] | None = None
    preprocess: dict[str, Any] | None = None
    unprepared: str = ""
    """The setting with which images cannot be prepared here, where `preprocess` is None for it."""
    notes: list[str] = field(default_factory=list)
    """Assumptions, for the report."""
    average: bool = False
    """The weights are the average of a training's."""
    check: Callable[[], None] = lambda: None
    """Run before the first tensor is used; UserError if the file is damaged."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Of our own files: recipe, metrics, source."""


@dataclass(frozen=True)
class NativeInfo:
    """The description that is saved with a model's weights."""

    classes: list[str] | None = None
    """In the order of the logits."""
    preprocess: dict[str, Any] | None = None
    """`Preprocess.to_dict()`."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Recipe, metrics, source: plain JSON types. Of local paths only the last part is saved."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """A model in another format, complete in memory."""

    save: Callable[[Path], list[Path]]
    """Writes the file or directory; each file appears whole or not at all. Returns their paths."""
    notes: list[str] = field(default_factory=list)
    """Where the other library's arithmetic differs from the model's."""
    multilabel: bool = False
    """The format records that an image may have several labels."""


class Format(ABC):
    """Names and layout of the tensors in a project's files, and its descriptions beside them."""

    suffix: ClassVar[str] = ""
    """Of the file that `write` makes; "" for a directory."""

    @abstractmethod
    def matches(self, file: WeightFile) -> bool:
        """Whether the names of the tensors are this format's, or a description says so."""

    @abstractmethod
    def recognise(self, file: WeightFile) -> Recognised:
        """A file that matches as one of our models. UserError where it would give other logits."""

    @abstractmethod
    def write(self, config: ModelConfig, state: Mapping[str, Tensor], info: NativeInfo) -> Export:
        """A model in this format. UserError where no model of the project gives the same logits."""

    def refuse(self, file: WeightFile) -> UserError | None:
        """The error for a file that matches no format, where the project is known to make it."""
        return None


def formats() -> Iterator[Format]:
    """Those of the table in its order, imported one by one."""
    return (made(row, Format) for row in rows("formats").values())


def recognise(file: WeightFile) -> Recognised:
    """The file as its format understands it."""
    try:
        for format_ in formats():
            if format_.matches(file):
                return format_.recognise(file)
        raise _unknown(file)
    except UserError as error:
        if type(error) is UserError and str(file.path.parent) not in str(error):
            raise UserError(f"{file.path}: {error}") from error
        raise
    except KeyError as error:
        missing = f"{file.path} is incomplete, or of a family that is not read: no {error.args[0]}"
        raise UserError(missing) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if not file.config and not file.preprocessor:
            raise
        # JSON of other libraries is edited by hand and written by other versions.
        raise UserError(
            f"{file.path.parent}: config.json or preprocessor_config.json has a value of a wrong "
            f"kind ({type(error).__name__}: {error})"
        ) from error


def _unknown(file: WeightFile) -> UserError:
    """For keys that no format has; a format may know the model."""
    errors = (format_.refuse(file) for format_ in formats())
    nothing = UserError(
        f"{file.path} holds no model that is known here; it has {len(file.shapes)} tensors such as "
        f"{some_of(sorted(file.shapes), 4, ' ')}"
    )
    return next(filter(None, errors), nothing)
