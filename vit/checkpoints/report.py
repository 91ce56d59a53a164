"""The account of a load of weights, for people and for programs."""

from dataclasses import dataclass, field
from typing import Any

from vit.console import say


@dataclass(kw_only=True)
class LoadReport:
    """An account of one load. Nothing that differs from the file happens without a word here."""

    source: str
    format: str
    loaded: int = 0
    """Tensors of the model that came from the file."""
    resized: list[str] = field(default_factory=list)
    """Tensors that were changed to fit: positions, input filters."""
    reinitialised: list[str] = field(default_factory=list)
    """Parts with fresh weights: "head", or nothing."""
    head: str = ""
    """Why and with what the head was replaced."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Parts of the file that are not used -> why."""
    classes: list[str] | None = None
    """Class names in the order of the model's logits, where known."""
    preprocess: dict[str, Any] | None = None
    """`Preprocess.to_dict()`, where known."""
    unprepared: str = ""
    """The setting of the file with which images cannot be prepared here."""
    multilabel: bool = False
    """Each output is a class of its own: a sigmoid, no softmax."""
    thresholds: list[float] | None = None
    """Of each class, where `multilabel` and known: a probability above it is a yes."""
    notes: list[str] = field(default_factory=list)
    """Assumptions."""

    def lines(self) -> list[str]:
        """For printing: one line, and one more for everything out of the ordinary."""
        text = [f"loaded {self.loaded} tensors from {self.source} ({self.format})"]
        text += [f"resized: {change}" for change in self.resized]
        if self.head:
            text.append(f"head: {self.head}")
        text += [f"left out: {name}, {why}" for name, why in self.left_out.items()]
        return text + [f"note: {note}" for note in self.notes]


def print_report(report: LoadReport) -> None:
    """Prints the report to stderr, where it does not mix with results."""
    say("\n".join(report.lines()))
