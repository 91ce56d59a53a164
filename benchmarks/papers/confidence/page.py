"""The tables of temperature and coverage in docs/trust.md."""

import statistics
from typing import Any

from benchmarks.lib.pages import ROOT, filled, generate, load, table

PAGE = ROOT / "docs" / "trust.md"
TEMPERATURE = """\
CIFAR-10 (JPEG), three ViTs of 0.2 million parameters trained on {train:,} images each from random
weights, {val:,} validation and {test:,} test images (`benchmarks/papers/confidence`). In brackets
95 % bootstrap intervals over the test images; resampling adds noise to every bin, so that of a
small calibration error lies above it.
"""
COVERAGE = """\
The same runs; their {test:,} test images split ten times into 1,000 that make the cut and 3,000
that are counted. "Inside": splits whose count lies in the 95 % interval of exchangeable images
(beta-binomial); the ten splits share their images, so the column behind it has 2,000 splits of
each run.
"""


def with_interval(row: dict[str, Any], which: str, scale: int = 1) -> str:
    low, high = (scale * end for end in row[f"{which}_interval"])
    digits = 1 if scale == 100 else 3
    return f"{scale * row[which]:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def temperatures(rows: list[dict[str, Any]]) -> str:
    head = ("seed", "accuracy, %", "temperature", "NLL without", "NLL with")
    head += ("calibration error without, %", "with, %")
    return table(
        head,
        (
            (
                row["seed"],
                f"{100 * row['accuracy']:.1f}",
                f"{row['temperature']:.2f}",
                *(with_interval(row["nll"], which) for which in ("before", "after")),
                *(with_interval(row["ece"], which, 100) for which in ("before", "after")),
            )
            for row in rows
        ),
    )


def coverages(rows: list[dict[str, Any]]) -> str:
    lines = []
    for cells in zip(*(row["coverage"] for row in rows), strict=True):
        shares = [100 * share for cell in cells for share in cell["shares"]]
        low, high = (100 * end for end in cells[0]["interval"])
        lines.append(
            (
                f"{cells[0]['asked']:.0%}",
                f"{statistics.mean(shares):.1f} ({min(shares):.1f} to {max(shares):.1f})",
                f"{low:.1f} to {high:.1f}",
                f"{sum(cell['inside'] for cell in cells)} of {len(shares)}",
                f"{statistics.mean(cell['inside_of_many'] for cell in cells):.1%}",
                f"{statistics.mean(cell['classes'] for cell in cells):.2f}",
            )
        )
    head = ("asked", "true class in the set, % (range)", "interval, %", "inside")
    return table((*head, "inside, 2,000 splits", "classes in a set"), lines)


def main() -> int:
    content = load("papers/confidence/results")
    rows, images = content["rows"], content["images"]
    texts = {
        "temperature": f"{TEMPERATURE.format(**images)}\n{temperatures(rows)}",
        "coverage": f"{COVERAGE.format(**images)}\n{coverages(rows)}",
    }
    return generate(PAGE, filled(PAGE, **texts))


if __name__ == "__main__":
    raise SystemExit(main())
