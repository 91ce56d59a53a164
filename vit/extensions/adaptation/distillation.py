"""Distillation through a token (DeiT, arXiv:2012.12877, section 4).

Shapes: b c h w images, k classes.
"""

import os
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.errors import POSITIVE, SHARE, UserError, check_range
from vit.facts import Facts
from vit.models.vision_transformer import VisionTransformer
from vit.models.zoo import Model
from vit.preprocessing import Preprocess
from vit.shapes import Float
from vit.training.losses import TeacherLoss
from vit.weights.pretrained import LoadReport, create_model


class Distillation(TeacherLoss):
    """The task of the distillation token's head. The class token's head keeps the labels.

    Args:
        weights: Of the teacher, a model of the same classes: a run, a model directory, a file, or a
            hub address. It sees the student's images, mixed and augmented as they are.
        kind: hard: the teacher's first choice is the label (equation 3). soft: its probabilities
            are the targets (equation 2).
        alpha: Weight in [0, 1] of this loss; the loss on the labels has the rest.
        temperature: Divides the logits of both for the soft targets.
    """

    colors: Tensor
    """Rows scale and shift, a value a channel, from the student's normalisation to its own."""

    def __init__(
        self,
        weights: str | None = None,
        kind: Literal["hard", "soft"] = "hard",
        alpha: float = 0.5,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        check_range("alpha", alpha, SHARE)
        check_range("temperature", temperature, POSITIVE)
        if kind == "hard" and temperature != 1:
            raise UserError(f"temperature={temperature} has no effect on kind=hard")
        self.weights, self.kind, self.alpha = weights, kind, alpha
        self.temperature = temperature

    def prepare(self, network: Model, facts: Facts) -> None:
        """Reads the teacher; UserError without one, and for a student without the token."""
        if self.weights is None:
            raise UserError("vit.Distillation needs weights: --model.loss.teacher.weights WEIGHTS")
        if len(network.head_layers) != 2:
            raise UserError(
                "vit.Distillation needs a model with a distillation token: add "
                "--model.architecture.distillation_token true"
            )
        reports: list[LoadReport] = []
        model = create_model(
            pretrained=os.path.expanduser(self.weights),
            image_size=network.config.size,
            num_classes=network.config.num_classes,
            classes=facts.classes,
            head="score",
            report=reports.append,
        )
        self.model = model.eval().requires_grad_(False)
        self.register_buffer("colors", _colors(facts.preprocess, reports[0]))

    def outputs(self, network: Model, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the class token and of the distillation token."""
        assert isinstance(network, VisionTransformer)
        return network.forward_distilled(images)

    def forward(
        self,
        loss: Tensor,
        outputs: Float[Tensor, "b k"],
        features: Float[Tensor, "b k"],
        images: Float[Tensor, "b c h w"],
    ) -> Float[Tensor, ""]:
        """`features`: logits of the distillation token."""
        logits, answers = features.to(loss.dtype), self.answers(images).to(loss.dtype)
        if self.kind == "hard":
            distilled = F.cross_entropy(logits, answers.argmax(-1))
        else:
            t = self.temperature
            student, teacher = (F.log_softmax(x / t, dim=-1) for x in (logits, answers))
            # The mean over images and classes: k times less than equation 2 (DeiT, losses.py).
            distilled = F.kl_div(student, teacher, reduction="mean", log_target=True) * t * t
        return (1 - self.alpha) * loss + self.alpha * distilled

    @torch.no_grad()
    def answers(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        """The teacher's logits of images that are normalised for the student."""
        scale, shift = self.colors[..., None, None]
        return self.model(images * scale + shift)


def _colors(ours: Preprocess | None, report: LoadReport) -> Tensor:
    if ours is None or not report.preprocess:
        return torch.tensor([[1.0], [0.0]])
    both = [ours.to_dict(), report.preprocess]
    pairs = [[torch.tensor(p[name], dtype=torch.float64) for p in both] for name in ("mean", "std")]
    (our_mean, their_mean), (our_std, their_std) = pairs
    return torch.stack([our_std / their_std, (our_mean - their_mean) / their_std])
