"""The account of a load of weights."""

from dataclasses import dataclass, field
from typing import Any

from vit.console import note, say
from vit.models.zoo import ModelConfig
from vit.preprocessing import Preprocess


@dataclass(kw_only=True)
class LoadReport:
    """Every difference between a file and the model that it was loaded into."""

    source: str
    format: str
    loaded: int = 0
    """Tensors of the model that came from the file."""
    resized: list[str] = field(default_factory=list)
    """Tensors that were changed to fit: positions, input filters."""
    reinitialised: list[str] = field(default_factory=list)
    """Parts with fresh weights, all or some: "head", or nothing."""
    kept: list[int] = field(default_factory=list)
    """Of a head with fresh rows, those that came from the file, by the names of their classes."""
    head: str = ""
    """Whose rows it has: kept by name or number, or new."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Parts of the file that are not used -> reason."""
    classes: list[str] | None = None
    """In the order of the logits, if known."""
    preprocess: dict[str, Any] | None = None
    """`Preprocess.to_dict()`, if known."""
    unprepared: str = ""
    """The setting of the file with which images cannot be prepared here."""
    multilabel: bool = False
    """Each output is a sigmoid; no softmax."""
    unanswerable: str = ""
    """Why the outputs tell no classes apart, if they do not."""
    thresholds: list[float] | None = None
    """Of each class, if `multilabel` and known: a probability above it is a yes."""
    tree: bool = False
    """The classes are paths in a tree."""
    temperature: float | None = None
    """By which the logits are divided for probabilities, if one was fitted to them."""
    notes: list[str] = field(default_factory=list)
    """Assumptions."""

    def lines(self) -> list[str]:
        """One line, and one more for each difference and note."""
        text = [f"loaded {self.loaded} tensors from {self.source} ({self.format})"]
        text += [f"resized: {change}" for change in self.resized]
        if self.head:
            text.append(f"head: {self.head}")
        text += [f"left out: {name}, {why}" for name, why in self.left_out.items()]
        return text + [f"note: {note}" for note in self.notes]


def recorded_preprocess(report: LoadReport, config: ModelConfig) -> Preprocess:
    """The preprocessing that the file records; with a note, the default if it records none."""
    if report.preprocess is not None:
        return Preprocess.from_dict(report.preprocess)
    note("the file does not say how images are prepared: [-1, 1]")
    return Preprocess.for_model(config.size, config.in_channels)


def print_report(report: LoadReport) -> None:
    """Prints to stderr."""
    say("\n".join(report.lines()))
