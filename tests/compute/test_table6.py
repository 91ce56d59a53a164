"""The paper's Table 6 from our arithmetic."""

import pytest

from vit.compute.candidate import candidate
from vit.compute.cost import Training
from vit.compute.table6 import ACCURACIES, JFT_CLASSES, JFT_IMAGES, JFT_SIZE, TABLE6, Point

WITHIN = {"ViT": 0.02, "hybrid": 0.04, "ResNet": 0.05}


def exaflops(point: Point, num_classes: int | None = None) -> float:
    model = candidate(point.model, (JFT_SIZE, JFT_SIZE), num_classes)
    return Training(model=model, images=point.epochs * JFT_IMAGES).flops / 1e18


@pytest.mark.parametrize("point", TABLE6, ids=lambda p: f"{p.paper_name}-{p.epochs}")
def test_compute_is_that_of_the_paper(point: Point) -> None:
    assert exaflops(point) == pytest.approx(point.exaflops, rel=WITHIN[point.family])


def test_there_are_eighteen_rows_in_the_papers_order() -> None:
    assert len(TABLE6) == 18
    families = [point.family for point in TABLE6]
    assert families == ["ViT"] * 6 + ["ResNet"] * 7 + ["hybrid"] * 5
    assert [TABLE6[i].exaflops for i in (0, 5, 6, 17)] == [55, 4262, 50, 1668]


def test_without_padding_every_resnet_is_nearer_to_the_paper() -> None:
    for point in TABLE6:
        if point.family == "ResNet":
            model = candidate(point.model, (JFT_SIZE, JFT_SIZE), JFT_CLASSES)
            inside = 2 * point.epochs * JFT_IMAGES * model.work.training_macs_inside / 1e18
            assert inside == pytest.approx(point.exaflops, rel=0.01)
            assert abs(inside - point.exaflops) < abs(exaflops(point) - point.exaflops) / 2


def test_jfts_head_adds_a_per_cent_at_most() -> None:
    for point in TABLE6:
        assert 1 < exaflops(point, JFT_CLASSES) / exaflops(point) < 1.01


def test_the_average_is_of_the_five_sets_of_figure_5() -> None:
    assert TABLE6[0].average == pytest.approx((80.73 + 98.61 + 90.49 + 93.40 + 99.27) / 5)
    assert TABLE6[0].score("real") == 86.27
    assert all(len(point.accuracy) == len(ACCURACIES) for point in TABLE6)
