"""Accelerators: dense bfloat16 peaks from data sheets, those "with sparsity" halved."""

from typing import NamedTuple

STRATEGIES = ("ddp", "fsdp2")  # of devices that train together
UTILISATION = 0.4  # Assumed share of the peak: trainings of large Transformers reach 0.3 to 0.5.


class Device(NamedTuple):
    """Peak in 1e12 operations per second, memory in GiB (None: not that of a GPU)."""

    title: str
    tflops: float
    memory: int | None
    source: str


DEVICES = {
    "a100": Device("NVIDIA A100 80GB", 312, 80, "A100 data sheet"),
    "a100-40gb": Device("NVIDIA A100 40GB", 312, 40, "A100 data sheet"),
    "h100": Device("NVIDIA H100 80GB HBM3", 989.4, 80, "H100 data sheet, SXM"),
    "h100-pcie": Device("NVIDIA H100 PCIe", 756, 80, "H100 data sheet, PCIe"),
    "h200": Device("NVIDIA H200", 989.4, 141, "H200 data sheet, SXM"),
    "b200": Device("NVIDIA B200", 2250, 180, "DGX B200 data sheet, an eighth"),
    "l4": Device("NVIDIA L4", 121, 24, "L4 data sheet"),
    "l40s": Device("NVIDIA L40S", 362, 48, "L40S data sheet"),
    "a10": Device("NVIDIA A10", 125, 24, "A10 data sheet"),
    "rtx3090": Device("NVIDIA GeForce RTX 3090", 71, 24, "GA102 white paper, appendix"),
    "rtx4090": Device("NVIDIA GeForce RTX 4090", 165.2, 24, "Ada white paper, appendix"),
    "mi300x": Device("AMD Instinct MI300X", 1307.4, 192, "MI300X data sheet"),
    "tpu-v3-core": Device("TPU v3, one core", 61.5, None, "Cloud TPU documentation, half a chip"),
}
