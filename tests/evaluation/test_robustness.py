"""Corruption errors, against those that are published."""

from itertools import product

import pytest

from vit.data.corruptions import KINDS, STRENGTHS
from vit.evaluation.robustness import ALEXNET, Errors, summary

# Of ResNet-50 in the paper: corruption errors, clean error, their means (Tables 1 and 2).
RESNET50 = (80, 82, 83, 75, 89, 78, 80, 78, 75, 66, 57, 71, 85, 77, 77)
RESNET50_CLEAN, MCE, RELATIVE_MCE = 0.239, 0.767, 1.050


def test_alexnets_own_errors_give_100() -> None:
    found = summary(ALEXNET, ALEXNET)
    assert found["mce"] == pytest.approx(1) and found["relative_mce"] == pytest.approx(1)
    assert [row["kind"] for row in found["rows"]] == [*KINDS]


def test_the_published_errors_of_resnet50_give_its_published_means() -> None:
    errors: Errors = {None: RESNET50_CLEAN}
    for (kind, error), strength in product(zip(KINDS, RESNET50, strict=True), STRENGTHS):
        errors[kind, strength] = error / 100 * ALEXNET[kind, strength]
    found = summary(errors, ALEXNET)
    assert found["mce"] == pytest.approx(MCE, abs=0.005)
    assert found["relative_mce"] == pytest.approx(RELATIVE_MCE, abs=0.02)
    # Others have 68.02 % of brightness right by torchvision's weights, and an error of 56.64.
    assert (1 - 0.6802) / ALEXNET["brightness", 1] == pytest.approx(0.5664, abs=5e-5)


def test_errors_are_summed_over_strengths_before_they_are_divided() -> None:
    ours: Errors = {None: 0.1, ("fog", 1): 0.2, ("fog", 5): 0.6}
    theirs: Errors = {None: 0.2, ("fog", 1): 0.4, ("fog", 5): 0.5}
    [row] = summary(ours, theirs)["rows"]
    assert row["ce"] == pytest.approx(0.8 / 0.9)
    assert row["relative_ce"] == pytest.approx((0.1 + 0.5) / (0.2 + 0.3))
    assert row["errors"] == {1: 0.2, 5: 0.6} and row["mean_error"] == pytest.approx(0.4)


def test_nothing_is_divided_by_errors_that_are_not_there() -> None:
    ours: Errors = {("fog", 1): 0.2, ("snow", 1): 0.2}
    theirs: Errors = {None: 0.5, ("fog", 1): 0.0, ("snow", 1): 0.5}
    found = summary(ours, theirs)
    assert [row["ce"] for row in found["rows"]] == [None, 0.4]
    assert found["mce"] is None and found["relative_mce"] is None
    assert summary({None: 0.0, **ours}, theirs)["rows"][1]["relative_ce"] is None
    assert "mce" not in summary(ours) and summary(ours)["clean_error"] is None
