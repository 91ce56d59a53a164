"""Accelerators of devices.csv: dense bfloat16 peaks of data sheets, "with sparsity" halved, and the
memory that PyTorch sees of them, less than a data sheet's."""

import csv
from pathlib import Path
from typing import NamedTuple

STRATEGIES = ("ddp", "fsdp2")  # of devices that train together
UTILISATION = 0.4  # Assumed share of the peak: trainings of large Transformers reach 0.3 to 0.5.


class Device(NamedTuple):
    """Peak in 1e12 operations per second, memory in GiB (None: not that of a GPU)."""

    title: str
    tflops: float
    memory: float | None
    source: str


with Path(__file__).with_name("devices.csv").open(newline="", encoding="utf-8") as _rows:
    DEVICES = {
        name: Device(title, float(tflops), float(memory) if memory else None, source)
        for name, title, tflops, memory, source in list(csv.reader(_rows))[1:]
    }
