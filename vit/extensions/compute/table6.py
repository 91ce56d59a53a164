"""The published points of table6.csv: Table 6 of the ViT paper (arXiv:2010.11929, appendix).

Top-1 accuracy in per cent after transfer, and the compute of pre-training on JFT-300M.
"""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

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
TITLES = {**ACCURACIES, AVERAGE: "mean of five data sets"}


@dataclass(frozen=True)
class Point:
    """Row of the table: a model, its epochs, accuracies and compute."""

    paper_name: str
    model: str
    """Name in vit/models/zoo.py."""
    epochs: int
    """Epochs on JFT-300M."""
    accuracy: dict[str, float]
    """Per cent, by the names in ACCURACIES."""
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
        return self.accuracy[name]


with Path(__file__).with_name("table6.csv").open(newline="", encoding="utf-8") as _rows:
    TABLE6 = tuple(
        Point(
            row["paper_name"],
            row["model"],
            int(row["epochs"]),
            {name: float(row[name]) for name in ACCURACIES},
            float(row["exaflops"]),
        )
        for row in csv.DictReader(_rows)
    )


def column_of(datasets: Iterable[str | None]) -> str:
    """The column of the runs' data sets (names in our catalog); ImageNet's for none or several."""
    columns = {_COLUMNS.get(name or "") for name in datasets}
    return (columns.pop() if len(columns) == 1 else None) or "imagenet"
