"""The two figures of many models."""

import warnings
from itertools import combinations

import pytest

from vit.reports.drawing import DARK, LIGHT, png
from vit.reports.scaling import (
    ScalingPoint,
    SpeedCurve,
    accuracy_against_compute,
    plain,
    speed_against_size,
)

FAMILIES = ("ViT", "ResNet", "hybrid")


def published(n: int = 18) -> list[ScalingPoint]:
    return [
        ScalingPoint(
            label=f"model {i}",
            exaflops=50 * 1.28**i,
            accuracy=78 + 0.5 * i + (i % 3),
            family=FAMILIES[i % 3],
        )
        for i in range(n)
    ]


def quiet(figure) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return png(figure)


def test_each_family_is_a_series_and_own_runs_are_stars():
    own = ScalingPoint(label="my run", exaflops=0.002, accuracy=61.3)
    figure = accuracy_against_compute([*published(), own], "top-1", "your runs (cifar10)")
    axes = figure.axes[0]
    drawn = {line.get_label(): line for line in axes.lines}
    assert list(drawn) == [f"{f} (paper)" for f in FAMILIES] + ["your runs (cifar10)"]
    assert len(drawn["hybrid (paper)"].get_xdata()) == 6
    star = drawn["your runs (cifar10)"]
    assert (star.get_marker(), list(star.get_xdata()), list(star.get_ydata())) == (
        "*",
        [0.002],
        [61.3],
    )
    assert (axes.get_xscale(), axes.get_ylabel()) == ("log", "top-1")
    assert len({line.get_color() for line in drawn.values()}) == 4


@pytest.mark.parametrize("spread", [1.0, 0.02])
def test_labels_cover_neither_each_other_nor_a_point(spread):
    points = [
        ScalingPoint(label=p.label, exaflops=p.exaflops, accuracy=p.accuracy * spread,
                     family=p.family)
        for p in published()
    ]  # fmt: skip
    own = [ScalingPoint(label="a $run$ with 名", exaflops=1e-6, accuracy=40.0)]
    figure = accuracy_against_compute([*points, *own], "top-1", "your runs")
    quiet(figure)
    axes = figure.axes[0]
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) >= 3
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    for point in points:
        at = axes.transData.transform((point.exaflops, point.accuracy))
        assert not any(box.contains(*at) for box in boxes)
    assert any("run" in text.get_text() for text in axes.texts)


def test_powers_of_ten_are_written_out():
    assert [plain(x) for x in (1e-8, 0.01, 1, 50, 10_000)] == ["1e-08", "0.01", "1", "50", "10,000"]


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_a_model_is_a_curve_with_the_reach_of_its_repetitions(theme):
    curves = [
        SpeedCurve(label=f"model {i}", sizes=[96, 224], inference=[(90 + i, 80, 99), (30, 29, 33)],
                   training=[(30, 28, 31), (9, 8, 10)])
        for i in range(7)
    ]  # fmt: skip
    figure = speed_against_size(curves, "2 cores of a toy", theme)
    left, right = figure.axes
    assert (left.get_title(loc="left"), right.get_title(loc="left")) == (
        "Inference",
        "Training step",
    )
    assert len(left.containers) == len(right.containers) == 7
    line, _, bars = left.containers[2]
    assert list(line.get_ydata()) == [92, 30]
    assert [list(ends[:, 1]) for ends in bars[0].get_segments()] == [[80, 99], [29, 33]]
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["96", "224"]
    looks = {(c[0].get_color(), c[0].get_marker()) for c in left.containers}
    assert len(looks) == 7
    assert quiet(figure)
