"""Which route computes an operation: measured once per machine, recorded, fixed for a run.

An operation is named by a key such as "dense.float32.training.wide"; a route by a word: "plain" is
PyTorch's own operation, which every other route must beat (vit/kernels/trials.py). Routes differ in
the last bits. If every process measured for itself, the choice could change on a busy machine, and
a resumed run would end with other weights. Therefore a measurement is kept in the cache, and a run
keeps its routes: `vit fit` writes them to config.yaml and to checkpoints.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol

import torch

from vit.cache import cache_directory
from vit.errors import UserError
from vit.hardware import cpu_features, cpu_name
from vit.locking import FileLock, Locked
from vit.writing import write_json

PLAIN = "plain"
"""PyTorch's own operation."""
ROUTES = {
    "dense": (PLAIN, "onednn"),
    "dense_gelu": (PLAIN, "onednn"),
    "tanh_gelu": (PLAIN, "onednn"),
    "attention": (PLAIN, "products", "mixed"),
}
"""Operation -> its routes."""


class Choice(NamedTuple):
    """The outcome of a measurement."""

    route: str
    gains: Mapping[str, tuple[float, float] | None] = MappingProxyType({})
    """Other route -> its speed over the plain route's, and the standard error of that; None for
    one that is missing in this build of PyTorch or whose errors are too large."""


class Measure(Protocol):
    """Chooses the best route of a key; `only` that route if it exists with errors in bounds."""

    def __call__(self, key: str, only: str | None = None) -> Choice: ...


MEASUREMENT = 2
"""Version of the samples, candidates and rule of the choice (vit/kernels/trials.py). A machine
measures again when it changes; runs keep their own routes."""

# Another process takes about a second for all its measurements.
WAIT_SECONDS = 30

_fixed: dict[str, str] = {}
_chosen: dict[str, str] = {}
# (key, requested route) -> the route that this process can compute by.
_possible: dict[tuple[str, str], str] = {}
_all_plain = False


def use_routes(routes: Mapping[str, str] | str | None) -> None:
    """Fixes routes for this process.

    `routes`: key -> route; "plain" for PyTorch's operations alone; None or "auto" for the machine's
    own. Raises UserError for an unknown key or route.
    """
    global _all_plain
    if isinstance(routes, Mapping):
        for key, route in routes.items():
            check(key, route)
    elif routes not in (None, "auto", PLAIN):
        raise UserError(f"routes={routes!r}: choose auto, plain, or KEY: ROUTE for single ones")
    _fixed.clear()
    _chosen.clear()
    _all_plain = routes == PLAIN
    if isinstance(routes, Mapping):
        _fixed.update(routes)


def fixed_routes() -> dict[str, str] | str:
    """What `use_routes` has fixed: "auto", "plain" or key -> route."""
    return PLAIN if _all_plain else dict(_fixed) or "auto"


def chosen_routes() -> dict[str, str]:
    """Key -> route of all that this process has computed by or asked for so far."""
    return dict(sorted(_chosen.items()))


def check(key: str, route: str) -> None:
    """UserError for an unknown key or route."""
    operation = str(key).partition(".")[0]
    if operation not in ROUTES:
        raise UserError(f"routes: {key!r} is not a key, such as dense.float32.training.wide")
    if route not in ROUTES[operation]:
        raise UserError(f"routes: {key}={route!r}: choose {' or '.join(ROUTES[operation])}")


def route_of(key: str, measure: Measure) -> str:
    """The route of a key: fixed, or recorded for this machine, or now measured and recorded.

    A fixed route that does not exist in this build, or is not exact on this CPU, becomes PLAIN.
    """
    route = _chosen.get(key)
    if route is None:
        fixed = PLAIN if _all_plain else _fixed.get(key)
        if fixed is None:
            route = _recorded(key, measure).route
            _possible[key, route] = route
        else:
            if (key, fixed) not in _possible:
                _possible[key, fixed] = PLAIN if fixed == PLAIN else measure(key, fixed).route
            route = _possible[key, fixed]
        _chosen[key] = route
    return route


def machine() -> str:
    """What a measurement depends on besides its key."""
    threads = torch.get_num_threads()
    capability = torch.backends.cpu.get_cpu_capability()
    features = cpu_features()
    return (
        f"{cpu_name()}, {capability}{features}, torch {torch.__version__}, {threads} threads, "
        f"measurement {MEASUREMENT}"
    )


def record_file() -> Path:
    """Where the choices of this machine are kept."""
    return cache_directory() / "routes.json"


def recorded_choices() -> dict[str, Choice]:
    """Key -> choice of all that has been measured on this machine."""
    return _read(record_file()).get(machine(), {})


def _recorded(key: str, measure: Measure) -> Choice:
    """The choice in the file; measured and written if it is missing."""
    file, here = record_file(), machine()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_name(".routes.lock"), wait_seconds=WAIT_SECONDS):
            machines = _read(file)
            choices = machines.setdefault(here, {})
            if key not in choices:
                choices[key] = measure(key)
                _write(file, machines)
            return choices[key]
    except (OSError, Locked) as error:
        print(
            f"note: {file} cannot be written ({error}); this process measures for itself how it "
            f"computes {key}, and another one may choose otherwise",
            file=sys.stderr,
        )
        return measure(key)


def _read(file: Path) -> dict[str, dict[str, Choice]]:
    """Content of the file, less what is damaged."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    return {
        name: {key: choice for key, saved in choices.items() if (choice := _choice(key, saved))}
        for name, choices in content.items()
        if isinstance(choices, dict)
    }


def _choice(key: str, saved: object) -> Choice | None:
    """A choice as `_write` saves it; None for anything else."""
    if not isinstance(saved, dict):
        return None
    route, gains = saved.get("route"), saved.get("gains")
    if route not in ROUTES.get(key.partition(".")[0], ()) or not isinstance(gains, dict):
        return None
    pairs = {
        n: (p[0], p[1]) if isinstance(p, list) and len(p) == 2 else None for n, p in gains.items()
    }
    return Choice(str(route), pairs)


def _write(file: Path, machines: Mapping[str, Mapping[str, Choice]]) -> None:
    write_json(
        file,
        {
            name: {
                key: {"route": choice.route, "gains": dict(choice.gains)}
                for key, choice in choices.items()
            }
            for name, choices in machines.items()
        },
    )
