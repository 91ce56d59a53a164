"""What our optimizers do alike: a closure before the step, a group of parameters at once."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from vit.training.optimizers.groups import check_arguments

Closure = Callable[[], float]


def evaluate(closure: Closure | None) -> float | None:
    """The closure's loss, with gradients, which a step has switched off; None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


class ForeachOptimizer(Optimizer, ABC):
    """Moves all parameters of a group that have gradients together, by torch._foreach_*."""

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        check_arguments(defaults)
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float | None:  # pyright: ignore
        loss = evaluate(closure)
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                self._move(group, params, [p.grad for p in params])
        return loss

    @abstractmethod
    def _move(self, group: dict[str, Any], params: list[Tensor], grads: list[Any]) -> None:
        """Takes the step of the parameters of a group that have gradients."""

    def _state(self, params: list[Tensor], *names: str) -> list[list[Tensor]]:
        """The tensors of the parameters' states, name by name; zeros before the first step."""
        for p in params:
            if not self.state[p]:
                self.state[p] = {name: torch.zeros_like(p) for name in names}
        return [[self.state[p][name] for p in params] for name in names]
