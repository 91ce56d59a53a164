"""Routes of a training run: all measured before the first step, recorded, kept when it resumes."""

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

import torch

from vit.kernels import attention, dense
from vit.kernels.routes import (
    PLAIN,
    Choice,
    chosen_routes,
    fixed_routes,
    recorded_choices,
    route_of,
    use_routes,
)
from vit.models.config import ResNetConfig, ViTConfig

MEASURES = {
    "dense": dense.measure,
    "dense_gelu": dense.measure,
    "tanh_gelu": dense.measure,
    "attention": attention.measure,
}
"""Operation -> the function that measures its keys."""
_DTYPES = {
    "32-true": torch.float32,
    "bf16-mixed": torch.bfloat16,
    "bf16-true": torch.bfloat16,
}


def run_routes(config: ViTConfig | ResNetConfig, precision: str, device: str) -> dict[str, str]:
    """Key -> route of all operations of a model in training and evaluation.

    `precision`: the Trainer's, such as bf16-mixed. Empty for other devices than CPUs, for
    precisions without routes, and for ResNets.
    """
    dtype = _DTYPES.get(precision)
    if dtype is None or device != "cpu" or isinstance(config, ResNetConfig):
        return {}
    name = dense.DTYPES[dtype]
    keys = {f"tanh_gelu.{name}"} if config.activation == "gelu_tanh" else set()
    size = attention.size_class(config.num_tokens)
    for mode in ("training", "inference"):
        keys |= dense.keys(config.width, config.mlp_dim, dtype, mode, config.activation)
        if size is not None:
            keys.add(f"attention.{name}.{mode}.{size}")
    return {key: route_of(key, MEASURES[key.partition(".")[0]]) for key in sorted(keys)}


def all_choices(dtypes: Iterable[torch.dtype]) -> dict[str, Choice]:
    """Key -> choice of every operation in these dtypes on this machine, measured where needed."""
    keys = []
    for name in (dense.DTYPES[dtype] for dtype in dtypes):
        keys += [f"dense.{name}.{m}.{s}" for m in dense.MODES for s in dense.SAMPLES]
        for m, s in product(("inference", "packed"), dense.SAMPLES):
            keys += [f"dense_gelu.{name}.{m}.{s}.{form}" for form in dense.GELUS]
        keys.append(f"tanh_gelu.{name}")
        for m, s in product(("training", "inference"), attention.SIZES):
            keys.append(f"attention.{name}.{m}.{s}")
    routes = {key: route_of(key, MEASURES[key.partition(".")[0]]) for key in keys}
    recorded = recorded_choices()  # without a cache there is no record
    return {key: recorded.get(key, Choice(route)) for key, route in routes.items()}


def recorded_routes_of(saved: Mapping[str, Any]) -> dict[str, str] | None:
    """The routes that a checkpoint records; None where it records none."""
    described = saved.get("vit") or {}
    routes, earlier = described.get("routes"), described.get("float32_route")
    if isinstance(routes, dict):
        return _with_later_keys(routes)
    if earlier not in ("aten", "onednn"):
        return None
    # An earlier version recorded the library of float32 products alone.
    route = PLAIN if earlier == "aten" else earlier
    keys = [f"dense.float32.{m}.{s}" for m in ("training", "inference") for s in ("narrow", "wide")]
    return _with_later_keys(dict.fromkeys(keys, route))


def _with_later_keys(routes: dict[str, str]) -> dict[str, str]:
    """Adds the keys that an earlier version had not: deep layers were wide ones, and oneDNN's
    layers always computed the GELU too."""
    added = {}
    for key, route in routes.items():
        if key.startswith("dense."):
            deep = key.replace(".wide", ".deep")
            added[deep] = route
            for form in () if ".training." in key else dense.GELUS:
                added |= {
                    f"{k.replace('dense.', 'dense_gelu.')}.{form}": route for k in (key, deep)
                }
    return added | routes


def continue_on(recorded: dict[str, str] | None) -> str | None:
    """Fixes the routes that a checkpoint records. Returns a note for the user if it cannot.

    Routes that are already fixed are kept.
    """
    fixed = fixed_routes()
    if recorded and fixed == "auto":
        use_routes(recorded)
        return None
    if recorded is None:
        return (
            "the checkpoint does not record by which routes products were computed; this machine's "
            "do now, and the last bits may differ"
        )
    # Fixed ones count before the first of them is used.
    current = chosen_routes() if isinstance(fixed, str) else fixed
    if fixed == PLAIN:
        current = dict.fromkeys(recorded, PLAIN)
    differing = [k for k, route in recorded.items() if current.get(k, route) != route]
    if differing:
        key = differing[0]
        return (
            f"routes {key}={current[key]} was requested, but the run began with {recorded[key]}: "
            "it does not continue bit by bit"
        )
    return None
