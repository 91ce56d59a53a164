"""Measures which route of an operation is fastest on this machine with errors like PyTorch's own.

Every candidate computes a sample of the key's size class. One whose error against float64 exceeds
ERROR_FACTOR times the plain route's is out. The others are timed in turns with the plain one;
it stays unless the median gain exceeds twice the spread of that median, and SMALLEST_GAIN.
"""

import time
from collections.abc import Callable
from statistics import median, quantiles

import torch
from torch import Tensor

from vit.kernels.routes import PLAIN, Choice

Call = Callable[[], list[Tensor]]
"""Computes results, and gradients in training, of a sample."""

ERROR_FACTOR = 1.2
"""For one operation. Most of a network's error comes from elsewhere: that of logits and gradients
stays within 1.1 times the plain one's."""
SMALLEST_GAIN = 0.03
"""Smaller ones do not carry over from a sample to a model, whose sizes and caches differ."""
ROUNDS = 5, 25
"""Least and most paired trials of a candidate."""
BUDGET = 0.06
"""Seconds for the trials of one candidate, above the least number of them."""


def best(candidates: dict[str, Call], exact: list[Tensor], only: str | None = None) -> Choice:
    """The best candidate, PLAIN unless another one is clearly faster, and the others' gains.

    `exact`: the results in float64. A candidate that raises does not exist in this build. `only`:
    the candidate to take if it exists with errors in bounds, whatever its speed.
    """
    plain = candidates[PLAIN]
    limit = error(plain, exact) * ERROR_FACTOR
    within = {
        name: error(call, exact) <= limit
        for name, call in candidates.items()
        if name != PLAIN and only in (None, name)
    }
    if only is not None:
        return Choice(only if within.get(only) else PLAIN)
    gains = {
        name: paired_gain(plain, candidates[name]) if exists else None
        for name, exists in within.items()
    }
    clear = {
        name: pair[0]
        for name, pair in gains.items()
        if pair and pair[0] - 1 > max(2 * pair[1], SMALLEST_GAIN)
    }
    return Choice(max(clear, key=clear.__getitem__, default=PLAIN), gains)


def error(call: Call, exact: list[Tensor]) -> float:
    """Root mean square of the results' relative errors; infinite where there are none."""
    try:
        results = call()
    except (RuntimeError, AttributeError, NotImplementedError):
        return float("inf")  # missing in this build of PyTorch or on this CPU
    errors = [
        ((result.double() - e).norm() / e.norm()).item()
        for result, e in zip(results, exact, strict=True)
    ]
    whole = (sum(e * e for e in errors) / len(errors)) ** 0.5
    return whole if whole == whole else float("inf")  # not a number


def paired_gain(plain: Call, other: Call) -> tuple[float, float]:
    """Median over paired trials of the ratio of times, and the standard error of that median."""
    # CPU time of one thread is disturbed least by other processes; several threads overlap.
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    least, most = ROUNDS
    ratios: list[float] = []
    started = time.perf_counter()
    while len(ratios) < least or (len(ratios) < most and time.perf_counter() - started < BUDGET):
        times = []
        for call in (plain, other):
            start = clock()
            call()
            times.append(clock() - start)
        ratios.append(times[0] / max(times[1], 1e-9))
    low, _, high = quantiles(ratios, n=4)
    # Of a normal distribution: quartiles 1.35 sigma apart, the median's error 1.25 sigma / sqrt n.
    return median(ratios), (high - low) / 1.35 * 1.25 / len(ratios) ** 0.5
