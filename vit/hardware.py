"""Properties of this machine: description for results, precision, threads, memory.

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
    """The processor's name from the system, such as 'AMD EPYC 9V74 80-Core Processor'."""
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
    known = {name: getattr(torch.cpu, f"_is_{name}_supported", None) for name in names}
    return "".join(f" {name}" for name, test in known.items() if test is not None and test())


def default_precision(accelerator: str) -> tuple[str, str]:
    """Default precision of the Trainer, and the reason.

    bfloat16 only with hardware support; emulated, it is slower than float32.
    """
    import torch

    if accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16-mixed", "the GPU has bfloat16"
        return "32-true", "the GPU has no bfloat16"
    if computes_on_cpu(accelerator) and has_bfloat16():
        return "bf16-mixed", "the CPU has bfloat16"
    return "32-true", "no bfloat16 units were found"


def has_bfloat16() -> bool:
    """Whether the CPU has units for bfloat16 products. Emulated, they are slower than float32."""
    features = cpu_features().split()
    return "avx512_bf16" in features or "amx_tile" in features


def computes_on_cpu(accelerator: str) -> bool:
    """Whether the Trainer's accelerator is the CPU."""
    import torch

    if accelerator != "auto":
        return accelerator == "cpu"
    return not torch.cuda.is_available() and not torch.backends.mps.is_available()


# Below this work per step, OpenMP's barriers cost more than further cores gain: on a busy machine,
# sixty epochs of the digits took ten minutes with two threads and one minute with one.
SMALL_STEP_FLOPS = 10e9


def limit_threads(params: int, tokens: int, batch_size: int) -> bool:
    """Uses one CPU thread for small models, unless OMP_NUM_THREADS is set.

    A training step takes about 6 * params * tokens * batch_size operations.
    """
    import torch

    small = 6 * params * tokens * batch_size < SMALL_STEP_FLOPS
    if small and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
        return True
    return False


SPINS = 10_000
"""Checks of a waiting thread before it sleeps, 8 ns each on an Intel Cascade Lake: longer than most
operations take to follow each other. No check at all was not slower there (benchmarks/LOG.md)."""


def sleep_when_waiting() -> bool:
    """Lets OpenMP's threads sleep when they wait for more than about a tenth of a millisecond.

    GNU's library checks 300,000 times first, milliseconds after every operation. Where another
    program has the core of one thread, the others so keep that thread, and the program, from
    running: on a busy machine two threads computed a tenth to two thirds of what one did. Does
    nothing if the environment says how to wait, or where torch is imported already. Returns whether
    it did something.
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
    """Lets glibc keep freed memory for the next step. Returns whether it does.

    Saves 8 to 14 % of the CPU time of a training step, at the same peak memory. Does nothing if the
    environment sets glibc's options, or with another C library.
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
    """Most bytes that were held so far: on a GPU by tensors, else by this process with its
    libraries. None where the system does not say."""
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Not ru_maxrss, which starts with that of the parent process.
    return _kilobytes("/proc/self/status", "VmHWM")


def available_memory(device: "torch.device | None" = None) -> int:
    """Bytes that this process may still take: of a CUDA device, else of the machine, within the
    limits of its container (control groups, version 2) and its shell (ulimit -v).

    sys.maxsize where the system does not say.
    """
    if device is not None and device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    free = _kilobytes("/proc/meminfo", "MemAvailable") or _machine_memory() or sys.maxsize
    return min(free, _free_in_container(), _free_in_shell())


def _free_in_container() -> int:
    group = Path("/sys/fs/cgroup")
    try:
        free = int((group / "memory.max").read_text())
        free -= int((group / "memory.current").read_text())
        # What was read of files is kept until the memory is needed.
        found = re.search(r"^inactive_file (\d+)", (group / "memory.stat").read_text(), re.M)
    except (OSError, ValueError):  # no limit
        return sys.maxsize
    return max(0, free + int(found[1] if found else 0))


def _free_in_shell() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return sys.maxsize
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(0, limit - (_kilobytes("/proc/self/status", "VmSize") or 0))


def _machine_memory() -> int | None:
    """All bytes of this machine; None on Windows."""
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _kilobytes(path: str, field: str) -> int | None:
    """A size in a file of /proc, in bytes.

    None where there is none: not Linux, or a container whose kernel leaves the field out.
    """
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
