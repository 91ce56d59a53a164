"""Synchronous successive halving (arXiv:1502.07943) with whole trainings, within a time: a rung
trains its cells from the start, the next one a third of them, three times as long."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from vit.errors import UserError

ETA, RUNGS, SEEDS = 3, 3, 3
MOST_CELLS, USUAL_CELLS, FEWEST_CELLS = 27, 9, 3
"""Cells of the first rung: at most; as many as the length is shortened for; at least."""
FEWEST_STEPS = 9
FINAL_SHARE = 0.6
"""Share of the budget for the winner and the default, SEEDS runs each."""


@dataclass(frozen=True)
class Timing:
    """Seconds of a run of the default: before the first step and after the last one, and a step.
    A cell has `parts` runs, which machines of one speed divide."""

    start: float
    step: float
    parts: int = 1
    machines: int = 1

    def seconds(self, runs: int, steps: int) -> float:
        """Time of so many runs."""
        return math.ceil(runs / self.machines) * (self.start + steps * self.step)

    def final_seconds(self, steps: int) -> float:
        """Time of the final runs."""
        return self.seconds(2 * SEEDS, steps)

    def budget(self, cells: int, steps: int, used: float = 0.0) -> float:
        """Time that a search and its final runs need, where a cell takes as long as the default;
        `used` was taken before."""
        search = (self.seconds(n * self.parts, length) for n, length in rungs(cells, steps))
        return max(
            self.final_seconds(steps) / FINAL_SHARE, (used + sum(search)) / (1 - FINAL_SHARE)
        )


def rungs(cells: int, steps: int) -> list[tuple[int, int]]:
    """(cells, steps) of each rung of a search that begins with `cells` and ends with `steps`. Two
    cells at least, as the default is one."""
    shares = [ETA**k for k in range(RUNGS)]
    counts = [max(cells // share, min(cells, 2)) for share in shares]
    return [(n, max(steps // s, 1)) for n, s in zip(counts, reversed(shares), strict=True)]


def planned(
    budget: float, timing: Timing, most_steps: int, most_cells: int, used: float = 0.0
) -> tuple[int, int]:
    """Cells and steps: USUAL_CELLS, or fewer if they do not fit even at FEWEST_STEPS; then the
    longest trainings, at most `most_steps`; then as many cells as fit. `used`: seconds that are
    gone.

    UserError for a budget that is too small, with one that is enough.
    """

    def fits(cells: int, steps: int) -> bool:
        return timing.budget(cells, steps, used) <= budget

    fewest, most_cells = min(FEWEST_STEPS, most_steps), min(most_cells, MOST_CELLS)
    counts = range(min(USUAL_CELLS, most_cells), FEWEST_CELLS - 1, -1)
    if (usual := next((n for n in counts if fits(n, fewest)), None)) is not None:
        steps = next(n for n in range(most_steps, fewest - 1, -1) if fits(usual, n))
        cells = range(most_cells, usual - 1, -1)
        return next(n for n in cells if fits(n, steps)), steps
    raise UserError(
        f"--budget of {budget:.0f} s is too small: {fewest} steps of the default recipe take "
        f"{timing.start + fewest * timing.step:.0f} s (another --run_dir measures again); give at "
        f"least {math.ceil(timing.budget(FEWEST_CELLS, fewest, used) / 60)}m"
    )


def survivors(scores: Mapping[str, float | None], count: int, default: str) -> list[str]:
    """The `count` best of a rung, best first, earlier ones before equal later ones; the default in
    the last place if it is not among them. A score is None for a run without one."""
    values = {name: score for name, score in scores.items() if score is not None}
    best = sorted(values, key=lambda name: -values[name])[:count]
    return best if default in best or default not in values else [*best[: count - 1], default]
