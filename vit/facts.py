"""Facts of the images and labels that a network is built for."""

from dataclasses import dataclass

from vit.preprocessing import Preprocess


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts of the images and labels that a network learns; `ImageData.facts` has them."""

    classes: list[str] | None = None
    """Class names in the order of the outputs."""
    counts: list[int] | None = None
    """Training images of each class, for balanced weights."""
    multilabel: bool = False
    """An image may have several labels."""
    tree: bool = False
    """The classes are paths in a tree; recorded with the model."""
    image_size: int | tuple[int, int] | None = None
    """Pixels, one side or (height, width). Default: that of the weights or the model."""
    channels: int | None = None
    """Of images that are not RGB."""
    preprocess: Preprocess | None = None
    """Evaluation preprocessing, stored with the model."""
    num_classes: int | None = None
    """Outputs. Default: as many as `classes`, else those of the weights, or 1000."""
