"""The simulation of looks at a labelled folder: its images, its rules, its quick run."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from benchmarks.papers.self_supervised.looks import KEPT, RULES, answers, main, stopped_at
from vit.extensions.reports.intervals import Paired


def test_images_are_named_rightly_as_often_as_said_and_look_alike_from_look_to_look() -> None:
    images, points = 200_000, np.array([0.0, -10.0, 3.0])
    hits = answers(images, points, np.random.default_rng(0))
    assert hits.mean(1) == pytest.approx([0.7, 0.6, 0.73], abs=5 * 0.5 / images**0.5)
    # Both right: a normal probability in two dimensions.
    limits = [norm.ppf(0.7), norm.ppf(0.73)]
    both = multivariate_normal(cov=[[1, KEPT**2], [KEPT**2, 1]]).cdf(limits)
    assert (hits[0] & hits[2]).mean() == pytest.approx(both, abs=5 * 0.5 / images**0.5)


def pair(lost: int, gained: int) -> Paired:
    return Paired(1_000, 700, lost, gained)


def test_rules_differ_in_what_they_need() -> None:
    none, slight, clear = pair(20, 20), pair(40, 22), pair(90, 20)
    looks = [none, slight, none, clear, slight, clear, clear]
    found = {rule: stopped_at(rule, looks) for rule in RULES}
    assert found == {"ours": 7, "once": 4, "paired": 2, "own interval": 4}
    assert {stopped_at(rule, [none] * 20) for rule in RULES} == {None}


def test_the_quick_run_stops_sick_runs_more_often_than_healthy_ones() -> None:
    rows = main(["--quick"])["rows"]
    shares = {(row["kind"], row["points"]): row["rules"]["ours"]["share"] for row in rows}
    assert shares["sick", -10.0] == 1 and shares["healthy", 0.0] < 0.5
