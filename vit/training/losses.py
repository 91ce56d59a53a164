"""The training loss. Shapes: b batch, k classes."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.errors import UserError
from vit.ranges import BELOW_ONE, FINITE, check_range
from vit.shapes import Float
from vit.training.distillation import Distillation


@dataclass(kw_only=True)
class Loss:
    """Cross-entropy between logits and class indices or target distributions."""

    kind: Literal["softmax", "sigmoid", "bce"] = "softmax"
    """One class per image (softmax), or one yes-or-no question per class, summed over classes
    (sigmoid: big_vision's sigmoid_xent; also for several labels per image). bce: DeiT III's form
    of sigmoid (arXiv:2204.07118; engine.py), the mean over classes, where a class that has any
    share of a mixed image is a whole 'yes'."""
    label_smoothing: float = 0.0
    """Share in [0, 1) of the target spread evenly over all classes."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: a class counts by n / (k * its images), so that rare classes count as much."""
    head_bias: float | None = None
    """Start value of a new head's bias; with the sigmoid loss -10 for 21k and -6.9 for 1k classes
    makes every first answer 'no' (arXiv:2106.10270)."""
    distillation: Distillation | None = None
    """A second loss for the distillation token, whose targets are a teacher's answers."""

    def __post_init__(self) -> None:
        if self.head_bias is not None:
            check_range("head_bias", self.head_bias, FINITE)
        check_range("label_smoothing", self.label_smoothing, BELOW_ONE)
        if self.kind == "bce" and self.label_smoothing:
            raise UserError(
                f"label_smoothing={self.label_smoothing} would make every target of kind=bce a "
                "'yes'; choose kind=sigmoid or label_smoothing=0"
            )

    def __call__(
        self, logits: Float[Tensor, "b k"], targets: Tensor, weights: Tensor | None = None
    ) -> Float[Tensor, ""]:
        """Mean over the batch. `targets` are indices `b` or distributions `b k`, `weights` `k`."""
        # In float32 at least: sums over many classes lose digits in half precision.
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if targets.dim() == 1:
            if self.kind == "softmax" and weights is None:
                return F.cross_entropy(logits, targets, label_smoothing=self.label_smoothing)
            targets = F.one_hot(targets, logits.shape[-1])
        targets = (targets > 0 if self.kind == "bce" else targets).to(logits.dtype)
        if self.label_smoothing:
            k = logits.shape[-1]
            targets = targets * (1 - self.label_smoothing) + self.label_smoothing / k
        if self.kind == "softmax":
            terms = -targets * F.log_softmax(logits, dim=-1)
        else:
            terms = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        terms = terms if weights is None else terms * weights
        return terms.mean() if self.kind == "bce" else terms.sum(-1).mean()


def refuse_double_balance(balanced_sampling: bool, class_weights: str | None) -> None:
    """UserError where rare classes are both drawn and weighted as if they were common.

    The weights are those of the set as it is, so a class with a tenth of the images of another
    would count ten times as much, not equally.
    """
    if balanced_sampling and class_weights == "balanced":
        raise UserError(
            "data.sampling.balanced=true and model.loss.class_weights=balanced would correct "
            "imbalance twice; use one: --data.sampling.balanced false, or "
            "--model.loss.class_weights none"
        )


def balanced_weights(counts: list[int]) -> Float[Tensor, "k"]:
    """n / (k * count) a class: their mean over the images is 1."""
    empty = [i for i, count in enumerate(counts) if count == 0]
    if empty:
        raise UserError(f"class_weights=balanced: class number {empty[0]} has no training image")
    per_class = torch.tensor(counts, dtype=torch.float32)
    return per_class.sum() / (len(counts) * per_class)
