"""Intervals against a bootstrap and the formulas of their papers."""

import math

import numpy as np
import pytest

from vit.extensions.reports.intervals import Paired


@pytest.mark.parametrize(("lost", "gained"), [(30, 12), (5, 5), (0, 40)])
def test_the_interval_of_a_drop_is_that_of_a_bootstrap(lost: int, gained: int) -> None:
    count = 2000
    found = Paired(count, 1200, lost, gained)
    assert found.after == 1200 - lost + gained
    shares = [lost / count, gained / count, 1 - (lost + gained) / count]
    draws = np.random.default_rng(0).multinomial(count, shares, 20_000)
    low, high = np.percentile(100 * (draws[:, 0] - draws[:, 1]) / count, [2.5, 97.5])
    assert found.interval == pytest.approx((low, high), abs=0.12)
    assert low <= found.drop <= high


def test_equal_answers_to_few_images_do_not_show_that_nothing_is_lost() -> None:
    assert not Paired(100, 60, 0, 0).sees(0.5)
    assert Paired(5000, 3000, 0, 0).sees(0.5)
    assert Paired(5000, 3000, 60, 55).sees(0.5) and not Paired(500, 300, 6, 5).sees(0.5)


@pytest.mark.parametrize(("lost", "gained"), [(7, 1), (30, 12), (0, 0), (0, 40)])
def test_the_difference_is_tested_as_its_papers_say(lost: int, gained: int) -> None:
    """Bonett and Price, 2012, with Laplace estimates; McNemar by its binomial, exactly. The first
    table is the example of Fagerland, Lydersen and Laake, 2013 (exact conditional test)."""
    found, n = Paired(count := 21 + lost + gained, 13, lost, gained), lost + gained
    p12, p21 = (lost + 1) / (count + 2), (gained + 1) / (count + 2)
    half = 1.959964 * math.sqrt((p12 + p21 - (p12 - p21) ** 2) / (count + 2))
    expected = (100 * (p12 - p21 - half), 100 * (p12 - p21 + half))
    assert found.interval == pytest.approx(expected, rel=1e-6)
    tail = sum(math.comb(n, i) for i in range(min(lost, gained) + 1)) / 2**n
    assert found.p_value == pytest.approx(min(1.0, 2 * tail), rel=1e-9)
    assert lost != 7 or found.p_value == pytest.approx(0.070, abs=5e-4)
