"""The training loss. Shapes: b batch, k classes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, Trainer
from torch import Tensor, nn

from vit.errors import BELOW_ONE, POSITIVE, UserError, check_range, did_you_mean, some_of
from vit.facts import Facts
from vit.models.zoo import Model
from vit.preprocessing import check_choice
from vit.shapes import Float
from vit.tables import resolve, rows
from vit.training.counted_data import counting_data

Kind = Literal["auto", "softmax", "sigmoid", "bce"]


class TeacherLoss(nn.Module, ABC):
    """A loss on a teacher's answers, joined with that on the labels. Its tensors are not in the
    state dict of the network that learns; a run records the weights that its `weights` names."""

    @abstractmethod
    def prepare(self, network: Model, facts: Facts) -> nn.Module | None:
        """Reads the teacher; returns what is trained with the network and not saved with it."""

    def guards(self) -> list[Callback]:
        """Callbacks of a run with it, which move it to the device, and compile its `outputs`."""
        return []

    @abstractmethod
    def outputs(self, network: Model, images: Tensor) -> tuple[Float[Tensor, "b k"], Tensor]:
        """Logits for the loss on the labels, and features that `forward` compares."""

    @abstractmethod
    def forward(
        self, loss: Tensor, outputs: Float[Tensor, "b k"], features: Tensor, images: Tensor
    ) -> Float[Tensor, ""]:
        """`loss` on the labels of these outputs, joined with that on the teacher's answers."""


@dataclass(kw_only=True)
class Loss:
    """Cross-entropy between logits and class indices or target distributions."""

    kind: Kind = "auto"
    """One class per image (softmax), or one yes-or-no question per class, summed over classes
    (sigmoid: big_vision's sigmoid_xent; also for several labels per image). auto: sigmoid where
    images have several labels, else softmax. bce: DeiT III's form of sigmoid (arXiv:2204.07118;
    engine.py), the mean over classes, where a class that has any share of a mixed image is a whole
    'yes'."""
    label_smoothing: float = 0.0
    """Share in [0, 1) of the target spread evenly over all classes."""
    class_weights: Literal["none", "balanced"] | dict[str, float] = "none"
    """balanced: a class counts by n / (k * its images), so that rare classes count as much. Or
    weights by class name, such as {cat: 2, dog: 0.5}; a class that is not named counts by 1."""
    head_bias: float | None = None
    """Start value of a new head's bias; with the sigmoid loss -10 for 21k and -6.9 for 1k classes
    makes every first answer 'no' (arXiv:2106.10270)."""
    teacher: TeacherLoss | None = None
    """A second loss, on a teacher's answers, such as vit.Distillation."""
    function: Callable[[Tensor, Tensor], Any] | None = None
    """A loss of your own instead, a function or a class by its import path, such as
    torch.nn.MultiMarginLoss: called with logits `b k` and class numbers `b`, or shares `b k` under
    mixing and with several labels, it returns one number. val/loss stays the loss of kind auto."""

    def __post_init__(self) -> None:
        check_choice("loss.kind", self.kind, get_args(Kind))
        check_range("label_smoothing", self.label_smoothing, BELOW_ONE)
        if isinstance(self.class_weights, dict):
            for name, weight in self.class_weights.items():
                check_range(f"class_weights: {name}", weight, POSITIVE)
        if self.kind == "bce" and self.label_smoothing:
            raise UserError(
                f"label_smoothing={self.label_smoothing} would make every target of kind=bce a "
                "'yes'; choose kind=sigmoid or label_smoothing=0"
            )

    def for_labels(self, *, multilabel: bool) -> "Loss":
        """Replaces auto; UserError for softmax with several labels per image.

        A row of the table `losses` replaces the loss under a field that is set.
        """
        for name, row in rows("losses").items():
            if getattr(self, name) is not None:
                return resolve(row)(**vars(self))
        if multilabel and self.kind == "softmax":
            raise UserError(
                "images with several labels need model.loss.kind=sigmoid, which auto chooses"
            )
        if self.kind != "auto":
            return self
        return replace(self, kind="sigmoid" if multilabel else "softmax")

    def check_sampling(self, trainer: Trainer) -> None:
        """UserError if classes are both drawn equally often and weighted."""
        data = counting_data(trainer)
        if data is not None and data.sampling.balanced and self.class_weights == "balanced":
            raise UserError(
                "data.sampling.balanced=true and model.loss.class_weights=balanced would correct "
                "imbalance twice; use one of them"
            )

    def weights_of(self, facts: Facts) -> Float[Tensor, "k"] | None:
        """Weights of the classes, None for equal ones; UserError if the facts do not suffice."""
        if self.class_weights == "none":
            return None
        if self.class_weights == "balanced":
            if not facts.counts:
                raise UserError("class_weights=balanced needs counts, the images of each class")
            return balanced_weights(facts.counts)
        classes = facts.classes
        if classes is None:
            raise UserError("class_weights by name need classes, their names")
        for name in self.class_weights:
            if name not in classes:
                hint = did_you_mean(name, classes) or f"; the classes are {some_of(classes, 10)}"
                raise UserError(f"class_weights: there is no class {name!r}{hint}")
        return torch.tensor([float(self.class_weights.get(name, 1)) for name in classes])

    def __call__(
        self, logits: Float[Tensor, "b k"], targets: Tensor, weights: Tensor | None = None
    ) -> Float[Tensor, ""]:
        """Mean over the batch. `targets` are indices `b` or distributions `b k`, `weights` `k`.

        kind=auto is softmax here: `for_labels` decides.
        """
        # In float32 at least: sums over many classes lose digits in half precision.
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        one_class = self.kind in ("auto", "softmax")
        if targets.dim() == 1:
            if one_class and weights is None:
                return F.cross_entropy(logits, targets, label_smoothing=self.label_smoothing)
            targets = F.one_hot(targets, logits.shape[-1])
        targets = (targets > 0 if self.kind == "bce" else targets).to(logits.dtype)
        if self.label_smoothing:
            k = logits.shape[-1]
            targets = targets * (1 - self.label_smoothing) + self.label_smoothing / k
        if one_class:
            terms = -targets * F.log_softmax(logits, dim=-1)
        else:
            terms = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        terms = terms if weights is None else terms * weights
        return terms.mean() if self.kind == "bce" else terms.sum(-1).mean()


def balanced_weights(counts: Sequence[int]) -> Float[Tensor, "k"]:
    """Weights n / (k * count), whose mean over the images is 1."""
    per_class = torch.tensor(counts, dtype=torch.float32)
    return per_class.sum() / (len(counts) * per_class.clamp(min=1))
