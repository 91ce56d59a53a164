"""Corruption errors, against those that are published."""

import pytest

from vit.extensions.evaluation.corruptions import KINDS
from vit.extensions.evaluation.robustness import ALEXNET, Errors, summary

# Of ResNet-50 in the paper: corruption errors and their mean (Table 1).
RESNET50 = (80, 82, 83, 75, 89, 78, 80, 78, 75, 66, 57, 71, 85, 77, 77)
MCE = 0.767


def test_alexnets_own_errors_give_100() -> None:
    found = summary(ALEXNET, ALEXNET)
    assert found["mce"] == pytest.approx(1)
    assert [row["kind"] for row in found["rows"]] == [*KINDS]


def test_the_published_errors_of_resnet50_give_its_published_mean() -> None:
    errors: Errors = {
        kind: [error / 100 * ALEXNET[kind][0]] * 5
        for kind, error in zip(KINDS, RESNET50, strict=True)
    }
    assert summary(errors, ALEXNET)["mce"] == pytest.approx(MCE, abs=0.005)
    # Others have 68.02 % of brightness right by torchvision's weights, and an error of 56.64.
    assert (1 - 0.6802) / ALEXNET["brightness"][0] == pytest.approx(0.5664, abs=5e-5)


def test_errors_are_summed_over_strengths_before_they_are_divided() -> None:
    found = summary({None: [0.1], "fog": [0.2, 0.6]}, {None: [0.2], "fog": [0.4, 0.5]})
    [row] = found["rows"]
    assert row["ce"] == found["mce"] == pytest.approx(0.8 / 0.9)
    assert row["errors"] == {1: 0.2, 2: 0.6} and row["mean_error"] == pytest.approx(0.4)
    assert found["clean_error"] == 0.1


def test_nothing_is_divided_by_errors_that_are_not_there() -> None:
    ours: Errors = {"fog": [0.2], "snow": [0.2]}
    found = summary(ours, {"fog": [0.0], "snow": [0.5]})
    assert [row["ce"] for row in found["rows"]] == [None, 0.4] and found["mce"] is None
    assert "mce" not in summary(ours) and summary(ours)["clean_error"] is None
