"""The figure of many models."""

from vit.extensions.reports.scaling import ScalingPoint, accuracy_against_compute

FAMILIES = ("ViT", "ResNet", "hybrid")


def published(n: int = 18) -> list[ScalingPoint]:
    return [
        ScalingPoint(f"model {i}", 50 * 1.28**i, 78 + 0.5 * i + (i % 3), FAMILIES[i % 3])
        for i in range(n)
    ]


def test_each_family_is_a_series_and_own_runs_are_stars():
    own = ScalingPoint("my run", 0.002, 61.3)
    figure = accuracy_against_compute([*published(), own], "top-1", "your runs (cifar10)")
    axes = figure.axes[0]
    drawn = {line.get_label(): line for line in axes.lines}
    assert list(drawn) == [f"{f} (paper)" for f in FAMILIES] + ["your runs (cifar10)"]
    assert len(drawn["hybrid (paper)"].get_xdata()) == 6
    star = drawn["your runs (cifar10)"]
    assert (star.get_marker(), *star.get_xdata(), *star.get_ydata()) == ("*", 0.002, 61.3)
    assert (axes.get_xscale(), axes.get_ylabel()) == ("log", "top-1")
    assert len({line.get_color() for line in drawn.values()}) == 4
