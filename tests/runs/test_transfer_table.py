"""The three forms of the result agree, and their statistics are those of the standard library."""

import json
import statistics
from typing import Any

import pytest

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


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def tables() -> tuple[list[dict[str, str]], list[dict[str, Any]]]:
    lines = to_markdown(ROWS).split("\n\n")[0].splitlines()
    markdown = [dict(zip(cells(lines[0]), cells(line), strict=True)) for line in lines[2:]]
    return markdown, json.loads(to_json(ROWS, {"model": "m"}))["rows"]


def test_markdown_and_json_agree() -> None:
    markdown, document = tables()
    assert len(markdown) == len(document) == len(ROWS)
    for shown, full in zip(markdown, document, strict=True):
        assert shown["data set"] == full["data"]
        assert shown["n"] == str(full["n"])
        if len(full["scores"]) > 1:
            assert full["mean"] == statistics.fmean(full["scores"])
            assert full["std"] == statistics.stdev(full["scores"])
        if full["mean"] is None:
            assert shown["test top-1, %"] == "failed"
            assert (full["lr"], shown["lr"]) == (None, "-")
            continue
        assert float(shown["lr"]) == full["lr"]
        mean, _, std = shown["test top-1, %"].partition(" ± ")
        assert float(mean) == pytest.approx(100 * full["mean"], abs=0.00501)
        if std:
            assert float(std) == pytest.approx(100 * full["std"], abs=0.00501)
        else:
            assert full["std"] is None
        each = [float(cell) for cell in shown["each seed"].split() if cell != "failed"]
        assert each == [pytest.approx(100 * s, abs=0.00501) for s in full["scores"]]
        assert shown["train"] == "3,680"
        assert full["seconds"] == 1.5 * len(full["search"])


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
