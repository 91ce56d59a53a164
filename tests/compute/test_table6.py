"""The paper's Table 6 from PyTorch's count."""

import pytest

from vit.compute.flops import work
from vit.compute.table6 import ACCURACIES, AVERAGE, JFT_IMAGES, TABLE6, Point
from vit.models.zoo import model_config

JFT_CLASSES = 18_291  # BiT (arXiv:1912.11370), section 3.1; the ViT paper says 18k


def exaflops(point: Point, num_classes: int = 1000) -> float:
    config = model_config(point.model, num_classes=num_classes)
    return work(config).training_flops * point.epochs * JFT_IMAGES / 1e18


@pytest.mark.parametrize("point", TABLE6[:6], ids=lambda p: f"{p.paper_name}-{p.epochs}")
def test_compute_of_a_vit_is_within_two_per_cent_of_the_papers(point: Point) -> None:
    """All rows are within 3.6 %: tests/cli/test_compare.py."""
    assert exaflops(point) == pytest.approx(point.exaflops, rel=0.02)


def test_there_are_eighteen_rows_in_the_papers_order() -> None:
    assert len(TABLE6) == 18
    families = [point.family for point in TABLE6]
    assert families == ["ViT"] * 6 + ["ResNet"] * 7 + ["hybrid"] * 5
    assert [TABLE6[i].exaflops for i in (0, 5, 6, 17)] == [55, 4262, 50, 1668]


@pytest.mark.parametrize("model", ["vit_b32", "bit_r50x1"])
def test_jfts_head_adds_a_per_cent_at_most(model: str) -> None:
    point = next(point for point in TABLE6 if point.model == model)
    assert 1 < exaflops(point, JFT_CLASSES) / exaflops(point) < 1.01


def test_the_average_is_of_the_five_sets_of_figure_5() -> None:
    assert TABLE6[0].score(AVERAGE) == pytest.approx((80.73 + 98.61 + 90.49 + 93.40 + 99.27) / 5)
    assert TABLE6[0].score("real") == 86.27
    assert all(len(point.accuracy) == len(ACCURACIES) for point in TABLE6)
