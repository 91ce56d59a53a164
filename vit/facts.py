"""Facts about the images and labels that a network is built for."""

from dataclasses import dataclass

from vit.preprocessing import Preprocess


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about the images and labels that a network learns, as in `ImageData.facts`."""

    classes: list[str] | None = None
    """Class names in the order of the outputs."""
    counts: list[int] | None = None
    """Training images of each class, for balanced weights."""
    multilabel: bool = False
    """An image may have several labels."""
    tree: bool = False
    """The classes are paths in a tree; recorded with the model."""
    image_size: int | tuple[int, int] | None = None
    """Pixels: one side, or (height, width). Default: the size of the weights or the model."""
    channels: int | None = None
    """Number of channels of images that are not RGB."""
    preprocess: Preprocess | None = None
    """Evaluation preprocessing, stored with the model."""
    num_classes: int | None = None
    """Number of outputs. Default: that of `classes`, else of the weights, else 1000."""
