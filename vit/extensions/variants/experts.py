"""Several MLPs in a layer, of which each token takes some.

Shapes: b batch, m tokens, d width, e experts, k chosen, c capacity.
"""

from dataclasses import dataclass
from functools import partial
from math import ceil

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.errors import POSITIVE, UserError, check_range
from vit.extensions.variants.feedforward import FEEDFORWARDS
from vit.extensions.variants.options import Options
from vit.models.config import ViTConfig
from vit.models.encoder import Block, Mlp
from vit.models.initialization import lecun_normal_
from vit.shapes import Float, Int

BALANCE = 0.01
"""Weight of the balance loss: alpha in arXiv:2101.03961, section 2.2."""


@dataclass(frozen=True, kw_only=True)
class ExpertsOptions(Options):
    """Options of experts."""

    experts: int = 4
    """Number of MLPs in each layer."""
    chosen: int = 1
    """Experts that a token takes: 1 in Switch Transformers, 2 in a mixture of experts."""
    capacity: float = 1.25
    """Tokens that an expert takes from an image, over those at uniform use."""
    expert: str = "plain"
    """The MLPs: those of the model without this part, or of another part, such as "relu"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("capacity", self.capacity, POSITIVE)
        if self.chosen > self.experts:
            raise UserError(
                f"chosen={self.chosen} is more than there are experts ({self.experts}); choose at "
                f"most {self.experts}"
            )
        if self.expert not in ("plain", *FEEDFORWARDS):
            raise UserError(
                f"expert={self.expert!r} is not known; choose plain, {', '.join(FEEDFORWARDS)}"
            )


class Experts(nn.Module):
    """Sum over the k best experts of p_i(x) E_i(x), with p = softmax(W x) over all experts.

    Switch Transformers (arXiv:2101.03961, equations 1 and 2) with k = 1; V-MoE (arXiv:2106.05974,
    section 2.1) with more. An expert takes the first c = ceil(capacity k m / e) tokens of an image,
    first choices before second ones; for the rest it adds nothing. The papers count c over a batch;
    per image, what is computed of it does not depend on the others. Cost: m d e multiply-adds for
    the choice, and e c / m times those of the paper's MLP.

    In training, `penalty` is BALANCE times the balance loss of the last batch.
    """

    def __init__(self, config: ViTConfig, options: ExpertsOptions) -> None:
        super().__init__()
        self.chosen, self.capacity = options.chosen, options.capacity
        # First choices of later tokens go before second choices of earlier ones.
        self.ignores_mask = options.chosen > 1
        self.router = nn.Linear(config.width, options.experts, bias=False)
        if options.expert == "plain":
            build = partial(Mlp, config.width, config.mlp_dim, config.activation, config.dropout)
        else:
            kind, function = FEEDFORWARDS[options.expert]
            build = partial(kind, config, function)
        self.experts = nn.ModuleList(build() for _ in range(options.experts))

    def forward(self, x: Float[Tensor, "b m d"]) -> Float[Tensor, "b m d"]:
        probabilities = self.probabilities(x)
        gates, chosen = probabilities.topk(self.chosen, dim=-1)  # b m k
        if self.training:
            self.penalty = BALANCE * balance_loss(probabilities, chosen)
        places, c = self.places(chosen)  # b k m
        at = places.flatten(1)[..., None].expand(-1, -1, x.shape[-1])
        e = len(self.experts)
        taken = x.new_zeros(x.shape[0], e * c + 1, x.shape[-1])
        taken = taken.scatter(1, at, x.repeat(1, self.chosen, 1))[:, :-1].unflatten(1, (e, c))
        computed = [expert(taken[:, i]) for i, expert in enumerate(self.experts)]
        outputs = F.pad(torch.cat(computed, dim=1), (0, 0, 0, 1)).gather(1, at)
        gates = gates.mT[..., None].to(outputs.dtype)
        return (outputs.unflatten(1, (self.chosen, -1)) * gates).sum(1)

    def probabilities(self, x: Float[Tensor, "b m d"]) -> Float[Tensor, "b m e"]:
        """Probabilities in at least float32, as in arXiv:2101.03961, section 2.4."""
        kind = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False):
            return F.linear(x.to(kind), self.router.weight.to(kind)).softmax(-1)

    def places(self, chosen: Int[Tensor, "b m k"]) -> tuple[Int[Tensor, "b k m"], int]:
        """Places of the choices among the e c of all experts, e c if there is none; and c."""
        e = len(self.experts)
        c = min(chosen.shape[1], ceil(self.capacity * self.chosen * chosen.shape[1] / e))
        order = chosen.mT.flatten(1)  # first choices first
        before = F.one_hot(order, e).cumsum(1).gather(2, order[..., None])[..., 0] - 1
        places = torch.where(before < c, order * c + before, e * c)
        return places.unflatten(1, (self.chosen, -1)), c

    def init_weights(self) -> None:
        """Draws other weights for every expert."""
        lecun_normal_(self.router)
        for expert in self.experts:
            expert.init_weights()  # pyright: ignore[reportCallIssue]


def balance_loss(
    probabilities: Float[Tensor, "b m e"], chosen: Int[Tensor, "b m k"]
) -> Float[Tensor, ""]:
    """e times the sum over experts of share of choices times mean probability; 1 if both are even.

    arXiv:2101.03961, equations 4 to 6, for each image, and the mean over images, so that it is the
    same however a batch is divided.
    """
    e = probabilities.shape[-1]
    shares = F.one_hot(chosen.flatten(1), e).to(probabilities.dtype).mean(1)
    return e * (shares * probabilities.mean(1)).sum(-1).mean()


def experts(options: ExpertsOptions, config: ViTConfig, layers: list[Block]) -> None:
    """Experts in every layer."""
    for layer in layers:
        layer.register_module("mlp", Experts(config, options))
