"""What the rows of benchmarks/speed/models.py say: ours against the best peer."""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.lib.pages import spread

Row = dict[str, Any]


def verdicts(rows: Iterable[Row], finals: Iterable[Row] = ()) -> list[Row]:
    """One row per model, task and precision, all ratios paired by round.

    `peer` is the fastest setting of any other library. Where there is a final, it decides which
    peer is the best, `ratio` is its median and 95 % interval, and `rounds` are its own; else
    `ratio` is median and range.
    """
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["what"], row["precision"]), []).append(row)
    measured = {(final["model"], final["what"], final["precision"]): final for final in finals}
    return [verdict(group, measured.get(key)) for key, group in groups.items()]


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median, whatever the distribution: two of the values.

    Of few values, least and most; of five these hold the median with 94 %.
    """
    n, rank = len(values), 0
    while 2 * sum(math.comb(n, i) for i in range(rank + 1)) <= 0.05 * 2**n:
        rank += 1
    ordered = sorted(values)
    rank = max(rank, 1)
    return ordered[rank - 1], ordered[n - rank]


def verdict(group: list[Row], final: Row | None = None) -> Row:
    """The comparison of the settings of one model, task and precision."""
    peers = [row for row in group if not is_ours(row)]
    mine, peer = fastest([row for row in group if is_ours(row)]), fastest(peers)
    ratio, rounds = paired(mine, peer), mine["rounds"]
    again = final is not None and final["ours"] == mine["setting"]
    if final is not None and again:
        medians = {name: statistics.median(ratios) for name, ratios in final["ratios"].items()}
        peer = next(row for row in peers if row["setting"] == min(medians, key=medians.__getitem__))
        ratios = final["ratios"][peer["setting"]]
        ratio, rounds = (statistics.median(ratios), *median_interval(ratios)), len(ratios)
    result = {key: mine[key] for key in ("model", "what", "precision", "batch_size")}
    result |= {
        "ours": mine["setting"],
        "peer": peer["setting"],
        "peers": [fastest(rows)["setting"] for rows in by_library(peers)],
        "ratio": ratio,
        "rounds": rounds,
        "again": again,
        "utilisation": mine["utilisation"],
        "errors": [mine["logit_error"], peer["logit_error"]],
    }
    return result


def by_library(rows: list[Row]) -> list[list[Row]]:
    """The rows of each library."""
    libraries = [row["setting"].partition(",")[0] for row in rows]
    return [
        [row for row, library in zip(rows, libraries, strict=True) if library == name]
        for name in dict.fromkeys(libraries)
    ]


def is_ours(row: Row) -> bool:
    """Whether the row is this package's."""
    return row["setting"].startswith("vit,")


def fastest(rows: list[Row]) -> Row:
    """The row with the most images per second."""
    return max(rows, key=lambda row: row["ratio"])


def paired(row: Row, other: Row) -> tuple[float, float, float]:
    """Speed over that of `other`: median, least and most of the rounds."""
    ratios = [a / b for a, b in zip(row["ratios"], other["ratios"], strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


def mean_ratio(verdicts: Iterable[Row], precision: str) -> float:
    """Geometric mean of ours over the best peer."""
    logs = [math.log(row["ratio"][0]) for row in verdicts if row["precision"] == precision]
    return math.exp(statistics.fmean(logs))


def text(row: Row) -> str:
    """A row of the printed table."""
    return (
        f"{row['model']:10} {row['what']:9} {row['precision']}  {spread(*row['ratio'])} of "
        f"{row['peer']}; {row['utilisation']:.0%} of the limit"
    )
