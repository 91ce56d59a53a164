"""Distillation: a network learns the answers and the features of a teacher.

Shapes: b c h w images, k classes, d features of the student, t features of the teacher.
"""

import os
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.errors import POSITIVE, SHARE, UserError, check_range
from vit.extensions.licences.rows import TEACHER, inherit
from vit.facts import Facts
from vit.models.vision_transformer import VisionTransformer
from vit.models.zoo import Model
from vit.preprocessing import Preprocess, check_choice, size_of
from vit.seeds import seeded
from vit.shapes import Float
from vit.training.losses import TeacherLoss
from vit.weights.pretrained import LoadReport, create_model

Kind = Literal["auto", "hard", "soft", "none"]
FeatureLoss = Literal["none", "cosine", "smooth_l1"]


class Distillation(TeacherLoss):
    """A loss on a teacher's answers and features for the images that the student sees.

    Student and teacher see the same crops, mixed and augmented as they are, each at its own size
    and in its own normalisation (arXiv:2106.05237, section 3). A distillation token learns the
    answers alone, and the class token keeps the labels (DeiT, arXiv:2012.12877, section 4); without
    the token the head learns both.

    Args:
        weights: Of the teacher, any architecture: a run, a model directory, a file, a name, or an
            address. Its classes are those of the student; with kind=none it needs none.
        kind: Of the loss on answers. hard: the teacher's first choice is the label (DeiT, equation
            3). soft: the divergence from its probabilities (Hinton et al., arXiv:1503.02531,
            section 2; with the token DeiT's equation 2, the mean over classes); with several labels
            per image the cross-entropy of each class. none: no such loss. auto: hard with a
            distillation token, else soft.
        alpha: Weight in [0, 1] of that loss; the loss on the labels has the rest.
        temperature: Divides the logits of both for the soft targets, and its square multiplies the
            loss.
        features: Loss between the teacher's features and a linear projection of the student's, both
            the head's input: cosine (1 - cosine) or smooth_l1 (of features that a LayerNorm without
            parameters has scaled). The projection is trained, and left out of the saved model.
        feature_weight: Factor of that loss, which is added.
    """

    colors: Tensor
    """Rows scale and shift, a value a channel, from the student's normalisation to its own."""

    def __init__(
        self,
        weights: str | None = None,
        kind: Kind = "auto",
        alpha: float = 0.5,
        temperature: float = 1.0,
        features: FeatureLoss = "none",
        feature_weight: float = 1.0,
    ) -> None:
        super().__init__()
        check_choice("kind", kind, get_args(Kind))
        check_choice("features", features, get_args(FeatureLoss))
        check_range("alpha", alpha, SHARE)
        check_range("temperature", temperature, POSITIVE)
        check_range("feature_weight", feature_weight, POSITIVE)
        if kind in ("hard", "none") and temperature != 1:
            raise UserError(f"temperature={temperature} has no effect on kind={kind}")
        if kind == "none" and features == "none":
            raise UserError("kind=none and features=none leave nothing to learn from the teacher")
        if features == "none" and feature_weight != 1:
            raise UserError(f"feature_weight={feature_weight} has no effect on features=none")
        self.weights, self.kind, self.alpha, self.temperature = weights, kind, alpha, temperature
        self.features, self.feature_weight = features, feature_weight

    def prepare(self, network: Model, facts: Facts) -> nn.Module | None:
        """Reads the teacher and makes the projection. UserError without a teacher, for one that
        knows other classes, and for losses that the student cannot have."""
        if self.weights is None:
            raise UserError("vit.Distillation needs weights: --model.loss.teacher.weights WEIGHTS")
        self.has_token, self.multilabel = len(network.head_layers) == 2, facts.multilabel
        if self.kind == "auto":
            is_hard = self.has_token and self.temperature == 1 and not facts.multilabel
            self.kind = "hard" if is_hard else "soft"
        if self.has_token and (self.features != "none" or self.kind == "none"):
            raise UserError(
                "a distillation token learns answers: leave model.loss.teacher.features out, or "
                "the token (--model.architecture.distillation_token false)"
            )
        if self.kind == "hard" and facts.multilabel:
            raise UserError("kind=hard is for one label per image; use kind=soft, which auto is")
        reports: list[LoadReport] = []
        head: dict[str, Any] = {"num_classes": 0}
        if self.kind != "none":
            count, names = network.config.num_classes, facts.classes
            head = {"num_classes": count, "classes": names, "head": "score"}
        path = os.path.expanduser(self.weights)
        model = create_model(pretrained=path, report=reports.append, **head)
        self.model = model.eval().requires_grad_(False)
        inherit(network, model.inherited, TEACHER)
        self.register_buffer("colors", _colors(facts.preprocess, reports[0]))
        if self.features == "none":
            return None
        with seeded(0):
            self.projection = nn.Linear(network.num_features, model.num_features)
        return self.projection

    def outputs(self, network: Model, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits `b k` of the head; and `b k` of the distillation token, or the head's input `b d`.

        Without a loss on features the latter are the logits once more.
        """
        if self.has_token:
            assert isinstance(network, VisionTransformer)
            return network.forward_distilled(images)
        if self.features == "none":
            return (logits := network(images)), logits
        tokens = network.forward_features(images)
        return network.forward_head(tokens), network.forward_head(tokens, pre_logits=True)

    def forward(
        self,
        loss: Tensor,
        outputs: Float[Tensor, "b k"],
        features: Float[Tensor, "b d"],
        images: Float[Tensor, "b c h w"],
    ) -> Float[Tensor, ""]:
        """`outputs` and `features`: as of `outputs`."""
        answers, theirs = self.answers(images)
        if self.kind != "none":
            logits = features if self.has_token else outputs
            distilled = self._on_answers(logits.to(loss.dtype), answers.to(loss.dtype))
            loss = (1 - self.alpha) * loss + self.alpha * distilled
        if self.features != "none":
            ours, theirs = self.projection(features).to(loss.dtype), theirs.to(loss.dtype)
            loss = loss + self.feature_weight * _between(ours, theirs, self.features)
        return loss

    def _on_answers(self, logits: Float[Tensor, "b k"], answers: Float[Tensor, "b k"]) -> Tensor:
        if self.kind == "hard":
            return F.cross_entropy(logits, answers.argmax(-1))
        t = self.temperature
        if self.multilabel:
            loss = F.binary_cross_entropy_with_logits(
                logits / t, (answers / t).sigmoid(), reduction="none"
            )
            return loss.sum(-1).mean() * t * t
        student, teacher = (F.log_softmax(x / t, dim=-1) for x in (logits, answers))
        # DeiT's code (losses.py) takes the mean over images and classes, k times less.
        mean = "mean" if self.has_token else "batchmean"
        return F.kl_div(student, teacher, reduction=mean, log_target=True) * t * t

    @torch.no_grad()
    def answers(self, images: Float[Tensor, "b c h w"]) -> tuple[Tensor, Tensor]:
        """The teacher's logits `b k` (`b 0` for kind=none) and features `b t` of images that are
        normalised for the student."""
        scale, shift = self.colors[..., None, None]
        images = images * scale + shift
        if (size := self.model.config.size) != size_of(images):
            kind = images.dtype  # which may be bfloat16, for which CPUs have no such resize
            images = F.interpolate(images.float(), size, mode="bilinear", antialias=True).to(kind)
        tokens = self.model.forward_features(images)
        features = self.model.forward_head(tokens, pre_logits=True)
        logits = features[:, :0] if self.kind == "none" else self.model.forward_head(tokens)
        return logits, features


def _between(
    ours: Float[Tensor, "b t"], theirs: Float[Tensor, "b t"], kind: str
) -> Float[Tensor, ""]:
    if kind == "cosine":
        return 1 - F.cosine_similarity(ours, theirs, dim=-1).mean()
    return F.smooth_l1_loss(ours, F.layer_norm(theirs, theirs.shape[-1:]))


def _colors(ours: Preprocess | None, report: LoadReport) -> Tensor:
    if ours is None or not report.preprocess:
        return torch.tensor([[1.0], [0.0]])
    both = [ours.to_dict(), report.preprocess]
    pairs = [[torch.tensor(p[name], dtype=torch.float64) for p in both] for name in ("mean", "std")]
    (our_mean, their_mean), (our_std, their_std) = pairs
    return torch.stack([our_std / their_std, (our_mean - their_mean) / their_std])
