"""How unlike the known classes an image is, by the energy of its logits.

Shapes: n images, k classes.
"""

import torch.nn.functional as F
from torch import Tensor

from vit.confidence import cut

ROUNDING = 1e-4
"""Of the largest energy: an image in another batch, or on another processor, has the same rank."""


def energy(logits: Tensor, *, multilabel: bool = False) -> Tensor:
    """(n,) of logits (n, k): -log sum exp (arXiv:2010.03759, eq. 4, T = 1).

    With several labels per image: - the sum of softplus over the classes (arXiv:2109.00030, eq. 6).
    """
    logits = logits.float()
    return -(F.softplus(logits).sum(1) if multilabel else logits.logsumexp(1))


def outside(energies: Tensor, usual: Tensor, share: float) -> Tensor:
    """(n,) true for images whose energy is above that of a share of the measured images.

    `usual`: of the measured images, ascending. Of images like those at most 1 - share are outside
    (split conformal prediction).
    """
    return energies - ROUNDING * usual.abs().amax() > cut(usual, share, "unknown")
