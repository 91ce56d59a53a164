"""Distillation: a network learns the answers and the features of a teacher.

Shapes: b c h w images, k classes, d features of the student, t features of the teacher.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from typing_extensions import override

from vit import signals
from vit.console import note, say
from vit.data.module import ImageData
from vit.errors import AT_LEAST_ONE, POSITIVE, SHARE, UserError, check_range
from vit.extensions.adaptation.answer_file import AnswerFile
from vit.extensions.licences.rows import TEACHER, inherit
from vit.facts import Facts
from vit.models.vision_transformer import VisionTransformer
from vit.models.zoo import Model
from vit.preprocessing import Preprocess, check_choice, size_of
from vit.seeds import seeded
from vit.shapes import Float
from vit.training.counted_data import Batch, counting_data
from vit.training.image_classifier import ImageClassifier
from vit.training.losses import TeacherLoss
from vit.weights.identity import identity
from vit.weights.pretrained import LoadReport, create_model

Kind = Literal["auto", "hard", "soft", "none"]
FeatureLoss = Literal["none", "cosine", "smooth_l1"]
CACHE = "teacher_cache.bin"
"""In the run directory, while a run with --teacher-cache is not finished."""


class Answers(NamedTuple):
    """A teacher's logits `b k` and features `b t` of a batch of images."""

    logits: Tensor
    features: Tensor
    mixed: Callable[[Tensor], Tensor] = lambda targets: targets
    """Targets `b k` of these images -> those of the batch that the student sees."""


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
        cache: Crops of each image, whose answers the teacher computes once and a file of the run
            keeps in float16; later epochs show these crops again. Mixed images learn the mixture of
            its probabilities for the two images, not its answer to the mixed one. None: every epoch
            has other crops, and the teacher answers all of them.
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
        cache: int | None = None,
    ) -> None:
        super().__init__()
        if cache is not None:
            check_range("cache", cache, AT_LEAST_ONE)
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
        self.features, self.feature_weight, self.cache = features, feature_weight, cache
        self.kept: Answers | None = None

    def guards(self) -> list[Callback]:
        return [Teaching(self)] if self.cache is None else [CachedTeaching(self, self.cache)]

    def prepare(self, network: Model, facts: Facts) -> nn.Module | None:
        """Reads the teacher and makes the projection. UserError without a teacher, for one that
        knows other classes, and for losses that the student cannot have."""
        if self.weights is None:
            raise UserError("vit.Distillation needs weights: --model.loss.teacher.weights WEIGHTS")
        self.has_token, self.multilabel = len(network.head_layers) == 2, facts.multilabel
        if self.kind == "auto":
            is_hard = self.has_token and self.temperature == 1 and not facts.multilabel
            self.kind = "hard" if is_hard else "soft"
        if self.has_token and (self.features != "none" or self.kind == "none" or self.alpha == 1):
            raise UserError(
                "a distillation token learns answers, and the class token labels: leave out "
                "model.loss.teacher.features or alpha 1, or the token "
                "(--model.architecture.distillation_token false)"
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
        theirs, ours = model.config.in_channels, network.config.in_channels
        if theirs != ours:
            raise UserError(f"{path}: the teacher takes {theirs} channels, and images have {ours}")
        _check(reports[0], path, facts, answers=self.kind != "none")
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
        answers, theirs, mixed = self.kept or Answers(*self.answers(images))
        if self.kind != "none":
            logits = features if self.has_token else outputs
            targets = mixed(self._targets(answers.to(loss.dtype)))
            distilled = self._on_targets(logits.to(loss.dtype), targets)
            loss = (1 - self.alpha) * loss + self.alpha * distilled
        if self.features != "none":
            ours, theirs = self.projection(features).to(loss.dtype), theirs.to(loss.dtype)
            loss = loss + self.feature_weight * _between(ours, theirs, self.features)
        return loss

    def _targets(self, answers: Float[Tensor, "b k"]) -> Float[Tensor, "b k"]:
        """The teacher's probabilities, or all of them on its first choice."""
        if self.kind == "hard":
            return F.one_hot(answers.argmax(-1), answers.shape[-1]).to(answers.dtype)
        answers = answers / self.temperature
        return answers.sigmoid() if self.multilabel else answers.softmax(-1)

    def _on_targets(self, logits: Float[Tensor, "b k"], targets: Float[Tensor, "b k"]) -> Tensor:
        if self.kind == "hard":
            return F.cross_entropy(logits, targets)
        t = self.temperature
        if self.multilabel:
            loss = F.binary_cross_entropy_with_logits(logits / t, targets, reduction="none")
            return loss.sum(-1).mean() * t * t
        # DeiT's code (losses.py) takes the mean over images and classes, k times less.
        mean = "mean" if self.has_token else "batchmean"
        return F.kl_div(F.log_softmax(logits / t, dim=-1), targets, reduction=mean) * t * t

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


def _check(report: LoadReport, path: str, facts: Facts, *, answers: bool) -> None:
    """Says what is assumed of a teacher. UserError for one that answers another question."""
    for text in report.notes:
        note(f"teacher: {text}")
    if answers and report.classes is None:
        note(f"{path} names no classes: its outputs are taken in the order of the data's")
    if answers and report.multilabel != facts.multilabel:
        several = "several labels" if facts.multilabel else "one label"
        raise UserError(f"{path}: the teacher was not trained on {several} per image, as here")


def _between(
    ours: Float[Tensor, "b t"], theirs: Float[Tensor, "b t"], kind: str
) -> Float[Tensor, ""]:
    if kind == "cosine":
        return 1 - F.cosine_similarity(ours, theirs, dim=-1).mean()
    return F.smooth_l1_loss(ours, F.layer_norm(theirs, theirs.shape[-1:]))


def _colors(ours: Preprocess | None, report: LoadReport) -> Tensor:
    if ours is None:
        return torch.tensor([[1.0], [0.0]])
    if not report.preprocess:
        raise UserError(
            f"{report.source} does not say how images are normalised for the teacher: put its "
            "config.json (timm) or preprocessor_config.json (Hugging Face) beside it"
        )
    both = [ours.to_dict(), report.preprocess]
    pairs = [[torch.tensor(p[name], dtype=torch.float64) for p in both] for name in ("mean", "std")]
    (our_mean, their_mean), (our_std, their_std) = pairs
    return torch.stack([our_std / their_std, (our_mean - their_mean) / their_std])


class Teaching(Callback):
    """Puts a teacher on the device, and compiles what the student computes for it."""

    def __init__(self, teacher: Distillation) -> None:
        self.teacher = teacher

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        assert isinstance(pl_module, ImageClassifier)
        # With a projection the blocks are compiled, and nothing around them.
        if stage == "fit" and pl_module.compile_network and self.teacher.features == "none":
            self.teacher.outputs = torch.compile(self.teacher.outputs)

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, ImageClassifier)
        self.teacher.to(pl_module.device, next(pl_module.model.parameters()).dtype)


