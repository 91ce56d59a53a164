"""Days and devices."""

import pytest

from tests.extensions.compute.formulas import multiply_adds
from vit.extensions.compute.cost import DEVICES
from vit.models.zoo import model_config


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
    import torch
    from lightning.fabric.utilities import throughput

    peak = throughput._CUDA_FLOPS[theirs][torch.bfloat16]
    assert DEVICES[ours].tflops * 1e12 == pytest.approx(peak, rel=1e-3)
