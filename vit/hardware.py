"""Description of this machine, its memory, and the precision and threads that suit it.

Heavy imports are local, because `vit --help` imports this module.
"""

import os
import platform
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import vit

if TYPE_CHECKING:
    import torch


def cpu_name() -> str:
    """Name of the CPU, such as 'AMD EPYC 9V74 80-Core Processor'."""
    return _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()


def _field(path: str, name: str) -> str:
    """The first value of a field in a file of /proc; empty if it has no such field."""
    with suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return ""


def cpu_features() -> str:
    """The CPU's instructions for low precision, such as ' avx512_bf16 amx_tile'."""
    import torch

    names = ("avx512_vnni", "avx512_bf16", "amx_tile")
    return "".join(f" {n}" for n in names if getattr(torch.cpu, f"_is_{n}_supported", bool)())


def default_precision(accelerator: str) -> tuple[str, str]:
    """The default precision of a Trainer, and the reason for it."""
    import torch

    if accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16-mixed", "the GPU has bfloat16"
        return "32-true", "the GPU has no bfloat16"
    automatic = accelerator == "auto" and not torch.backends.mps.is_available()
    if (automatic or accelerator == "cpu") and has_bfloat16():
        return "bf16-mixed", "the CPU has bfloat16"
    return "32-true", "no bfloat16 units were found"


def has_bfloat16() -> bool:
    """True if the CPU multiplies in bfloat16; emulated, that is slower than float32."""
    return bool({"avx512_bf16", "amx_tile"} & {*cpu_features().split()})


SMALL_STEP_FLOPS = 10e9
"""Operations per step below which OpenMP's barriers cost more than further cores gain."""


def is_small_step(operations: float) -> bool:
    """True if one CPU thread is best for a step of a network; OMP_NUM_THREADS makes none small."""
    return operations < SMALL_STEP_FLOPS and "OMP_NUM_THREADS" not in os.environ


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def hardware() -> dict[str, object]:
    """Processor, cores, memory and GPUs, for summary.json."""
    import torch

    facts: dict[str, object] = {
        "cpu": cpu_name(),
        "cores": available_cores(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if (memory := memory_field("/proc/meminfo", "MemTotal")) is not None:
        facts["memory_gb"] = round(memory / 2**30, 1)
    if torch.cuda.is_available():
        facts["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return facts


def peak_memory(device: "torch.device") -> int | None:
    """Peak bytes so far: of tensors on a GPU, else of this process; None if unknown."""
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Not ru_maxrss, which starts with that of the parent process.
    return memory_field("/proc/self/status", "VmHWM")


def memory_field(path: str, name: str) -> int | None:
    """Bytes, from a field in kB of a file of /proc; None if it has no such field."""
    value = _field(path, name)
    return int(value.split()[0]) * 1024 if value else None


def versions() -> dict[str, str]:
    """Versions of this package and its main dependencies."""
    from importlib.metadata import version

    names = ("torch", "torchvision", "lightning", "torchmetrics", "pillow")
    installed = {name: version(name) for name in names}
    return {"python": platform.python_version(), "vit": vit.__version__, **installed}
