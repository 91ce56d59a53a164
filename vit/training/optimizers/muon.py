"""Muon on the hidden matrices, AdamW on everything else, as one optimizer.

Muon (K. Jordan et al., 2024, "Muon: an optimizer for hidden layers in neural networks") replaces
the momentum of each matrix by the nearest orthogonal one. As its authors advise, and unlike
torch.optim.Muon, queries, keys and values are a matrix each, and the filters of a convolution are
the rows of one.
Shapes: r rows, c columns, s matrices of one shape.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.optim import AdamW

from vit.hardware import has_bfloat16
from vit.shapes import Float
from vit.training.optimizers.param_groups import Group
from vit.training.parts import full, part

# The quintic polynomial that the authors iterate: steep at zero, near one from 0.7 to 1.2.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
AT_ONCE = 2**25  # numbers that are made orthogonal together: memory

Closure = Callable[[], float]


class MuonWithAdamW(AdamW):
    """AdamW whose groups of hidden matrices take Muon's step.

    The rate of an r x c matrix is lr sqrt(max(1, r / c)), the authors' rule, here also of filters.
    With fsdp2 the updates are gathered, and every process makes all of them orthogonal.

    Args:
        params: Groups with `names`, as `param_groups` makes them.
        lr: Learning rate of Muon, in the units of its authors.
        adamw_lr: Learning rate of AdamW.
        weight_decay: Decoupled decay of both, where a group does not say otherwise.
        momentum: Momentum of Muon, with Nesterov's correction.
        betas: Decay rates of AdamW's averages.
    """

    def __init__(
        self,
        params: Iterable[Group],
        lr: float = 0.02,
        adamw_lr: float = 0.003,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
    ) -> None:
        groups: list[Group] = []
        for group in params:
            named = list(zip(group["names"], group["params"], strict=True))
            decays = group.get("weight_decay") != 0  # tokens and tables are matrices in shape alone
            for muon, rate in ((True, lr), (False, adamw_lr)):
                pairs = [(n, p) for n, p in named if (decays and is_hidden_matrix(n, p)) == muon]
                if pairs:
                    names, chosen = (list(column) for column in zip(*pairs, strict=True))
                    part = {"params": chosen, "names": names, "muon": muon, "lr": rate}
                    groups.append({"momentum": momentum, **group, **part})
        super().__init__(groups, lr=adamw_lr, betas=betas, weight_decay=weight_decay, fused=True)
        self._step_supports_amp_scaling = False  # Muon takes unscaled gradients

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float | None:  # pyright: ignore
        loss = None if closure is None else torch.enable_grad()(closure)()
        groups = self.param_groups
        for group in groups:
            if group["muon"]:
                self._move(group)
        try:
            self.param_groups = [group for group in groups if not group["muon"]]
            super().step()
        finally:  # also after running out of memory: --data.batch_size auto goes on
            self.param_groups = groups
        return loss

    def _move(self, group: Group) -> None:
        waiting: defaultdict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for name, parameter in zip(group["names"], group["params"], strict=True):
            if parameter.grad is None:
                continue
            state, momentum = self.state[parameter], group["momentum"]
            if not state:  # AdamW looks for `step` when a state is loaded
                state |= {"step": torch.zeros(()), "momentum": torch.zeros_like(parameter)}
            buffer = state["momentum"].lerp_(parameter.grad, 1 - momentum)
            update = matrices(name, full(parameter.grad.lerp(buffer, momentum)))
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            alike = waiting[update.shape[1:]]
            alike.append((parameter, update))
            if sum(values.numel() for _, values in alike) >= AT_ONCE:
                apply_nearest(alike, group["lr"])
        for alike in waiting.values():
            apply_nearest(alike, group["lr"])


def apply_nearest(alike: list[tuple[Tensor, Tensor]], lr: float) -> None:
    """Moves parameters by their updates, matrices of one shape, and empties the list."""
    if not alike:
        return
    nearest = orthogonalize(torch.cat([update for _, update in alike]))
    rate = lr * max(1, nearest.shape[1] / nearest.shape[2]) ** 0.5
    parts = nearest.split([len(update) for _, update in alike])
    for (parameter, _), direction in zip(alike, parts, strict=True):
        step = direction.reshape(parameter.shape).to(parameter.dtype)
        parameter.add_(part(step, parameter), alpha=-rate)
    alike.clear()


def is_hidden_matrix(name: str, parameter: Tensor) -> bool:
    """True if Muon takes the parameter: a matrix of the encoder, or filters of a hybrid's stem."""
    in_encoder = parameter.dim() == 2 and name.startswith("blocks.")
    return in_encoder or (parameter.dim() == 4 and name.startswith("patch_embed.backbone."))


def matrices(name: str, values: Tensor) -> Float[Tensor, "s r c"]:
    """The matrices in a parameter's update: three in that of queries, keys and values."""
    count = 3 if name.endswith(".qkv.weight") else 1
    return values.flatten(1).unflatten(0, (count, -1))


def orthogonalize(updates: Float[Tensor, "s r c"]) -> Float[Tensor, "s r c"]:
    """Nearly U V^T of every update U S V^T: singular values between 0.7 and 1.2.

    Five Newton-Schulz iterations, in bfloat16 where the hardware has it, as its authors do.
    """
    slow = updates.device.type == "cpu" and not has_bfloat16()
    x = updates.to(torch.float32 if slow else torch.bfloat16)
    wide = x.shape[1] <= x.shape[2]
    x = x if wide else x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if wide else x.mT
