"""Facts that a model has from its data."""

from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(kw_only=True)
class Labels:
    """The classes of the data; travels with the model."""

    names: list[str] | None = None
    """Class names in the order of the outputs."""
    counts: list[int] | None = None
    """Training images per class."""
    multilabel: bool = False
    """An image may have several labels."""


@dataclass(kw_only=True)
class DataFacts:
    """Inputs and outputs of a model."""

    num_classes: int = 1000
    """Outputs of the head, if it has one."""
    image_size: int | tuple[int, int] = 224
    """Pixels, one side or (height, width)."""
    channels: int | None = None
    """Of images that are not RGB; None for those of the weights or the architecture."""
    labels: Labels = field(default_factory=Labels)
    preprocess: dict[str, Any] | None = None
    """Evaluation preprocessing in plain types, stored with the model. Without its mean and std,
    masked patch prediction takes images to be in [0, 1]."""

    @classmethod
    def of(cls, data: Any) -> Self:
        """Facts of a data module."""
        facts = cls(
            image_size=data.image_size, channels=data.channels, preprocess=data.preprocess.to_dict()
        )
        if data.labelled:
            # Held-out images come without a train split; an evaluation does not weigh classes.
            counts = data.class_counts if len(data.splits.train) else [1] * data.num_classes
            facts.num_classes = data.num_classes
            facts.labels = Labels(names=data.classes, counts=counts, multilabel=data.multilabel)
        return facts
