"""From operations to days and money: devices by name, and whole trainings.

Peaks are for dense bfloat16 matrix products, from the vendors' data sheets. Users give prices,
because they change monthly.
"""

from dataclasses import dataclass

from vit.compute.candidate import Candidate
from vit.errors import UserError, did_you_mean

DAY = 86_400
UTILISATION = 0.4
"""Assumed fraction of a device's peak without a measurement; well-tuned trainings of large
Transformers report 0.3 to 0.5."""


@dataclass(frozen=True)
class Device:
    """An accelerator."""

    title: str
    tflops: float
    """Peak of dense bfloat16 matrix products with float32 sums, in 1e12 operations per second."""
    memory: int | None
    """Memory in GiB; None if our memory formulas, which are for CUDA, do not apply."""
    source: str
    """Source of the peak; figures "with sparsity" are halved."""


# Keys are values of `--device`; torch.cuda's device name is matched with the words of the title.
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


def find_device(name: str) -> Device:
    """A device by its key. UserError lists the nearest keys."""
    key = name.lower().replace("_", "-").replace(" ", "-")
    if key not in DEVICES:
        hint = did_you_mean(key, DEVICES) or f"; known: {', '.join(DEVICES)}"
        raise UserError(f"unknown device {name!r}{hint}")
    return DEVICES[key]


def recognise_device(cuda_name: str) -> Device | None:
    """The device for a torch.cuda.get_device_name; None if it is not listed.

    The longest title whose words all occur wins: "NVIDIA H100 PCIe" is not "NVIDIA H100 80GB HBM3".
    """
    words = set(cuda_name.upper().replace("-", " ").split())
    matches = [d for d in DEVICES.values() if set(d.title.upper().split()) <= words]
    return max(matches, key=lambda d: len(d.title), default=None)


@dataclass(frozen=True, kw_only=True)
class Training:
    """A model and the number of its training images."""

    model: Candidate
    images: float
    """Images seen in total: epochs times images per epoch."""
    epochs: float | None = None
    """None if the length is given in steps or images."""
    frozen: bool = False
    """Whether only the head is trained, on a frozen backbone."""

    @property
    def flops(self) -> float:
        """Operations of the whole training."""
        work = self.model.work
        return 2 * self.images * (work.probe_macs if self.frozen else work.training_macs)


def device_days(flops: float, flops_per_second: float) -> float:
    """Days on one device of this sustained speed."""
    return flops / flops_per_second / DAY
