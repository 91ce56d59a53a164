"""The statistics of the table are those of the standard library."""

import json
import statistics

from vit.runs.transfer_table import Row, Trial, to_json, to_markdown


def row(data: str, tried: dict[float, float | None], scores: list[float | None]) -> Row:
    made = Row(data=data, metric="acc1", steps=500, images={"train": 3680, "slice": 368, "test": 9})
    made.search = [Trial(lr=lr, seed=0, score=s, seconds=1.5) for lr, s in tried.items()]
    for seed, score in enumerate(scores):
        reason = None if score is not None else "the loss is not finite since step 7"
        made.final.append(
            Trial(lr=made.lr or 0.1, seed=seed, score=score, reason=reason, cpu_seconds=0.25)
        )
    return made


ROWS = [
    row("pets", {0.001: 0.25, 0.003: 0.75, 0.01: 0.75, 0.03: None}, [0.9311, 0.9345, 0.9402]),
    row("flowers", {1e-5: 0.125, 0.1: 0.5, 0.3: 0.25}, [0.123456789, None, 1 / 3]),
    row("one", {}, [0.5]),
    row("lost", {0.1: None, 0.3: None}, []),
]


def test_the_statistics_are_pythons() -> None:
    for row, full in zip(ROWS, json.loads(to_json(ROWS, {"model": "m"}))["rows"], strict=True):
        scores = full["scores"]
        assert full["data"] == row.data and full["n"] == len(scores) and full["lr"] == row.lr
        assert full["mean"] == (statistics.fmean(scores) if scores else None)
        assert full["std"] == (statistics.stdev(scores) if len(scores) > 1 else None)
        assert full["seconds"] == 1.5 * len(full["search"])
    table = to_markdown(ROWS)
    assert (
        "| pets | 0.003 | 93.53 ± 0.46 | 3 | 93.11 93.45 94.02 | 3,680 | 368 | 9 | 500 |" in table
    )
    assert "| lost | - | failed | 0 | - |" in table


def test_ties_go_to_the_smaller_rate_and_the_edge_of_the_grid_is_remarked() -> None:
    assert ROWS[0].lr == 0.003
    assert not any("of the grid" in remark for remark in ROWS[0].remarks)
    edge = row("x", {0.001: 0.5, 0.003: 0.25}, [0.5])
    assert "x: the best learning rate is the smallest of the grid" in edge.remarks[0]
    edge = row("x", {0.001: 0.25, 0.003: 0.5}, [0.5])
    assert "the largest of the grid" in edge.remarks[0]


def test_failures_and_interruptions_are_remarked() -> None:
    made = row("x", {}, [None, 0.5])
    made.final[1].continued = True
    assert made.remarks == [
        "x: lr 0.1, seed 0 failed: the loss is not finite since step 7",
        "x: lr 0.1, seed 1 was interrupted: its time is that of the last part",
    ]
