"""Learning-rate schedules: warm-up, then a decay over the rest of the budget."""

import math
from dataclasses import dataclass
from typing import Literal

from vit.errors import UserError


@dataclass(kw_only=True)
class Schedule:
    """The factor on the optimizer's learning rate at every step."""

    decay: Literal["cosine", "linear", "constant", "rsqrt"] = "cosine"
    """Shape after the warm-up; cosine and linear end at `final_factor` when the budget is used up,
    rsqrt is 1 / sqrt(1 + steps after the warm-up / rsqrt_steps) (arXiv:2106.04560; big_vision)."""
    warmup_steps: int = 0
    """Optimizer steps that rise linearly, the first 1 / (warmup_steps + 1); at most half of a step
    budget."""
    final_factor: float = 0.0
    """Factor at the end of a cosine or linear decay, in [0, 1]."""
    rsqrt_steps: int = 10_000
    """Time scale of rsqrt in optimizer steps."""
    cooldown_fraction: float = 0.0
    """Share in [0, 1] of the budget after the warm-up, at its end, over which constant or rsqrt
    falls linearly to 0."""

    def __post_init__(self) -> None:
        if self.warmup_steps < 0:
            raise UserError(f"warmup_steps={self.warmup_steps} must not be negative")
        for name in ("final_factor", "cooldown_fraction"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name}={getattr(self, name)} is not in [0, 1]")
        if self.rsqrt_steps < 1:
            raise UserError(f"rsqrt_steps={self.rsqrt_steps} must be at least 1")
        ends = self.decay in ("cosine", "linear")
        ignored = "cooldown_fraction" if ends else "final_factor"
        if getattr(self, ignored):
            raise UserError(
                f"{ignored}={getattr(self, ignored)} has no effect on {self.decay} decay"
            )

    @property
    def needs_budget(self) -> bool:
        """Whether the factor depends on how long the run will be."""
        return self.decay in ("cosine", "linear") or self.cooldown_fraction > 0

    def factor(self, step: int, total_steps: int | None, time_used: float = 0.0) -> float:
        """The factor for optimizer step `step` (from 0).

        `total_steps` is the budget in steps (None: unlimited), `time_used` the share of a time
        budget that has passed. The decay follows whichever budget is nearer to its end, so that a
        run cut by the clock still ends on a small learning rate.
        """
        warmup = self.warmup_steps
        if total_steps is not None:
            warmup = min(warmup, total_steps // 2)
        if step < warmup:
            return (step + 1) / (warmup + 1)
        used = time_used
        if total_steps is not None:
            used = max(used, (step - warmup) / max(total_steps - warmup, 1))
        used = min(used, 1.0)
        span = 1 - self.final_factor
        if self.decay == "cosine":
            return self.final_factor + span * (1 + math.cos(math.pi * used)) / 2
        if self.decay == "linear":
            return self.final_factor + span * (1 - used)
        factor = 1.0
        if self.decay == "rsqrt":
            factor = 1 / math.sqrt(1 + (step - warmup) / self.rsqrt_steps)
        if self.cooldown_fraction:
            factor *= min((1 - used) / self.cooldown_fraction, 1.0)
        return factor
