"""From operations to days and money: devices by name, and whole trainings.

Peaks are those of dense bfloat16 matrix products in the vendors' data sheets. Prices are the
user's: they change by the month.
"""

from dataclasses import dataclass

from vit.compute.candidate import Candidate
from vit.errors import UserError, did_you_mean

DAY = 86_400
UTILISATION = 0.4
"""Share of its peak that a device is taken to reach where nothing was measured; well-tuned
trainings of large Transformers report 0.3 to 0.5."""


@dataclass(frozen=True)
class Device:
    """An accelerator that can be rented."""

    title: str
    tflops: float
    """Peak of dense bfloat16 matrix products with float32 sums, in 1e12 operations a second."""
    memory: int | None
    """GiB; None where our memory formulas, which are for CUDA, do not apply."""
    source: str
    """Where the peak is published; data sheets that print a figure "with sparsity" are halved."""


# Keys are what `--device` takes; torch.cuda's name of a device is matched with the title's words.
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
    """A device by its key. UserError lists the nearest."""
    key = name.lower().replace("_", "-").replace(" ", "-")
    if key not in DEVICES:
        hint = did_you_mean(key, DEVICES) or f"; known: {', '.join(DEVICES)}"
        raise UserError(f"unknown device {name!r}{hint}")
    return DEVICES[key]


def recognise_device(cuda_name: str) -> Device | None:
    """The device that torch.cuda.get_device_name describes; None for one that is not listed.

    The longest title whose words all occur wins: "NVIDIA H100 PCIe" is not "NVIDIA H100 80GB HBM3".
    """
    words = set(cuda_name.upper().replace("-", " ").split())
    found = [d for d in DEVICES.values() if set(d.title.upper().split()) <= words]
    return max(found, key=lambda d: len(d.title), default=None)


@dataclass(frozen=True, kw_only=True)
class Training:
    """A model and all the images that it is trained on."""

    model: Candidate
    images: float
    """Images seen in all: epochs times the images of one."""
    epochs: float | None = None
    """None where the length is given in steps, or known from images seen."""
    frozen: bool = False
    """Whether the head alone learns, on features of a frozen backbone."""

    @property
    def flops(self) -> float:
        """Operations of the whole training."""
        work = self.model.work
        return 2 * self.images * (work.probe_macs if self.frozen else work.training_macs)


def device_days(flops: float, flops_per_second: float) -> float:
    """Days that one device of this sustained speed needs."""
    return flops / flops_per_second / DAY
