"""Scores of masked patch prediction, the same with any number of processes.

Shapes: b batch, m corrupted patches an image, o answers a patch, k classes.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torchmetrics import MeanMetric, Metric

from vit.training.metrics import SplitMetrics


class BestConstant(Metric):
    """Scores of the best answer that is the same for every image.

    Of classes: the entropy of their frequencies, in nats, and the share of the most frequent one.
    Of pixels: the variance.
    """

    full_state_update = False
    sums: Tensor
    """Of classes `o k` how often each is right; of pixels `2 o` their sums and those of squares."""
    number: Tensor

    def __init__(self, num_answers: int, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        shape = (num_answers, num_classes) if num_classes else (2, num_answers)
        self.add_state("sums", default=torch.zeros(shape), dist_reduce_fx="sum")
        self.add_state("number", default=torch.tensor(0), dist_reduce_fx="sum")

    def update(self, targets: Tensor) -> None:
        """`targets` b m o: classes, or pixels."""
        flat, dtype = targets.flatten(0, 1), self.sums.dtype
        self.number += len(flat)
        if self.num_classes:
            self.sums.scatter_add_(1, flat.T, torch.ones_like(flat.T, dtype=dtype))
        else:
            self.sums += torch.stack([flat.to(dtype).sum(0), flat.to(dtype).square().sum(0)])

    def compute(self) -> dict[str, Tensor]:
        means = self.sums / self.number
        if not self.num_classes:
            return {"constant_loss": (means[1] - means[0].square()).mean()}
        entropy = torch.special.entr(means).sum(1)
        return {"constant_loss": entropy.mean(), "constant_acc1": means.amax(1).mean()}


class PatchMetrics(SplitMetrics):
    """Loss, image count, accuracy of the colours, and the same of the best constant answer."""

    IN_DOUBLE = (*SplitMetrics.IN_DOUBLE, BestConstant)

    def __init__(self, num_answers: int, num_classes: int) -> None:
        """`num_classes` 0 is for pixels, which have no accuracy."""
        super().__init__()
        self.constant = BestConstant(num_answers, num_classes)
        self.right = MeanMetric() if num_classes else None

    def update(self, predicted: Tensor, targets: Tensor, loss: Tensor, images: int) -> None:
        """`predicted` b m (o k) logits or b m o pixels, `targets` b m o, `loss` their mean."""
        weight = targets.shape[0] * targets.shape[1]
        self.loss.update(loss, weight=weight)
        self.images.update(images)
        self.constant.update(targets)
        if self.right is not None:
            answers = predicted.unflatten(-1, (targets.shape[-1], -1)).argmax(-1)
            self.right.update((answers == targets).float().mean(), weight=weight)

    def compute(self) -> dict[str, Tensor]:
        scores: dict[str, Tensor] = {"loss": self.loss.compute()}
        if self.right is not None:
            scores["acc1"] = self.right.compute()
        return {**scores, **self.constant.compute()}


def constant_note(split: str, metrics: Mapping[str, float]) -> str:
    """Sentences about the scores of constant predictions."""
    notes = []
    if f"{split}/constant_loss" in metrics:
        constant = metrics[f"{split}/constant_loss"]
        notes.append(f"The best constant prediction has a loss of {constant:.4f}.")
    if f"{split}/constant_acc1" in metrics:
        shares = metrics[f"{split}/acc1"], metrics[f"{split}/constant_acc1"]
        right, most = (f"{100 * share:.1f}\N{NO-BREAK SPACE}%" for share in shares)
        notes.append(
            f"{right} of the colours are right; always answering the most frequent one would be "
            f"right for {most}."
        )
    return " ".join(notes)
