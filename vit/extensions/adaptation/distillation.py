"""Distillation through a token (DeiT, arXiv:2012.12877, section 4).

Shapes: b c h w images, k classes.
"""

import os

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.errors import UserError
from vit.preprocessing import Preprocess
from vit.shapes import Float
from vit.training.losses import Distillation
from vit.weights.pretrained import LoadReport, create_model


def with_answers(
    loss: Tensor,
    logits: Float[Tensor, "b k"],
    answers: Float[Tensor, "b k"],
    options: Distillation,
) -> Float[Tensor, ""]:
    """`loss` on the labels, joined with that of the token's `logits` on the teacher's."""
    logits, answers = logits.to(loss.dtype), answers.to(loss.dtype)
    if options.kind == "hard":
        distilled = F.cross_entropy(logits, answers.argmax(-1))
    else:
        t = options.temperature
        student, teacher = (F.log_softmax(x / t, dim=-1) for x in (logits, answers))
        # The mean over images and classes: k times less than equation 2 (DeiT, losses.py).
        distilled = F.kl_div(student, teacher, reduction="mean", log_target=True) * t * t
    return (1 - options.alpha) * loss + options.alpha * distilled


class Teacher:
    """A frozen model outside the student's checkpoints.

    Args:
        weights: As `Distillation.teacher`.
        image_size: (height, width) of the student's images; the other arguments are the student's.
    """

    def __init__(
        self,
        weights: str | None,
        *,
        image_size: tuple[int, int],
        num_classes: int,
        classes: list[str] | None,
        preprocess: Preprocess | None,
    ) -> None:
        if weights is None:
            raise UserError(
                "distillation needs a teacher: --model.loss.distillation.teacher WEIGHTS"
            )
        reports: list[LoadReport] = []
        model = create_model(
            pretrained=os.path.expanduser(weights),
            image_size=image_size,
            num_classes=num_classes,
            classes=classes,
            head="score",
            report=reports.append,
        )
        self.model = model.eval().requires_grad_(False)
        self._colors = _colors(preprocess, reports[0])

    def to(self, device: torch.device, dtype: torch.dtype) -> "Teacher":
        self.model.to(device, dtype)
        self._colors = self._colors.to(device, dtype)
        return self

    @torch.no_grad()
    def __call__(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        """Logits of images that are normalised for the student."""
        scale, shift = self._colors[..., None, None]
        return self.model(images * scale + shift)


def _colors(ours: Preprocess | None, report: LoadReport) -> Tensor:
    """Rows scale and shift, a value a channel, from our normalisation to theirs."""
    if ours is None or not report.preprocess:
        return torch.tensor([[1.0], [0.0]])
    both = [ours.to_dict(), report.preprocess]
    pairs = [[torch.tensor(p[name], dtype=torch.float64) for p in both] for name in ("mean", "std")]
    (our_mean, their_mean), (our_std, their_std) = pairs
    return torch.stack([our_std / their_std, (our_mean - their_mean) / their_std])
