"""Routes fixed for a test."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from vit.kernels import attention, dense, routes
from vit.kernels.routes import use_routes


@contextmanager
def every_route(layers: str, scores: str = "plain") -> Iterator[None]:
    """Dense layers and the tanh GELU by one route, attention by another."""
    use_routes(None)
    # As if they had been measured: fixed ones would be checked first.
    routes._chosen.update(routes_of(dense.DTYPES.values(), layers, scores))
    try:
        yield
    finally:
        use_routes(None)


def routes_of(names: Iterable[str], layers: str, scores: str) -> dict[str, str]:
    """Key -> route for dtypes of these names."""
    names, sizes = list(names), dense.SAMPLES
    chosen = {f"dense.{n}.{m}.{s}": layers for n in names for m in dense.MODES for s in sizes}
    chosen |= {
        f"dense_gelu.{n}.{m}.{s}.{form}": layers
        for n in names
        for m in dense.MODES[1:]
        for s in sizes
        for form in dense.GELUS
    }
    chosen |= {f"tanh_gelu.{name}": layers for name in names}
    for mode in ("training", "inference"):
        route = "products" if (scores, mode) == ("mixed", "inference") else scores
        chosen |= {f"attention.{n}.{mode}.{s}": route for n in names for s in attention.SIZES}
    return chosen


def exists(dtype: torch.dtype) -> bool:
    """Whether this machine has oneDNN's layers of a dtype, with errors in bounds."""
    name = dense.DTYPES[dtype]
    return all(
        dense.measure(f"dense.{name}.{m}.narrow", "onednn").route == "onednn" for m in dense.MODES
    )
