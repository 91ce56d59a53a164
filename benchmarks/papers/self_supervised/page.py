"""Writes the tables of looks and of fresh heads of docs/pretraining.md.

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


def heads(content: dict[str, Any]) -> str:
    """Information and loss of fresh heads by temperature, centring and rate."""
    cells = [
        [
            " to ".join(dict.fromkeys(f"{row[n]:g}" for n in ("first_temperature", "temperature"))),
            row["centring"],
            f"{row['rate']:g}",
            f"{row['after']:.2f}",
            f"{row['loss']:.2f}",
        ]
        for row in content["rows"]
    ]
    starts = {row["centring"]: f"{row['before']:.2f}" for row in content["rows"]}
    start = ", ".join(f"{value} ({name})" for name, value in starts.items())
    head = ["teacher's temperature", "centring", "rate", f"nats; at the start {start}"]
    return table([*head, f"loss; uniform {content['uniform_loss']:.2f}"], cells)


if __name__ == "__main__":
    tables = {
        "looks": looks(load("papers/self_supervised/looks")["rows"]),
        "heads": heads(load("papers/self_supervised/heads")),
    }
    raise SystemExit(generate(PAGE, filled(PAGE, **tables)))