class CachedTeaching(Teaching):
    """Gives a teacher's loss the answers that it has computed for the same crops before."""

    def __init__(self, teacher: Distillation, crops: int) -> None:
        super().__init__(teacher)
        self.crops = crops
        self.data: ImageData | None = None
        """Of the fit that is under way."""

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage != "fit":
            return
        assert isinstance(pl_module, ImageClassifier)
        data = counting_data(trainer)
        if not isinstance(data, ImageData):
            raise UserError("--teacher-cache needs vit.ImageData, whose crops can come again")
        if data.loading.on_error == "skip":
            raise UserError(
                "--teacher-cache knows images by their places, which data.loading.on_error=skip "
                "changes; leave one of them out (`vit data check --fix` lists the good images)"
            )
        if data.sampling.repeats > 1 or (data.sampling.balanced and trainer.world_size > 1):
            raise UserError(
                "with --teacher-cache an image has one crop per epoch: leave out "
                "data.sampling.repeats, and on several processes data.sampling.balanced"
            )
        if pl_module.mixing and self.teacher.features != "none":
            raise UserError(
                "the features of a mixed image are no mixture of those of two: leave out "
                "--teacher-cache, model.loss.teacher.features or model.mixing"
            )
        self.data, data.crops = data, self.crops

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, ImageClassifier) and self.teacher.weights is not None
        self._images: int = len(trainer.train_dataloader.dataset)  # pyright: ignore
        path = Path(trainer.default_root_dir) / CACHE
        rows, width = self.crops * self._images, sum(self._widths)
        self._file = AnswerFile(path, rows, width, identity(self.teacher.weights))
        mixing = "; mixed images learn the mixture of both answers" if pl_module.mixing else ""
        say(
            f"teacher: {self.crops} crops of each of {self._images:,} images; their answers are "
            f"computed once, and kept in {path} ({self._file.size / 2**20:,.0f} MiB) until the run "
            f"ends{mixing}"
        )

    @override
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, ImageClassifier) and self.data is not None
        module, data, (images, _, indices) = pl_module, self.data, batch
        epoch = data.consumed_samples // data.samples_per_epoch(trainer.world_size)
        places = epoch % self.crops * self._images + indices.cpu()
        sums = self._file.sums(images)
        values, known = self._file.read(places, sums)
        if not known.all():
            with trainer.precision_plugin.forward_context():
                answers = self.teacher.answers(images.to(module.dtype))
            new = torch.cat(answers, dim=1)[:, : sum(self._widths)].half().cpu()[~known]
            if not new.isfinite().all():
                raise UserError(
                    f"the teacher {self.teacher.weights} has answers that are no numbers of "
                    "float16 (up to 65,504): it is damaged, or leave out --teacher-cache"
                )
            self._file.write(places[~known], sums[~known], new)
            # Rows that were there stay, and a run that goes on reads the same: the last bits of
            # an answer depend on the batch in which it is computed.
            values, _ = self._file.read(places, sums)
        logits, features = values.to(images.device, images.dtype).split(self._widths, dim=1)

        def mixed(targets: Tensor) -> Tensor:
            none = images[:, :0]  # their sizes alone matter
            return module.mixing(none, targets, module.num_classes, module.draws)[1]

        self.teacher.kept = Answers(logits, features, *([mixed] if module.mixing else []))

    @override
    def on_train_batch_end(self, *_: object, **__: object) -> None:
        self.teacher.kept = None

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero and not signals.received():
            (Path(trainer.default_root_dir) / CACHE).unlink(missing_ok=True)

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self.data is not None:  # a program may train with it again, without a cache
            self.data.crops = self.teacher.kept = self.data = None

    @override
    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self.teardown(trainer, pl_module, "fit")

    @property
    def _widths(self) -> list[int]:
        """Logits and features that the losses need of an image."""
        config = self.teacher.model.config
        logits = 0 if self.teacher.kind == "none" else config.num_classes
        features = 0 if self.teacher.features == "none" else self.teacher.model.num_features
        return [logits, features]
