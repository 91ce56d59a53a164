"""The rows of `vit compare` as the figures of vit/inspection/scaling.py."""

from math import sqrt
from typing import Any

from matplotlib.figure import Figure

from vit.compute.table6 import ACCURACIES, TABLE6, Point
from vit.errors import UserError
from vit.inspection.scaling import (
    ScalingPoint,
    SpeedCurve,
    accuracy_against_compute,
    speed_against_size,
)

Row = dict[str, Any]

# Our names of datasets -> the paper's accuracies.
SETS = {
    "imagenet": "imagenet",
    "cifar10": "cifar10",
    "cifar100": "cifar100",
    "oxford_iiit_pet": "pets",
    "flowers102": "flowers",
}


def compute_figure(rows: list[Row], accuracy: str | None) -> Figure:
    """All points of Table 6, and the runs among `rows`.

    `accuracy`: of the paper's points; by default that on the runs' dataset, or else ImageNet.
    UserError where no run has an accuracy.
    """
    own = [row for row in rows if "run" in row and row["accuracy"] is not None]
    if any("run" in row for row in rows) and not own:
        raise UserError("--figure: none of the runs has a top-1 accuracy to draw")
    sets = {SETS.get(row["dataset"] or "") for row in own}
    chosen = accuracy or (sets.pop() if len(sets) == 1 else None) or "imagenet"
    points = [
        ScalingPoint(
            label=_label(point),
            exaflops=point.exaflops,
            accuracy=point.average if chosen == "average" else point.score(chosen),
            family=point.family,
        )
        for point in TABLE6
    ]
    points += [
        ScalingPoint(label=row["run"], exaflops=row["exaflops"], accuracy=row["accuracy"])
        for row in own
    ]
    name = "mean of five data sets" if chosen == "average" else ACCURACIES[chosen]
    data = {row["dataset"] for row in own}
    single = data.pop() if len(data) == 1 else None
    label = "your runs" + (f" ({single})" if single else "")
    return accuracy_against_compute(points, f"{name} top-1 after transfer", label)


def _label(point: Point) -> str:
    """Short, and with the epochs where the table has the model twice."""
    name = point.paper_name.replace("ResNet", "R").replace("R50x1+ViT-", "R50+")
    twice = sum(other.model == point.model for other in TABLE6) > 1
    return f"{name}, {point.epochs} ep." if twice else name


def speed_figure(rows: list[Row]) -> Figure:
    """Images a second by image size, a curve a model."""
    curves = []
    for name in dict.fromkeys(row["model"] for row in rows):
        own = sorted((r for r in rows if r["model"] == name), key=_side)
        curves.append(
            SpeedCurve(
                label=name,
                sizes=[_side(row) for row in own],
                inference=[_reach(row["inference_images_per_second"]) for row in own],
                training=[_reach(row["training_images_per_second"]) for row in own],
            )
        )
    first = rows[0]
    where = f"{first['measured_on']}, {first['precision']}, batch {first['batch_size']}"
    return speed_against_size(curves, where)


def _side(row: Row) -> int:
    height, width = row["image_size"]
    return round(sqrt(height * width))


def _reach(rate: dict[str, float]) -> tuple[float, float, float]:
    return rate["median"], rate["min"], rate["max"]
