"""Choice of the CPU library for float32 products: measured once per machine, fixed for a run.

The libraries differ in the last bits. If every process measured for itself, the choice could change
on a busy machine, and a resumed run would end with other weights. Therefore the measurement is
cached, and a run keeps its route: `vit fit` writes it to config.yaml and to checkpoints.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

import torch

from vit.cache import cache_directory
from vit.errors import UserError
from vit.hardware import cpu_name
from vit.locking import FileLock, Locked
from vit.writing import write_json

Float32Route = Literal["aten", "onednn"]
"""`aten`: PyTorch's default, which is MKL on x86; `onednn`: oneDNN's inner product."""

# Another process takes about 0.1 s for its measurement.
WAIT_SECONDS = 30

_forced: Float32Route | None = None
_measured: dict[str, Float32Route] = {}


def use_float32_route(route: str | None) -> None:
    """Fixes the route for this process; None returns to the one recorded for the machine.

    Raises UserError for an unknown route.
    """
    global _forced
    if route is None:
        _forced = None
    else:
        _forced = _known(route)


def is_fixed() -> bool:
    """Whether `use_float32_route` has fixed the route of this process."""
    return _forced is not None


def float32_route(measure: Callable[[], Float32Route]) -> Float32Route:
    """The route of this process: the fixed one, otherwise the machine's, which `measure` returns.

    It is recorded by processor, instruction set, PyTorch version and number of threads.
    """
    if _forced is not None:
        return _forced
    key = _machine()
    if key not in _measured:
        _measured[key] = _recorded(cache_directory() / "routes.json", key, measure)
    return _measured[key]


def _known(route: str) -> Float32Route:
    for name in get_args(Float32Route):
        if route == name:
            return name
    raise UserError(f"float32_route={route!r}: choose {' or '.join(get_args(Float32Route))}")


def _machine() -> str:
    threads = torch.get_num_threads()
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{cpu_name()}, {capability}, torch {torch.__version__}, {threads} threads"


def _recorded(file: Path, key: str, measure: Callable[[], Float32Route]) -> Float32Route:
    """The choice in `file`; measured and written if it is missing."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_name(".routes.lock"), wait_seconds=WAIT_SECONDS):
            choices = _read(file)
            if key not in choices:
                choices[key] = measure()
                write_json(file, dict(choices))
            return choices[key]
    except (OSError, Locked) as error:
        print(
            f"note: {file} cannot be written ({error}); this process measures for itself which "
            "library computes float32, and another one may choose otherwise",
            file=sys.stderr,
        )
        return measure()


def _read(file: Path) -> dict[str, Float32Route]:
    """Content of the file; empty if it is damaged."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    return {str(key): route for key, route in content.items() if route in get_args(Float32Route)}
