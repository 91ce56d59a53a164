"""The published points: Table 6 of the ViT paper (arXiv:2010.11929, appendix).

Top-1 accuracy in per cent after transfer, and the compute of pre-training on JFT-300M.
"""

from collections.abc import Iterable
from dataclasses import dataclass

JFT_IMAGES = 303_000_000
"""Section 4.1 of the paper."""
JFT_SIZE = 224
"""Resolution of pre-training images in pixels."""

ACCURACIES = {
    "imagenet": "ImageNet",
    "real": "ImageNet ReaL",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "pets": "Oxford-IIIT Pets",
    "flowers": "Oxford Flowers-102",
}
"""Columns of the table in order, with their full names."""
_COLUMNS = {"oxford_iiit_pet": "pets", "flowers102": "flowers"}
_COLUMNS |= {name: name for name in ("imagenet", "cifar10", "cifar100")}
"""Name in vit/data/catalog.py -> column."""
AVERAGE = "average"
"""In addition to the columns: the mean in Figure 5 of the paper."""


@dataclass(frozen=True)
class Point:
    """One row: a model, its epochs, accuracies and compute."""

    paper_name: str
    model: str
    """Name in vit/models/zoo.py."""
    epochs: int
    """Epochs on JFT-300M."""
    accuracy: tuple[float, ...]
    """Per cent, in the order of ACCURACIES."""
    exaflops: float
    """Pre-training compute in the paper, in units of 1e18 operations."""

    @property
    def family(self) -> str:
        """ "ViT", "ResNet" or "hybrid"."""
        if self.model.startswith("vit_"):
            return "ViT"
        return "ResNet" if self.model.startswith("bit_") else "hybrid"

    @property
    def label(self) -> str:
        """Short name, with the epochs if the table has the model twice."""
        name = self.paper_name.replace("ResNet", "R").replace("R50x1+ViT-", "R50+")
        twice = sum(other.model == self.model for other in TABLE6) > 1
        return f"{name}, {self.epochs} ep." if twice else name

    def score(self, name: str) -> float:
        """Accuracy on one of ACCURACIES, or the AVERAGE of Figure 5's five sets, in per cent.

        ReaL, with ImageNet's images and other labels, is not among the five.
        """
        if name == AVERAGE:
            return sum(self.score(other) for other in ACCURACIES if other != "real") / 5
        return self.accuracy[list(ACCURACIES).index(name)]


# fmt: off
TABLE6 = (
    Point("ViT-B/32", "vit_b32", 7, (80.73, 86.27, 98.61, 90.49, 93.40, 99.27), 55),
    Point("ViT-B/16", "vit_b16", 7, (84.15, 88.85, 99.00, 91.87, 95.80, 99.56), 224),
    Point("ViT-L/32", "vit_l32", 7, (84.37, 88.28, 99.19, 92.52, 95.83, 99.45), 196),
    Point("ViT-L/16", "vit_l16", 7, (86.30, 89.43, 99.38, 93.46, 96.81, 99.66), 783),
    Point("ViT-L/16", "vit_l16", 14, (87.12, 89.99, 99.38, 94.04, 97.11, 99.56), 1567),
    Point("ViT-H/14", "vit_h14", 14, (88.08, 90.36, 99.50, 94.71, 97.11, 99.71), 4262),
    Point("ResNet50x1", "bit_r50x1", 7, (77.54, 84.56, 97.67, 86.07, 91.11, 94.26), 50),
    Point("ResNet50x2", "bit_r50x2", 7, (82.12, 87.94, 98.29, 89.20, 93.43, 97.02), 199),
    Point("ResNet101x1", "bit_r101x1", 7, (80.67, 87.07, 98.48, 89.17, 94.08, 95.95), 96),
    Point("ResNet152x1", "bit_r152x1", 7, (81.88, 87.96, 98.82, 90.22, 94.17, 96.94), 141),
    Point("ResNet152x2", "bit_r152x2", 7, (84.97, 89.69, 99.06, 92.05, 95.37, 98.62), 563),
    Point("ResNet152x2", "bit_r152x2", 14, (85.56, 89.89, 99.24, 91.92, 95.75, 98.75), 1126),
    Point("ResNet200x3", "bit_r200x3", 14, (87.22, 90.15, 99.34, 93.53, 96.32, 99.04), 3306),
    Point("R50x1+ViT-B/32", "r50_vit_b32", 7, (84.90, 89.15, 99.01, 92.24, 95.75, 99.46), 106),
    Point("R50x1+ViT-B/16", "r50_vit_b16", 7, (85.58, 89.65, 99.14, 92.63, 96.65, 99.40), 274),
    Point("R50x1+ViT-L/32", "r50_vit_l32", 7, (85.68, 89.04, 99.24, 92.93, 96.97, 99.43), 246),
    Point("R50x1+ViT-L/16", "r50_vit_l16", 7, (86.60, 89.72, 99.18, 93.64, 97.03, 99.40), 859),
    Point("R50x1+ViT-L/16", "r50_vit_l16", 14, (87.12, 89.76, 99.31, 93.89, 97.36, 99.11), 1668),
)
# fmt: on


def column_of(datasets: Iterable[str | None]) -> str:
    """The column of the runs' data sets (names in our catalog); ImageNet's for none or several."""
    columns = {_COLUMNS.get(name or "") for name in datasets}
    return (columns.pop() if len(columns) == 1 else None) or "imagenet"


def column_title(name: str) -> str:
    """Axis title of one of ACCURACIES, or their AVERAGE."""
    return "mean of five data sets" if name == AVERAGE else ACCURACIES[name]
