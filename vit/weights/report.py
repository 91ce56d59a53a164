"""The account of a load of weights."""

from dataclasses import dataclass, field

from vit.console import say
from vit.models.fields import JsonObject


@dataclass(kw_only=True)
class LoadReport:
    """Differences between a file and the model that it was loaded into, and facts of the file."""

    format: str
    """Name for people, such as "timm" or "Google npz"."""
    source: str = ""
    loaded: int = 0
    """Tensors of the model that came from the file."""
    resized: list[str] = field(default_factory=list[str])
    """Tensors that were changed to fit: positions, input filters."""
    reinitialised: list[str] = field(default_factory=list[str])
    """Parts with fresh weights, all or some: "head", or nothing."""
    known_rows: list[int] = field(default_factory=list[int])
    """Rows of a partly fresh head that came from the file, by the names of their classes."""
    head: str = ""
    """Source of the head's rows: kept by name or number, or new."""
    left_out: dict[str, str] = field(default_factory=dict[str, str])
    """Parts of the file that are not used -> reason."""
    classes: list[str] | None = None
    """Class names in the order of the logits, if known."""
    preprocess: JsonObject | None = None
    """`Preprocess.to_dict()`, if known."""
    unprepared: str = ""
    """The setting of the file with which images cannot be prepared here."""
    multilabel: bool = False
    """Each output is a sigmoid; no softmax."""
    unanswerable: str = ""
    """Why the outputs tell no classes apart, if they do not."""
    thresholds: list[float] | None = None
    """Decision threshold of each class, if `multilabel` and known."""
    tree: bool = False
    """The classes are paths in a tree."""
    temperature: float | None = None
    """Softmax temperature fitted on held-out images, or None."""
    notes: list[str] = field(default_factory=list[str])
    """Assumptions."""

    def lines(self) -> list[str]:
        """Lines to print: one for the load, and one for each difference and note."""
        text = [f"loaded {self.loaded} tensors from {self.source} ({self.format})"]
        text += [f"resized: {change}" for change in self.resized]
        if self.head:
            text.append(f"head: {self.head}")
        text += [f"left out: {name}, {why}" for name, why in self.left_out.items()]
        return text + [f"note: {note}" for note in self.notes]


def print_report(report: LoadReport) -> None:
    """Prints to stderr."""
    say("\n".join(report.lines()))
