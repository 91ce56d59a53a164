"""LAMB (arXiv:1904.00962): Adam whose step on each kernel is as long as the kernel is large."""

# torch._foreach_* are how torch's own optimizers do this, but have no public name.
# pyright: reportPrivateImportUsage=false

from typing import Any

import torch
from torch import Tensor

from vit.training.optimizers.foreach import ForeachOptimizer


class LAMB(ForeachOptimizer):
    """Algorithm 2 of the paper with Adam's bias correction, as NVIDIA's FusedLAMB has it.

    The step of a parameter is m / (sqrt(v) + eps) + weight_decay * p, and where it decays, it is
    rescaled to the parameter's norm. Parameters without decay, which are the biases, norms, tokens
    and positions, take Adam's step. FusedLAMB also clips the gradients to a global norm of 1; here
    that is the Trainer's, --trainer.gradient_clip_val 1.

    Args:
        params: Parameters or groups.
        lr: Learning rate.
        betas: Decay of the averages of the gradient and of its square.
        eps: Added to the denominator.
        weight_decay: Added to the step before it is rescaled, so that it, too, is a share of it.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "step": 0}
        super().__init__(params, defaults)

    def _move(self, group: dict[str, Any], params: list[Tensor], grads: list[Any]) -> None:
        group["step"] += 1
        means, squares = self._state(params, "mean", "square")
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
            lengths = torch.stack(torch._foreach_norm(params))
            steps = torch.stack(torch._foreach_norm(updates))
            # A new head is all zeros, and would stay so.
            ratios = torch.where((lengths > 0) & (steps > 0), lengths / steps, 1.0)
            torch._foreach_mul_(updates, list(ratios.unbind()))
        torch._foreach_add_(params, updates, alpha=-group["lr"])
