"""The rows of the paper's Table 6; their counts: tests/extensions/compute/test_compare.py."""

import pytest

from vit.extensions.compute.table6 import ACCURACIES, AVERAGE, TABLE6


def test_there_are_eighteen_rows_in_the_papers_order() -> None:
    assert len(TABLE6) == 18
    families = [point.family for point in TABLE6]
    assert families == ["ViT"] * 6 + ["ResNet"] * 7 + ["hybrid"] * 5
    assert [TABLE6[i].exaflops for i in (0, 5, 6, 17)] == [55, 4262, 50, 1668]


def test_the_average_is_of_the_five_sets_of_figure_5() -> None:
    assert TABLE6[0].score(AVERAGE) == pytest.approx((80.73 + 98.61 + 90.49 + 93.40 + 99.27) / 5)
    assert TABLE6[0].score("real") == 86.27
    assert all(len(point.accuracy) == len(ACCURACIES) for point in TABLE6)
