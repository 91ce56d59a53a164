"""LAMB and SGDW, by torch's operations on all tensors of a group in one call."""

# torch._foreach_* are how torch's own optimizers do this, but have no public name.
# pyright: reportPrivateImportUsage=false

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from vit.errors import BELOW_ONE, NOT_NEGATIVE, check_range
from vit.training.optimizers.muon import Closure
from vit.training.parts import local
from vit.weights.sealed import is_sharded


class ForeachOptimizer(Optimizer, ABC):
    """Moves all parameters of a group that have gradients together."""

    def __init__(self, params: ParamsT, **defaults: Any) -> None:
        for name, value in defaults.items():
            if name == "betas":
                for beta in value:
                    check_range(name, beta, BELOW_ONE)
            elif name in ("lr", "eps", "weight_decay", "momentum"):
                check_range(name, value, NOT_NEGATIVE)
        super().__init__(params, {**defaults, "step": 0})

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float | None:  # pyright: ignore
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                group["step"] += 1
                grads: list[Any] = [p.grad for p in params]
                self._move(group, params, [local(grad) for grad in grads])
        return loss

    @abstractmethod
    def _move(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        """Takes the step of these parameters of a group; `grads` are the rows of this process."""

    def _state(self, params: list[Tensor], *names: str) -> list[list[Tensor]]:
        """Rows of this process of the states, name by name; zeros before the first step."""
        for p in params:
            if not self.state[p]:
                self.state[p] = {name: torch.zeros_like(p) for name in names}
        return [[local(self.state[p][name]) for p in params] for name in names]


class LAMB(ForeachOptimizer):
    """Algorithm 2 of the paper with Adam's bias correction, as NVIDIA's FusedLAMB has it.

    The step of a parameter that decays is m / (sqrt(v) + eps) + weight_decay * p, rescaled to the
    parameter's norm; others take Adam's. Norms are those of whole parameters, of which fsdp2 sums
    the squares over the processes. FusedLAMB also clips the gradients to a global norm of 1:
    --trainer.gradient_clip_val 1.

    Args:
        betas: Decay of the averages of the gradient and of its square.
        eps: Added to the denominator.
        weight_decay: Added to the step before it is rescaled.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def _move(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        means, squares = self._state(params, "mean", "square")
        like, params = params[0], [local(p) for p in params]
        beta1, beta2 = group["betas"]
        torch._foreach_lerp_(means, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_div_(roots, (1 - beta2 ** group["step"]) ** 0.5)
        torch._foreach_add_(roots, group["eps"])
        updates = torch._foreach_div(means, roots)
        torch._foreach_div_(updates, 1 - beta1 ** group["step"])
        if group["weight_decay"]:
            torch._foreach_add_(updates, params, alpha=group["weight_decay"])
            lengths, steps = norms(params, like), norms(updates, like)
            # A new head is all zeros, and would stay so.
            ratios = torch.where((lengths > 0) & (steps > 0), lengths / steps, 1.0)
            torch._foreach_mul_(updates, list(ratios.unbind()))
        torch._foreach_add_(params, updates, alpha=-group["lr"])


class SGDW(ForeachOptimizer):
    """SGD with decoupled weight decay (arXiv:1711.05101, algorithm 1; big_vision).

    p <- (1 - lr * weight_decay) * p - lr * m with m <- momentum * m + gradient. torch.optim.SGD
    adds the decay to the gradient, so that a momentum of 0.9 makes it ten times as strong.

    Args:
        weight_decay: Share of the parameter that goes at each step, for a learning rate of 1.
    """

    def __init__(
        self, params: ParamsT, lr: float = 0.1, momentum: float = 0.9, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay)

    def _move(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        [moments] = self._state(params, "momentum")
        params = [local(p) for p in params]
        torch._foreach_mul_(moments, group["momentum"])
        torch._foreach_add_(moments, grads)
        torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(params, moments, alpha=-group["lr"])


def norms(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    """Euclidean norms of tensors whose local rows are `parts`, divided as `like` is."""
    lengths = torch.stack(torch._foreach_norm([*parts]))
    if not is_sharded(like):
        return lengths
    squares = lengths.square()
    dist.all_reduce(squares, group=like.device_mesh.get_group())  # pyright: ignore
    return squares.sqrt()
