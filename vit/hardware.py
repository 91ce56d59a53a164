"""This machine: its description, the precision and threads that suit it, its memory.

Heavy imports are local, because `vit --help` imports this module.
"""

import os
import platform
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import vit

if TYPE_CHECKING:
    import torch


def cpu_name() -> str:
    """Such as 'AMD EPYC 9V74 80-Core Processor'."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _cpuinfo(field: str) -> str:
    """A field of the first processor in /proc/cpuinfo; empty without it."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith(field):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux
    return ""


def cpu_features() -> str:
    """The CPU's units for products in low precision, such as ' avx512_bf16 amx_tile'."""
    import torch

    names = ("avx512_vnni", "avx512_bf16", "amx_tile")
    return "".join(f" {n}" for n in names if getattr(torch.cpu, f"_is_{n}_supported", bool)())


def default_precision(accelerator: str) -> tuple[str, str]:
    """The precision of a Trainer that was given none, and the reason."""
    import torch

    if accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16-mixed", "the GPU has bfloat16"
        return "32-true", "the GPU has no bfloat16"
    if computes_on_cpu(accelerator) and has_bfloat16():
        return "bf16-mixed", "the CPU has bfloat16"
    return "32-true", "no bfloat16 units were found"


def has_bfloat16() -> bool:
    """The CPU has units for bfloat16 products; emulated, they are slower than float32."""
    return bool({"avx512_bf16", "amx_tile"} & {*cpu_features().split()})


def computes_on_cpu(accelerator: str) -> bool:
    """The Trainer's accelerator is the CPU."""
    import torch

    if accelerator != "auto":
        return accelerator == "cpu"
    return not torch.cuda.is_available() and not torch.backends.mps.is_available()


# Below this work per step, OpenMP's barriers cost more than further cores gain: on a busy machine,
# sixty epochs of the digits took ten minutes with two threads and one minute with one.
SMALL_STEP_FLOPS = 10e9


def limit_threads(params: int, tokens: int, batch_size: int) -> None:
    """One CPU thread for a small training step, unless OMP_NUM_THREADS is set."""
    import torch

    operations = 6 * params * tokens * batch_size
    if operations < SMALL_STEP_FLOPS and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


SPINS = 10_000
"""Checks of a waiting thread before it sleeps, 8 ns each on an Intel Cascade Lake: longer than most
operations take to follow each other. No check at all was not slower there (benchmarks/LOG.md)."""


def sleep_when_waiting() -> bool:
    """Lets OpenMP's threads sleep when they wait for more than about a tenth of a millisecond.

    GNU's library checks 300,000 times first, and so keeps other programs from the core: on a busy
    machine two threads computed a tenth to two thirds of what one did. Returns False, and does
    nothing, if the environment says how to wait or torch is imported already.
    """
    chosen = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")
    if "torch" in sys.modules or any(name in os.environ for name in chosen):
        return False
    os.environ["GOMP_SPINCOUNT"] = str(SPINS)
    return True


# glibc's mallopt, from <malloc.h>.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MMAP_THRESHOLD = 2**30
"""Freed blocks of at least this size return to the system. glibc's limit is at most 32 MiB, so the
tensors of every step would be returned and their pages zeroed again."""


def keep_memory() -> bool:
    """Lets glibc keep freed memory for the next step: 8 to 14 % less CPU time, the same peak.

    Returns False, and does nothing, if the environment sets glibc's options, or with another C
    library.
    """
    chosen = ("GLIBC_TUNABLES", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
    if sys.platform != "linux" or any(name in os.environ for name in chosen):
        return False
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD) and mallopt(M_TRIM_THRESHOLD, 2**31 - 1))


def hardware() -> dict[str, Any]:
    """Processor, cores, memory and GPUs, for summary.json."""
    import torch

    facts: dict[str, Any] = {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if (memory := _machine_memory()) is not None:
        facts["memory_gb"] = round(memory / 2**30, 1)
    if torch.cuda.is_available():
        facts["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return facts


def peak_memory(device: "torch.device") -> int | None:
    """Most bytes held so far: on a GPU by tensors, else by this process; None if unknown."""
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Not ru_maxrss, which starts with that of the parent process.
    return _kilobytes("/proc/self/status", "VmHWM")


def available_memory() -> int:
    """Bytes that this process may still take, within its container (control groups, version 2).

    sys.maxsize where the system does not say.
    """
    free = _kilobytes("/proc/meminfo", "MemAvailable") or _machine_memory() or sys.maxsize
    return min(free, _free_in_container())


def _free_in_container() -> int:
    group = Path("/sys/fs/cgroup")
    try:
        free = int((group / "memory.max").read_text())
        free -= int((group / "memory.current").read_text())
        # What was read of files is kept until the memory is needed.
        cached = re.search(r"^inactive_file (\d+)", (group / "memory.stat").read_text(), re.M)
    except (OSError, ValueError):  # no limit
        return sys.maxsize
    return max(0, free + int(cached[1] if cached else 0))


def _machine_memory() -> int | None:
    """All bytes of this machine; None on Windows."""
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _kilobytes(path: str, field: str) -> int | None:
    """Bytes by a file of /proc; None if not Linux, or if its kernel leaves the field out."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith(f"{field}:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def versions() -> dict[str, str]:
    """Versions of this package and its main dependencies."""
    from importlib.metadata import version

    names = ("torch", "torchvision", "lightning", "torchmetrics", "pillow")
    installed = {name: version(name) for name in names}
    return {"python": platform.python_version(), "vit": vit.__version__, **installed}
