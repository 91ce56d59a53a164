"""SGD with momentum whose weight decay does not go through the momentum."""

# torch._foreach_* are how torch's own optimizers do this, but have no public name.
# pyright: reportPrivateImportUsage=false

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from vit.training.optim import check_arguments


class SGDW(Optimizer):
    """SGD with decoupled weight decay (arXiv:1711.05101, algorithm 1; big_vision).

    p <- (1 - lr * weight_decay) * p - lr * m with m <- momentum * m + gradient. torch.optim.SGD
    adds the decay to the gradient, so that a momentum of 0.9 makes it ten times as strong.

    Args:
        params: Parameters or groups.
        lr: Learning rate.
        momentum: In [0, 1).
        weight_decay: Share of the parameter that goes at each step, for a learning rate of 1.
    """

    def __init__(
        self, params: Any, lr: float = 0.1, momentum: float = 0.9, weight_decay: float = 0.0
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        check_arguments(defaults)
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            for p in params:
                if not self.state[p]:
                    self.state[p] = {"momentum": torch.zeros_like(p)}
            moments = [self.state[p]["momentum"] for p in params]
            torch._foreach_mul_(moments, group["momentum"])
            grads: list[Any] = [p.grad for p in params]
            torch._foreach_add_(moments, grads)
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(params, moments, alpha=-group["lr"])
        return loss
