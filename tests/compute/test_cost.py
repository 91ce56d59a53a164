"""Days and devices."""

import pytest

from vit.compute.candidate import candidate
from vit.compute.cost import DEVICES, Training, device_days, find_device, recognise_device
from vit.compute.units import precision_name
from vit.errors import UserError


def test_the_papers_own_bill_is_a_third_of_a_tpus_peak() -> None:
    """Table 2: ViT-H/14 on JFT took 2.5 thousand TPUv3-core-days, ViT-L/16 0.68 thousand."""
    core = find_device("tpu-v3-core").tflops * 1e12
    for model, days, share in (("vit_h14", 2500, 0.32), ("vit_l16", 680, 0.43)):
        training = Training(model=candidate(model), images=14 * 303e6)
        assert device_days(training.flops, share * core) == pytest.approx(days, rel=0.03)


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


@pytest.mark.parametrize(
    ("cuda_name", "key"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce GTX 1080", None),
    ],
)
def test_cudas_name_of_a_device_is_recognised(cuda_name: str, key: str | None) -> None:
    assert recognise_device(cuda_name) is (None if key is None else DEVICES[key])


def test_an_unknown_device_names_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown device 'h101'; did you mean 'h100'"):
        find_device("h101")
    assert find_device("H100_PCIe") is DEVICES["h100-pcie"]


def test_a_frozen_backbone_has_no_backward_pass() -> None:
    model = candidate("vit_s16", None, 10)
    whole, probe = (Training(model=model, images=1e6, frozen=frozen) for frozen in (False, True))
    assert probe.flops == 2 * 1e6 * (model.work.macs + 384 * 10)
    assert whole.flops == pytest.approx(3 * probe.flops, rel=0.01)


def test_precisions_accept_the_trainers_names() -> None:
    assert [precision_name(n) for n in ("bf16", "bf16-mixed", "32-true")] == [
        "bf16",
        "bf16",
        "fp32",
    ]
    with pytest.raises(UserError, match="unknown precision 'bf17'; did you mean 'bf16'"):
        precision_name("bf17")
