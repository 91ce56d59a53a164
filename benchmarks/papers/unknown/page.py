"""The tables "None of these" of docs/trust.md."""

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.lib.pages import ROOT, filled, generate, load, plus_minus, table

PAGE = ROOT / "docs" / "trust.md"
MODELS = {"frozen": "head on frozen features", "small": "small ViT, random weights"}
ASKED = {"left_out": "two classes left out", "photos": "photos"}
SCORES = ("energy", "neighbours", "mahalanobis", "decision")


def percent(values: Sequence[float]) -> str:
    """Mean ± standard deviation of shares, in per cent."""
    return plus_minus(100 * statistics.mean(values), 100 * statistics.stdev(values))


def text() -> str:
    """Everything between the markers."""
    content = load("papers/unknown/results")
    areas, gains = [], []
    for model, name in MODELS.items():
        rows: list[dict[str, Any]] = [row for row in content["rows"] if row["model"] == model]
        chosen = Counter(row["score"] for row in rows).most_common()
        for asked, title in ASKED.items():
            values = [percent([row[asked]["auroc"][s] for row in rows]) for s in SCORES]
            words = ", ".join(f"{score} ({count})" for score, count in chosen)
            areas.append((name, title, *values, words))
            known, unknown = (
                [row["answered"][group] for row in rows] for group in ("known", asked)
            )
            shares = [row[asked] for row in rows]
            accuracy = [percent([row["accuracy_of_known"] for row in rows])]
            for of in ("of_all", "of_answered"):
                accuracy.append(percent([share["accuracy"][of] for share in shares]))
            gains.append((name, title, percent(known), percent(unknown), *accuracy))
    head = ("model", "unknown images", *SCORES, "chosen (of seeds)")
    second = ("answered: known", "unknown", "accuracy: known alone", "all", "of those answered")
    return "\n".join(
        [
            "AUROC, %, of unknown against known images:\n",
            table(head, areas),
            "\nAfter `vit trust`, with `--unknown 0.95`, %:\n",
            table((*head[:2], *second), gains),
        ]
    )


if __name__ == "__main__":
    raise SystemExit(generate(PAGE, filled(PAGE, unknown=text())))
