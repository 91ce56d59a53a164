"""DINOv2's losses, as functions of tensors (arXiv:2304.07193, section 4).

They compute in float32, or in float64 if their inputs do.
Shapes: b images, c crops of each, the two global ones first, k prototypes, m masked patches, n
patches, d width.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from vit.errors import UserError
from vit.extensions.recipes.multi_crop import GLOBAL_CROPS
from vit.shapes import Float

NEAR = 1e-8
"""Added to a distance before its logarithm."""


def class_token_loss(
    student: Float[Tensor, "c b k"], teacher: Float[Tensor, "2 b k"], temperature: float
) -> Float[Tensor, ""]:
    """Cross-entropy between class tokens of different crops of an image.

    (local + 2 global) / (2 + 2 local crops): local is the sum over local crops and both of the
    teacher's, global the mean over the two pairs of different global crops, as in the official
    code. That one divides by 3 in place of 2 if there are no local crops. `student` are logits,
    `teacher` probabilities, `temperature` is the student's.
    """
    logs = F.log_softmax(at_least_float32(student) / temperature, dim=-1)
    whole = -(teacher.flip(0) * logs[:GLOBAL_CROPS]).sum(-1).mean()
    local = -(teacher.sum(0) * logs[GLOBAL_CROPS:]).sum(-1).mean(-1).sum()
    return (local + 2 * whole) / (2 + 2 * (len(student) - GLOBAL_CROPS))


def masked_patch_loss(
    student: Float[Tensor, "m k"],
    teacher: Float[Tensor, "m k"],
    weights: Float[Tensor, " m"],
    num_crops: int,
    temperature: float,
) -> Float[Tensor, ""]:
    """Cross-entropy at the masked patches, which the teacher sees (iBOT, arXiv:2111.07832).

    `weights`: one over the number of masked patches of the crop; `num_crops`: global crops, those
    without a mask among them, by which the sum is divided.
    """
    logs = F.log_softmax(at_least_float32(student) / temperature, dim=-1)
    return -((teacher * logs).sum(-1) * weights).sum() / num_crops


def koleo_loss(features: Float[Tensor, "b d"]) -> Float[Tensor, ""]:
    """Minus the mean logarithm of the distance to the nearest other image of the process, which
    spreads normalised features (arXiv:1806.03198). An image whose nearest one has the same features
    adds 0 to the mean. UserError for one image."""
    if len(features) < 2:
        raise UserError(
            "KoLeo needs at least two images in a batch of each process, not 1: raise "
            "data.batch_size, or set model.koleo=0"
        )
    points = normalised(features)
    with torch.no_grad():
        nearest = (points @ points.T).fill_diagonal_(-torch.inf).argmax(1)
    distances = torch.linalg.vector_norm(points - points[nearest], dim=-1)
    return -torch.where(distances > 0, (distances + NEAR).log(), 0.0).mean()


def gram_loss(
    student: Float[Tensor, "b n d"], reference: Float[Tensor, "b n d"]
) -> Float[Tensor, ""]:
    """Mean squared difference of the cosines between the patches of an image (Gram anchoring,
    arXiv:2508.10104, section 4.2). The paper's equation has the squared Frobenius norm, which is
    n^2 times as large: the weight of a mean does not depend on the number of patches."""
    mine, wanted = normalised(student), normalised(reference)
    return F.mse_loss(mine @ mine.mT, wanted @ wanted.mT)


def normalised(features: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows d"]:
    return F.normalize(at_least_float32(features), dim=-1)


@torch.no_grad()
def sinkhorn(
    logits: Float[Tensor, "m k"], temperature: float, rounds: int = 3
) -> Float[Tensor, "m k"]:
    """Probabilities with equal shares of all prototypes, as far as `rounds` of Sinkhorn-Knopp bring
    them (SwAV, arXiv:2006.09882), over the samples of all processes."""
    scaled = logits.to(torch.float32 if logits.is_mps else torch.float64) / temperature
    # A factor common to all samples makes no difference; in float32 a far prototype may be zeros.
    largest = scaled.amax() if len(scaled) else scaled.new_full((), -torch.inf)
    shares = (scaled - reduced(largest, dist.ReduceOp.MAX)).exp()
    for _ in range(rounds):
        shares = shares / (reduced(shares.sum(0)) * shares.shape[1])
        shares = shares / shares.sum(1, keepdim=True)
    return shares.to(at_least_float32(logits).dtype)


class Centre(nn.Module):
    """The teacher's mean logits, which are subtracted before its softmax (DINO, arXiv:2104.14294).
    `momentum` is the weight of the old centre in an update."""

    centre: Tensor

    def __init__(self, num_prototypes: int, momentum: float = 0.9) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("centre", torch.zeros(num_prototypes))
        self._sums: Tensor | None = None
        """Sum of the samples since the last `move`, then their number."""

    @torch.no_grad()
    def probabilities(
        self, logits: Float[Tensor, "*rows k"], temperature: float
    ) -> Float[Tensor, "*rows k"]:
        return F.softmax((at_least_float32(logits) - self.centre) / temperature, dim=-1)

    @torch.no_grad()
    def add(self, logits: Float[Tensor, "*rows k"]) -> None:
        """Adds samples of this process to those of the next `move`."""
        flat = at_least_float32(logits).flatten(0, -2)
        sums = torch.cat([flat.sum(0), flat.new_tensor([len(flat)])])
        self._sums = sums if self._sums is None else self._sums + sums

    @torch.no_grad()
    def move(self) -> None:
        """Moves the centre to the mean over the samples of all processes; without any it stays.
        Every process calls it, after `add`."""
        assert self._sums is not None
        sums, self._sums = reduced(self._sums), None
        old = self.centre.to(sums.dtype)
        mean = torch.where(sums[-1] > 0, sums[:-1] / sums[-1], old)
        self.centre = old.lerp(mean, 1 - self.momentum)


def at_least_float32(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


def reduced(values: Tensor, operation: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
    """The sum, or another reduction, over all processes."""
    if dist.is_available() and dist.is_initialized():
        values = values.clone()
        dist.all_reduce(values, operation)
    return values
