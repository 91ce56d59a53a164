"""Table 6 of the paper, the table of devices, and the text tables of the commands."""

import pytest
import torch
from lightning.fabric.utilities import throughput

from tests.extensions.compute.formulas import multiply_adds
from vit.extensions.compute.cost import DEVICES
from vit.extensions.compute.table6 import AVERAGE, TABLE6
from vit.extensions.compute.tables import amount
from vit.models.zoo import model_config


def test_there_are_eighteen_rows_in_the_papers_order() -> None:
    assert len(TABLE6) == 18
    families = [point.family for point in TABLE6]
    assert families == ["ViT"] * 6 + ["ResNet"] * 7 + ["hybrid"] * 5
    assert [TABLE6[i].exaflops for i in (0, 5, 6, 17)] == [55, 4262, 50, 1668]


def test_the_average_is_of_the_five_sets_of_figure_5() -> None:
    assert TABLE6[0].score(AVERAGE) == pytest.approx((80.73 + 98.61 + 90.49 + 93.40 + 99.27) / 5)
    assert TABLE6[0].score("real") == 86.27


def test_the_papers_own_bill_is_a_third_of_a_tpus_peak() -> None:
    """Table 2: ViT-H/14 on JFT took 2.5 thousand TPUv3-core-days, ViT-L/16 0.68 thousand."""
    core = DEVICES["tpu-v3-core"].tflops * 1e12
    for model, days, share in (("vit_h14", 2500, 0.32), ("vit_l16", 680, 0.43)):
        operations = 14 * 303e6 * 6 * multiply_adds(model_config(model))[0]
        assert operations / (share * core) / 86_400 == pytest.approx(days, rel=0.03)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("a100", "a100"), ("h100", "h100 sxm"), ("h100-pcie", "h100 pcie"), ("l4", "l4"),
     ("a10", "a10g")],
)  # fmt: skip
def test_peaks_are_those_that_lightning_has_from_the_data_sheets(ours: str, theirs: str) -> None:
    peak = throughput._CUDA_FLOPS[theirs][torch.bfloat16]
    assert DEVICES[ours].tflops * 1e12 == pytest.approx(peak, rel=1e-3)


def test_amounts_have_four_digits() -> None:
    values = (0.0000442, 0.00597, 0.1642, 4.4092, 17.564, 632.05, 4256.4, 0)
    shown = ["4.42e-05", "0.00597", "0.164", "4.409", "17.56", "632.0", "4,256", "0"]
    assert [amount(value) for value in values] == shown
