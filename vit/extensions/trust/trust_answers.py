"""Sets, "none of these", and nodes of a tree in predictions: rows of the table `answers`."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from vit.confidence import cut
from vit.errors import BELOW_ONE, Range, UserError
from vit.extensions.trust.trust import Trust
from vit.inference.classifier import Classifier
from vit.label_tree import LabelTree

INSIDE_ONE = Range("in (0, 1)", lambda value: 0 < value < 1)


class Coverage:
    """A set of classes, which holds the true one in at least this share of images."""

    allowed = INSIDE_ONE
    fields = ("set",)
    compares_features = False
    measured = None

    def __init__(self, classifier: Classifier, number: float) -> None:
        if classifier.multilabel:
            raise UserError("coverage is for models with one label per image; leave it out")
        self._marked, self._share = classifier.marked, number
        self._trust = _measured(classifier, "scores", "coverage", number)

    def __call__(
        self, logits: Tensor, features: Tensor | None, probabilities: Tensor
    ) -> Iterable[tuple[list[str]]]:
        return zip(self._marked(probabilities, self._trust.sets(logits, self._share)), strict=True)

    @staticmethod
    def line(row: Mapping[str, Any]) -> str | None:
        return f"set: {', '.join(row['set'])}"


class Unknown:
    """True for an image of none of the classes: it is less like them than this share of the
    validation images."""

    allowed = INSIDE_ONE
    fields = ("unknown",)

    def __init__(self, classifier: Classifier, number: float) -> None:
        self._multilabel, self._share = classifier.multilabel, number
        self._trust = _measured(
            classifier, "usual", "unknown", number, ", or measure it: vit trust RUN --data D"
        )
        self.compares_features = self._trust.references is not None
        self.measured = self._trust.score

    def __call__(
        self, logits: Tensor, features: Tensor | None, probabilities: Tensor
    ) -> Iterable[tuple[bool]]:
        outside = self._trust.outside(logits, features, self._share, multilabel=self._multilabel)
        return zip(outside.tolist(), strict=True)

    @staticmethod
    def line(row: Mapping[str, Any]) -> str | None:
        return "none of these; the most alike:" if row["unknown"] else None


class Confidence:
    """The deepest node of a tree of classes whose probability is above this; "" if there is none.

    `answer_probability`: the sum of those of the classes below it; 1 for "".
    """

    allowed = BELOW_ONE
    fields = ("answer", "answer_probability")
    compares_features = False
    measured = None

    def __init__(self, classifier: Classifier, number: float) -> None:
        if not classifier.tree:
            raise UserError(
                f"confidence={number:g} needs a model whose classes are a tree, of a run "
                "with --data.labels tree; leave it out"
            )
        self._tree, self._confidence = LabelTree(classifier.classes), number

    def __call__(
        self, logits: Tensor, features: Tensor | None, probabilities: Tensor
    ) -> Iterable[tuple[str, float]]:
        return deepest(self._tree, probabilities, self._confidence)

    @staticmethod
    def line(row: Mapping[str, Any]) -> str | None:
        if not row["answer"]:
            return "answer: none"
        return f"answer: {row['answer']} ({row['answer_probability']:.1%})"


def deepest(
    tree: LabelTree, probabilities: Tensor, confidence: float
) -> Iterator[tuple[str, float]]:
    """Deepest node above `confidence` of each row `k`, and its probability; ("", 1) if none is, for
    the root."""
    values, places = tree.best(probabilities)
    levels = ((values > confidence).sum(1) - 1).tolist()  # they fall from level to level
    for value, place, level in zip(values, places, levels, strict=True):
        node = tree.nodes[level][int(place[level])]
        yield (node, float(value[level])) if level >= 0 else ("", 1.0)


def _measured(
    classifier: Classifier, field: str, name: str, share: float, remedy: str = ""
) -> Trust:
    """Measurement beside the weights. UserError without it, and for too few images."""
    trust = None if classifier.folder is None else Trust.read(classifier.folder)
    values = None if trust is None else getattr(trust, field)
    if trust is None or values is None:
        raise UserError(
            f"{name}={share:g} needs held-out images that were measured at the end of a "
            "run, in trust.safetensors beside its weights; exported files do not carry it: "
            f"give a run that had a val (--data.splits.val_fraction 0.1){remedy}"
        )
    cut(torch.atleast_2d(values)[0], share, name)
    return trust
