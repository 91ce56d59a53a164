"""Models computed on the CPU by other runtimes: rows of `engines`, for exported files, and of
`runtimes`, for networks in memory."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vit.errors import UserError, did_you_mean
from vit.tables import resolve, rows

if TYPE_CHECKING:  # it imports this module
    from vit.inference.classifier import Classifier

Precision = Literal["float32", "bfloat16"]
Opener = Callable[[Path, Precision, str], "Classifier"]
"""A row of `engines`, under the suffix of the files that it opens: the classifier in a file,
computed by the engine that the word names.

UserError for a file that is missing, damaged or an encoder, without the runtime, and for an engine
or a precision that the runtime or the CPU lacks.
"""
Runtime = Callable[["Classifier", Precision], "Classifier"]
"""A row of `runtimes`, under the word of --engine: the same classifier, computed by the runtime.
UserError as of an Opener."""


def is_export(path: str | Path) -> bool:
    """True for a file name of an exported model."""
    return Path(path).suffix.lower() in rows("engines") and not Path(path).is_dir()


def open_export(
    path: str | Path, precision: Precision = "float32", engine: str = "torch"
) -> "Classifier":
    """The classifier in an exported file. UserError as of an Opener."""
    openers, path = rows("engines"), Path(path).expanduser()
    if path.suffix.lower() not in openers:
        raise UserError(f"{path} is no exported model: its name ends in none of {[*openers]}")
    opener: Opener = resolve(openers[path.suffix.lower()])
    return opener(path, precision, engine)


def computed(classifier: "Classifier", precision: Precision, engine: str) -> "Classifier":
    """The classifier, computed by the runtime that `engine` names. UserError as of an Opener, and
    for an unknown name."""
    runtimes = rows("runtimes")
    if engine not in runtimes:
        known = ["torch", *runtimes]
        raise UserError(f"engine={engine!r} is not one of {known}{did_you_mean(engine, known)}")
    runtime: Runtime = resolve(runtimes[engine])
    return runtime(classifier, precision)
