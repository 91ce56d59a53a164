"""AIM's attentive probe on frozen patches (arXiv:2401.08541, section 4; apple/ml-aim, layers.py).

A learned query attends to patches that batch normalisation without parameters has scaled; a linear
layer classifies the result. Shapes: b batch, n patches, d width, h heads, e = d / h, k classes.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.data.sources import PathList
from vit.extensions.evaluation.probe import Pair, ProbeResult, with_selection
from vit.shapes import Float

RATES, EPOCHS, BATCH, WEIGHT_DECAY, SEED = (3e-4, 1e-3, 3e-3), 20, 256, 0.1, 0


class AttentiveProbe(nn.Module):
    """Cross-attention pooling by one query, and a linear layer. Keys and values have no bias.

    The query passes the matrix of the keys, and the value is made of what is pooled: h n d products
    an image in place of n d^2, and the same result.
    """

    def __init__(self, width: int, num_classes: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        # momentum=None: the mean over all steps. Few images have too few steps for a moving one.
        self.norm = nn.BatchNorm1d(width, eps=1e-6, affine=False, momentum=None)
        self.query = nn.Parameter(0.02 * torch.randn(width))
        self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.head = nn.Linear(width, num_classes)

    def forward(self, patches: Float[Tensor, "b n d"]) -> Float[Tensor, "b k"]:
        x, heads = self.norm(patches.flatten(0, 1)).view_as(patches), (self.num_heads, -1)
        query, key = self.query.view(heads), self.key.weight.unflatten(0, heads)
        query = torch.einsum("he,hed->hd", query * query.shape[1] ** -0.5, key)
        weights = torch.einsum("hd,bnd->bhn", query, x).softmax(-1)
        pooled = torch.einsum("bhn,bnd->bhd", weights, x)
        values = torch.einsum("bhd,hed->bhe", pooled, self.value.weight.unflatten(0, heads))
        return self.head(values.flatten(1))


def attentive_accuracy(
    train: Pair,
    test: Pair,
    num_classes: int,
    num_heads: int,
    *,
    val: Pair | None = None,
    groups: PathList | None = None,
    epochs: int = EPOCHS,
    device: str = "cpu",
) -> ProbeResult:
    """The protocol of `probe_accuracy`, from patches (n_images, n, d) of two or three sets.

    They stay in memory; a batch is computed in float32, by AdamW with a cosine.
    """
    everything, rest, chosen = with_selection(train, val, groups)
    patches, labels = (torch.from_numpy(array).to(device) for array in everything)

    def accuracy(of: np.ndarray, on: tuple[Tensor, Tensor], rate: float) -> float:
        torch.manual_seed(SEED)
        probe = AttentiveProbe(patches.shape[-1], num_classes, num_heads).to(device)
        optimizer = torch.optim.AdamW(probe.parameters(), lr=rate, weight_decay=WEIGHT_DECAY)
        steps = epochs * -(-len(of) // BATCH)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(epochs):
            for rows in torch.from_numpy(of)[torch.randperm(len(of))].to(device).split(BATCH):
                optimizer.zero_grad()
                F.cross_entropy(probe(patches[rows].float()), labels[rows]).backward()
                optimizer.step()
                schedule.step()
        with torch.inference_mode():
            answers = [probe.eval()(part.float()).argmax(1) for part in on[0].split(BATCH)]
        return float((torch.cat(answers) == on[1]).double().mean())

    sweep = {rate: accuracy(rest, (patches[chosen], labels[chosen]), rate) for rate in RATES}
    best = max(sweep, key=sweep.__getitem__)  # the smallest of the best
    queries, truth = (torch.from_numpy(array).to(device) for array in test)
    share = accuracy(np.arange(len(labels)), (queries, truth), best)
    return ProbeResult(share, best, sweep, converged=True)
