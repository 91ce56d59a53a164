"""The statistics of the table are those of the standard library."""

import json
import statistics

import pytest

from vit.extensions.transfer.transfer_table import Row, Trial, to_json, to_markdown, vtab_means
from vit.extensions.transfer.vtab import TASKS


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


# arXiv:2010.11929, Table 9, and the means that the paper states in Tables 2 and 9 and Figure 2.
TABLE_9 = {
    "ViT-H/14 (JFT)": (
        "95.3 85.5 75.2 99.7 97.2 65.0 88.9 83.3 96.7 91.4 76.6 91.7 63.8 53.1 79.4 63.3 84.5 33.2 "
        "51.2",
        77.63,
    ),
    "ViT-L/16 (JFT)": (
        "95.4 81.9 74.3 99.7 96.7 63.5 87.4 83.6 96.5 89.7 77.1 86.4 63.1 49.7 74.5 60.5 82.2 36.2 "
        "51.1",
        76.29,
    ),
    "ViT-L/16 (I21k)": (
        "90.8 84.1 74.1 99.3 92.7 61.0 80.9 82.5 95.6 85.2 75.3 70.3 56.1 41.9 74.7 64.9 79.9 30.5 "
        "41.7",
        72.71,
    ),
}


def of_the_paper(model: str) -> list[Row]:
    scores = [float(score) / 100 for score in TABLE_9[model][0].split()]
    return [row(f"vtab/{name}", {}, [s]) for name, s in zip(TASKS, scores, strict=True)]


@pytest.mark.parametrize("model", TABLE_9)
def test_the_papers_means_follow_from_its_tasks(model: str) -> None:
    means = vtab_means(of_the_paper(model))
    assert round(100 * means["all"]["mean"], 2) == TABLE_9[model][1]
    if model == "ViT-H/14 (JFT)":
        groups = [100 * means[name]["mean"] for name in ("natural", "specialized", "structured")]
        assert groups == [
            pytest.approx(86.7, abs=0.05),
            pytest.approx(87.0, abs=0.05),
            pytest.approx(65.0, abs=0.05),
        ]
        assert f"| all | 19 of 19 | {TABLE_9[model][1]} |" in to_markdown(of_the_paper(model))


def test_the_deviation_is_that_of_the_means_of_the_seeds() -> None:
    rows = [row("vtab/svhn", {}, [0.1, 0.5]), row("vtab/dtd", {}, [0.5, 0.1]), *ROWS]
    means = vtab_means(rows)["natural"]
    assert (means["mean"], means["std"], means["n"]) == (pytest.approx(0.3), 0.0, 2)
    assert (means["tasks"], means["of"]) == (2, 7)
    failed = vtab_means([*rows, row("vtab/sun397", {}, [0.5, None])])
    assert failed["natural"]["mean"] is None and failed["specialized"]["tasks"] == 0
    assert vtab_means(ROWS) == {}
