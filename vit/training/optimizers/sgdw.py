"""SGD with momentum whose weight decay does not go through the momentum."""

# torch._foreach_* are how torch's own optimizers do this, but have no public name.
# pyright: reportPrivateImportUsage=false

from typing import Any

import torch
from torch import Tensor

from vit.training.optimizers.foreach import ForeachOptimizer


class SGDW(ForeachOptimizer):
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
        super().__init__(params, defaults)

    def _move(self, group: dict[str, Any], params: list[Tensor], grads: list[Any]) -> None:
        [moments] = self._state(params, "momentum")
        torch._foreach_mul_(moments, group["momentum"])
        torch._foreach_add_(moments, grads)
        torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(params, moments, alpha=-group["lr"])
