"""The tables of docs/folds.md."""

from typing import Any

from benchmarks.lib.pages import ROOT, filled, generate, load, table
from vit.extensions.reports.intervals import wilson_interval

PAGE = ROOT / "docs" / "folds.md"
NAMES = {
    "folds": "`vit folds`: mean of the folds, corrected",
    "uncorrected": "the same without the second term",
    "pooled": "all left-out images together, Wilson's interval",
    "single": "one val of a fifth, Wilson's interval",
}
"""Interval -> its name on the page."""
FILES = {"coverage": "results", "twenty": "cifar_20", "hundred": "cifar_100"}
"""Place on the page -> file of results."""


def coverage(content: dict[str, Any]) -> str:
    """A row for each interval."""
    draws = len(content["rows"])

    def share(hits: int) -> str:
        low, high = wilson_interval(hits, draws)
        return f"{hits} of {draws} ({100 * low:.0f} to {100 * high:.0f} %)"

    lines = []
    for name, text in NAMES.items():
        row = content["summary"][name]
        held = [share(row[key]) for key in ("holds", "holds_final")]
        lines.append((text, *held, f"{row['bias']:+.1f}", f"{row['rms']:.1f}",
                      f"{row['width']:.1f}"))  # fmt: skip
    head = (
        "95 % interval",
        "holds its accuracy",
        "holds the final run's",
        "score - accuracy, mean",
    )
    return table((*head, "root mean square", "width"), lines)


def tables() -> dict[str, str]:
    """Place on the page -> the table of a file of results."""
    return {name: coverage(load(f"papers/folds/{file}")) for name, file in FILES.items()}


if __name__ == "__main__":
    raise SystemExit(generate(PAGE, filled(PAGE, **tables())))
