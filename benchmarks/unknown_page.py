"""Writes the tables "None of these" of docs/trust.md from benchmarks/results/unknown.json.

python benchmarks/unknown_page.py          writes them
python benchmarks/unknown_page.py --check  exit status 1 if they are not up to date
"""

import statistics
from typing import Any

from pages import ROOT, filled, generate, load, plus_minus, table

PAGE = ROOT / "docs" / "trust.md"
MODELS = {"frozen": "head on frozen features", "small": "small ViT, random weights"}
ASKED = {"left_out": "two classes left out", "photos": "photos"}


def spread(values: list[float], factor: float = 100) -> str:
    """Mean ± standard deviation."""
    return plus_minus(factor * statistics.mean(values), factor * statistics.stdev(values))


def text() -> str:
    """Everything between the markers."""
    content = load("unknown")
    areas = []
    for model, name in MODELS.items():
        rows: list[dict[str, Any]] = [row for row in content["rows"] if row["model"] == model]
        for asked, title in ASKED.items():
            areas.append((name, title, spread([row[asked]["auroc"]["energy"] for row in rows])))
    return table(("model", "unknown images", "AUROC, %"), areas)


if __name__ == "__main__":
    raise SystemExit(generate(PAGE, filled(PAGE, unknown=text())))
