"""Writes the table of looks of docs/pretraining.md.

python -m benchmarks.papers.self_supervised.page
"""

from typing import Any

from benchmarks.lib.pages import ROOT, filled, generate, load, table

PAGE = ROOT / "docs" / "pretraining.md"
HEAD = {
    "ours": "twice at 0.05 / looks",
    "once": "once at 0.05 / looks",
    "paired": "paired 95 % interval, once",
    "own interval": "95 % interval of the start, once",
}


def course(row: dict[str, Any]) -> str:
    if row["points"] < 0:
        return f"loses {-row['points']:g} at once"
    return f"gains {row['points']:g}" if row["points"] else "stays"


def stops(rule: dict[str, Any], sick: bool) -> str:
    at = f", look {rule['median_look']:g}" if sick and rule["stopped"] else ""
    return f"{100 * rule['share']:.3g} %{at}"


def looks(rows: list[dict[str, Any]]) -> str:
    """Shares of the runs that each rule stops, and at which look by the median."""
    cells = [
        [f"{row['images']:,}", course(row)]
        + [stops(row["rules"][rule], row["kind"] == "sick") for rule in HEAD]
        for row in rows
    ]
    return table(["images", "accuracy, points", *HEAD.values()], cells)


if __name__ == "__main__":
    content = load("papers/self_supervised/looks")
    raise SystemExit(generate(PAGE, filled(PAGE, looks=looks(content["rows"]))))
