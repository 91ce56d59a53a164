"""Learning-rate schedules: warm-up, then a decay over the rest of the budget."""

import math
from dataclasses import dataclass
from typing import Literal

from vit.errors import AT_LEAST_ONE, NOT_NEGATIVE, SHARE, UserError, check_range
from vit.training.budget import Length

RANGES = {
    "warmup_steps": NOT_NEGATIVE,
    "warmup_epochs": NOT_NEGATIVE,
    "warmup_start": SHARE,
    "final_factor": SHARE,
    "rsqrt_steps": AT_LEAST_ONE,
    "cooldown_steps": AT_LEAST_ONE,
}
SHAPED = ("cosine", "linear", "steps")
"""Decays whose every step depends on the length of the run."""


@dataclass(kw_only=True)
class Schedule:
    """The factor on the optimizer's learning rate at every step."""

    decay: Literal["cosine", "linear", "constant", "rsqrt", "steps"] = "cosine"
    """Shape after the warm-up; cosine and linear end at `final_factor` when the budget is used up,
    rsqrt is 1 / sqrt(1 + steps after the warm-up / rsqrt_steps) (arXiv:2106.04560; big_vision),
    steps divides by 10 at each of `drops`."""
    warmup_steps: int = 0
    """Optimizer steps that rise linearly; with cosine, linear and steps at most half of the run."""
    warmup_epochs: float = 0.0
    """The same in epochs, as DeiT and torchvision count; give one of the two."""
    warmup_start: float | None = None
    """Factor in [0, 1] of the very first step: 0 in Google's codes, 1e-6 / lr in DeiT's. By default
    1 / (warm-up steps + 1), which wastes no step."""
    warmup_counts: bool = False
    """Makes the decay a function of all steps (timm, BiT), so that it has begun when the warm-up
    ends, instead of the steps after the warm-up."""
    per_epoch: bool = False
    """Changes the factor once per epoch (DeiT, torchvision), not at every step."""
    final_factor: float = 0.0
    """Factor at the end of a cosine or linear decay, in [0, 1]."""
    drops: tuple[float, ...] = ()
    """Shares of the budget after which decay=steps divides by 10: (0.3, 0.6, 0.9). The epoch that
    begins there counts for `per_epoch`, as in torch's MultiStepLR."""
    rsqrt_steps: int = 10_000
    """Time scale of rsqrt in optimizer steps."""
    cooldown_steps: int | None = None
    """Last steps of the run (`--cooldown N`), over which constant or rsqrt falls linearly to 0; the
    steps before do not depend on the run's length (warm-up, stable, decay: arXiv:2405.18392)."""
    length: Length | None = None
    """Settles the steps of the run: vit.Budget (`--budget 20m`)."""

    def __post_init__(self) -> None:
        for name, allowed in RANGES.items():
            value = getattr(self, name)
            if value is not None or name not in ("warmup_start", "cooldown_steps"):
                check_range(name, value, allowed)
        for share in self.drops:
            check_range("drops", share, SHARE)
        if self.warmup_steps and self.warmup_epochs:
            raise UserError(
                f"warmup_steps={self.warmup_steps} and warmup_epochs={self.warmup_epochs} exclude "
                "each other; set one of them to 0"
            )
        if self.decay == "steps" and not self.drops:
            raise UserError("decay=steps needs drops, shares of the budget as in (0.3, 0.6, 0.9)")
        used = {
            "final_factor": ("cosine", "linear"),
            "cooldown_steps": ("constant", "rsqrt"),
            "drops": ("steps",),
            "warmup_counts": SHAPED,
        }
        for name, decays in used.items():
            if (value := getattr(self, name)) and self.decay not in decays:
                remedy = f"it is for decay={' or '.join(decays)}"
                raise UserError(f"{name}={value} has no effect on {self.decay} decay; {remedy}")

    @property
    def needs_budget(self) -> bool:
        return self.decay in SHAPED or self.cooldown_steps is not None

    @property
    def needs_epochs(self) -> bool:
        return self.per_epoch or self.warmup_epochs > 0

    def factor(
        self, step: int, total_steps: int | None, steps_per_epoch: int | None = None
    ) -> float:
        """The factor for optimizer step `step` (from 0).

        `total_steps` is the budget in steps; None if it is unlimited, or not settled yet.
        `steps_per_epoch` is for `needs_epochs`.
        """
        warmup = self.warmup_steps
        if self.needs_epochs:
            if steps_per_epoch is None:
                raise UserError("the schedule counts epochs of a loader without a length")
            warmup = warmup or round(self.warmup_epochs * steps_per_epoch)
            if self.per_epoch:
                step -= step % steps_per_epoch
        if total_steps is not None and self.decay in SHAPED:
            warmup = min(warmup, total_steps // 2)
        if step < warmup:
            start = 1 / (warmup + 1) if self.warmup_start is None else self.warmup_start
            factor = start + (1 - start) * step / warmup
        else:
            before = 0 if self.warmup_counts else warmup
            used = (step - before) / max((total_steps or math.inf) - before, 1)
            factor = self._decayed(min(used, 1.0), step - warmup)
        if self.cooldown_steps is not None and total_steps is not None:
            factor *= min(max(total_steps - step, 0) / self.cooldown_steps, 1.0)
        return factor

    def _decayed(self, used: float, steps: int) -> float:
        """The factor after `steps` steps behind the warm-up and the share `used` of the budget."""
        span = 1 - self.final_factor
        if self.decay == "cosine":
            return self.final_factor + span * (1 + math.cos(math.pi * used)) / 2
        if self.decay == "linear":
            return self.final_factor + span * (1 - used)
        if self.decay == "steps":
            return 0.1 ** sum(used > d or (self.per_epoch and used == d) for d in self.drops)
        return 1 / math.sqrt(1 + steps / self.rsqrt_steps) if self.decay == "rsqrt" else 1.0
