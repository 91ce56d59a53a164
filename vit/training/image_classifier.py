"""ImageClassifier: from normalised batch to logged metrics.

Shapes: b batch, c channels, h w pixels, k classes.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Self

import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor

from vit.errors import UserError
from vit.facts import Facts
from vit.models.zoo import Model
from vit.preprocessing import Preprocess
from vit.synonyms import keywords
from vit.training.counted_data import Batch
from vit.training.learning import Adaptation, Learning, begin
from vit.training.losses import Loss
from vit.training.metrics import EvaluationMetrics, metrics_for
from vit.training.mixing import Mixing
from vit.training.network_training import (
    NetworkTraining,
    Recorded,
    build_network,
    default_optimizer,
)
from vit.training.schedules import Schedule
from vit.weights.adapt import HeadRows
from vit.weights.pretrained import inspect_pretrained


class ImageClassifier(NetworkTraining[Model, EvaluationMetrics]):
    """Trains and evaluates an image classifier.

    Args:
        name: Model name as `vit models` lists it. Default: what `pretrained` holds, or vit_ti16.
        architecture: Fields of the model's configuration to change, such as
            {patch_size: 4, dropout: 0.1}; recompute: true saves memory, and computes layers twice.
        pretrained: Weights to start from: a run, a model directory, a file, or a hub address.
        head: Of `pretrained`, rows of the same class names and new ones (fit), or all of them by
            number (keep); score: all, by name or number.
        weights: Of a file with both, the raw weights or their average (the default).
        optimizer: Any torch optimizer; it gets parameter groups in which only kernels decay.
        schedule: Warm-up and decay of the learning rate.
        loss: Cross-entropy and its options.
        mixing: Mixup and CutMix.
        learning: Which parameters learn, and how fast.
        adaptation: Parameters that are trained with the head while the rest is frozen, such as
            vit.LoRA. Merged when the run ends.
        compile: Compiles the network with torch.compile, in place.
        facts: What follows from the images and their labels: `ImageData.facts`.
    """

    class_weights: Tensor | None

    @keywords
    def __init__(
        self,
        name: str | None = None,
        *,
        architecture: dict[str, Any] | None = None,
        pretrained: str | None = None,
        head: HeadRows = "fit",
        weights: Literal["raw", "average"] | None = None,
        optimizer: OptimizerCallable = default_optimizer,
        schedule: Schedule | None = None,
        loss: Loss | None = None,
        mixing: Mixing | None = None,
        learning: Learning = Learning(),
        adaptation: Adaptation | None = None,
        compile: bool = False,
        facts: Facts = Facts(),
    ) -> None:
        super().__init__(facts.preprocess, optimizer, schedule, compile=compile)
        self.facts, self.classes, self.multilabel = facts, facts.classes, facts.multilabel
        self.loss = (loss or Loss()).for_labels(multilabel=self.multilabel)
        # Without smoothing, class weights or a function, so that runs can be compared.
        self.plain_loss = Loss(kind=self.loss.kind).for_labels(multilabel=self.multilabel)
        self.mixing, self.learning, self.adaptation = mixing or Mixing(), learning, adaptation
        self.layer_decay = learning.layer_decay
        options = {"num_classes": facts.num_classes, "head": head, "weights": weights}
        self.model, report = build_network(name, pretrained, architecture, facts, **options)
        self.load_report, self.num_classes = report, self.model.config.num_classes
        if self.num_classes < 2 - self.multilabel:
            raise UserError(f"num_classes={self.num_classes}: two are needed, or multilabel")
        begin(self.model, report, learning, adaptation, self.loss.head_bias)
        self.register_buffer("class_weights", self.loss.weights_of(facts), persistent=False)
        scores = metrics_for(facts)
        self.val_metrics, self.test_metrics = scores(self.num_classes), scores(self.num_classes)
        self.monitor = f"val/{scores.main}"
        self.test_metrics.take(report)
        self.train()  # Lightning trains in the modes that it finds

    @classmethod
    def for_scoring(
        cls,
        weights: str,
        facts: Facts,
        recorded: Recorded,
        read_state: Callable[[], dict[str, Tensor]],
    ) -> Self:
        kind = (recorded.get("loss") or {}).get("kind", "auto")
        return cls(pretrained=weights, facts=facts, head="score", loss=Loss(kind=kind))

    @classmethod
    def load_from_checkpoint(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls,
        checkpoint_path: str | Path,
        map_location: torch.device | str | None = None,
        **options: Any,
    ) -> Self:
        """The classifier of a checkpoint, a run or a model directory, without executing its code.

        Network (with EMA the average, with an adaptation merged), classes, preprocessing and
        thresholds are those of the file; optimizer, schedule, loss and the rest are `options`.
        """
        info = inspect_pretrained(checkpoint_path)
        labels = {name: info.extra.get(name, False) for name in ("multilabel", "tree")}
        preprocess = Preprocess.from_dict(info.preprocess) if info.preprocess else None
        facts = Facts(classes=info.classes, preprocess=preprocess, **labels)
        module = cls(pretrained=str(checkpoint_path), head="score", facts=facts, **options)
        return module if map_location is None else module.to(map_location)

    def setup(self, stage: str) -> None:
        if stage != "fit":
            return
        self.test_metrics.take(None)  # not those of the weights that training starts from
        self.loss.check_sampling(self.trainer)
        if self.loss.teacher is not None:
            self.taught = self.loss.teacher.prepare(self.model, self.facts)

    def train(self, mode: bool = True) -> "ImageClassifier":
        super().train(mode)
        if self.learning.freeze_backbone:
            self.model.eval()  # no dropout or stochastic depth in features that do not learn
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Logits `b k` of normalised images `b c h w`."""
        # With precision bf16-true, images still come in float32.
        return self.model(images.to(self.dtype))

    def training_loss(self, batch: Batch) -> Tensor:
        images, labels = batch[:2]
        if self.mixing:
            images, labels = self.mixing(images, labels, self.num_classes, self.draws)
        if (teacher := self.loss.teacher) is None:
            return self.loss(self(images), labels, self.class_weights)
        images = images.to(self.dtype)
        outputs, features = teacher.outputs(self.model, images)
        loss = self.loss(outputs, labels, self.class_weights)
        return teacher(loss, outputs, features, images)

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Probabilities `b k`."""
        return self.test_metrics.probabilities(self(batch[0]).float())

    def evaluate_batch(self, batch: Batch, metrics: EvaluationMetrics) -> Tensor:
        """Adds a batch to the metrics and returns its probabilities `b k`."""
        images, labels = batch[:2]
        outputs = self(images)
        if len(images):
            metrics.add(outputs.float(), labels, self.plain_loss(outputs, labels))
        return metrics.probabilities(outputs.float())

    def guards(self) -> list[Callback]:
        taught = self.loss.teacher.guards() if self.loss.teacher is not None else ()
        return [*super().guards(), *self.test_metrics.guards(), *taught]

    def extra(self) -> dict[str, Any]:
        tree = {"tree": True} if self.facts.tree else {}
        return {"multilabel": self.multilabel, **tree, **self.test_metrics.chosen()}
