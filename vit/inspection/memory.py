"""Peak memory of a computation, where the system gives it."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from vit.hardware import process_bytes

_RESET = Path("/proc/self/clear_refs")


@contextmanager
def peak_memory(device: torch.device) -> Iterator[list[int]]:
    """A list that afterwards holds the peak in bytes above the memory before.

    Of the GPU's allocator on CUDA, of the process on Linux; elsewhere the list stays empty.
    """
    peak: list[int] = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield peak
        peak.append(torch.cuda.max_memory_allocated(device) - before)
        return
    before = None
    with suppress(OSError):  # not Linux, or a container that refuses it
        _RESET.write_text("5")  # the high-water mark restarts at the present memory
        before = process_bytes("VmRSS")
    yield peak
    highest = process_bytes("VmHWM")
    if before is not None and highest is not None:
        peak.append(max(0, highest - before))
