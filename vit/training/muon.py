"""Muon on the matrices of the encoder, AdamW on everything else, as one optimizer.

Muon (K. Jordan et al., 2024, "Muon: an optimizer for hidden layers in neural networks") replaces
each momentum matrix by the nearest orthogonal one. It is meant for hidden matrices only:
embeddings, heads, biases and gains stay with AdamW.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import AdamW, Muon, Optimizer

from vit.errors import UserError


class MuonWithAdamW(Optimizer):
    """torch's Muon and torch's AdamW behind one list of parameter groups and one schedule.

    The state is that of the two, `muon` and `adamw`.

    Args:
        params: Groups with `names`, as vit.training.optim.param_groups makes them.
        lr: Learning rate of Muon, in the units of its authors.
        adamw_lr: Learning rate of AdamW.
        weight_decay: Decoupled decay of both, where a group does not say otherwise.
        momentum: Of Muon, with Nesterov's correction.
        betas: Of AdamW.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 0.02,
        adamw_lr: float = 0.003,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
    ) -> None:
        matrices, others = [], []
        for group in params:
            if "names" not in group:
                raise UserError("MuonWithAdamW needs parameter groups with names, see param_groups")
            named = list(zip(group["names"], group["params"], strict=True))
            rest = {k: v for k, v in group.items() if k not in ("names", "params")}
            for hidden, into in ((True, matrices), (False, others)):
                pairs = [(n, p) for n, p in named if is_hidden_matrix(n, p) == hidden]
                if pairs:
                    names, chosen = zip(*pairs, strict=True)
                    into.append({**rest, "params": list(chosen), "names": list(names)})
        if not matrices:
            raise UserError("MuonWithAdamW found no matrices in blocks.*; use torch.optim.AdamW")
        self.muon = Muon(
            matrices, lr=lr, weight_decay=weight_decay, momentum=momentum, nesterov=True
        )
        self.adamw = AdamW(others, lr=adamw_lr, weight_decay=weight_decay, betas=betas, fused=True)
        super().__init__(self.muon.param_groups + self.adamw.param_groups, {})
        self._share()

    def _share(self) -> None:
        """One list of the very groups of both, so that a schedule or scaler on it reaches both."""
        self.param_groups = self.muon.param_groups + self.adamw.param_groups

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.muon.step()
        self.adamw.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {"muon": self.muon.state_dict(), "adamw": self.adamw.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.muon.load_state_dict(state_dict["muon"])
        self.adamw.load_state_dict(state_dict["adamw"])
        self._share()


def is_hidden_matrix(name: str, parameter: torch.Tensor) -> bool:
    """Whether Muon takes the parameter: two-dimensional and inside the encoder."""
    return parameter.dim() == 2 and name.startswith("blocks.")
