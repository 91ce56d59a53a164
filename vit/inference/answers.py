"""Answers of a classifier, and fields of predictions. Shapes: b images, k classes, d features."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from torch import Tensor

from vit.errors import AT_LEAST_ONE, Range, UserError, check_range, did_you_mean
from vit.synonyms import Missing
from vit.tables import resolve, rows

if TYPE_CHECKING:
    from vit.inference.classifier import Classifier


class Answer(Protocol):
    """Fields that a prediction gains: a row of the table `answers`, under the option that asks for
    it by a number."""

    allowed: ClassVar[Range]
    """Range of the number."""
    fields: ClassVar[tuple[str, ...]]
    compares_features: bool
    """True if a call needs the features."""
    measured: str | None
    """Name of the measurement that it is made by, for files of answers."""

    def __init__(self, classifier: "Classifier", number: float) -> None:
        """Raises UserError for what the model cannot say."""
        ...

    def __call__(
        self, logits: Tensor, features: Tensor | None, probabilities: Tensor, /
    ) -> Iterable[tuple[Any, ...]]:
        """The fields of each image, from logits `b k`, features `b d` and probabilities `b k`."""
        ...

    @staticmethod
    def line(row: Mapping[str, object], /) -> str | None:
        """The fields of an image as text for people; None for none."""
        ...


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """Contents of predictions."""

    top: int = 5
    """Number of classes."""
    numbers: Mapping[str, float | None] = field(default_factory=dict)
    """Option of a row of `answers` -> its number; None does not ask."""
    answers: Mapping[str, Answer] = field(default_factory=dict)
    """These rows, for one classifier."""

    def __post_init__(self) -> None:
        """Raises UserError for a value out of range, and for an option that is no row."""
        check_range("top", self.top, AT_LEAST_ONE)
        known = rows("answers")
        for name, number in self.numbers.items():
            if name not in known:
                raise UserError(f"predictions have no {name!r}{did_you_mean(name, known)}")
            if number is not None:
                check_range(name, number, resolve(known[name]).allowed)

    def of(self, classifier: "Classifier") -> "PredictOptions":
        """Adds the answers for this classifier. UserError for what its model cannot say."""
        asked = {n: x for n in rows("answers") if (x := self.numbers.get(n)) is not None}
        answers = {n: resolve(rows("answers")[n])(classifier, x) for n, x in asked.items()}
        return replace(self, answers=answers)

    @property
    def compares_features(self) -> bool:
        """True if an answer needs the features."""
        return any(answer.compares_features for answer in self.answers.values())


class Prediction(SimpleNamespace):
    """The most probable classes of one image, best first, and the fields of the answers that are
    options for; those of others are None."""

    classes: list[str]
    probabilities: list[float]
    labels: list[str] | None = None
    """The classes above their thresholds, most probable first; None for one label per image."""

    def __getitem__(self, name: str) -> object:  # prediction["label"], as in transformers
        return getattr(self, name)

    @property
    def label(self) -> str:
        """The most probable class."""
        return self.classes[0]

    @property
    def probability(self) -> float:
        """Probability of `label`."""
        return self.probabilities[0]

    @property
    def top(self) -> list[tuple[str, float]]:
        """Classes and their probabilities, best first."""
        return list(zip(self.classes, self.probabilities, strict=True))

    def __str__(self) -> str:
        return ", ".join(f"{name} {share:.1%}" for name, share in self.top)

    def row(self, image: str) -> dict[str, Any]:
        """JSON types: `image`, a path; `top`, objects with `class` and `probability`; and the other
        fields that are not None."""
        fields = {name: value for name, value in vars(self).items() if value is not None}
        pairs = zip(fields.pop("classes"), map(rounded, fields.pop("probabilities")), strict=True)
        row: dict[str, object] = {"image": os.fsencode(image).decode("utf-8", "backslashreplace")}
        for name, value in fields.items():
            row[name] = rounded(value) if isinstance(value, float) else value
        return row | {"top": [{"class": name, "probability": share} for name, share in pairs]}

    def __getattr__(self, name: str) -> None:
        if not any(name in answer.fields for answer in map(resolve, rows("answers").values())):
            raise Missing("Prediction", name)


def rounded(probability: float) -> float:
    """Rounds to six digits."""
    return float(f"{probability:.6g}")
