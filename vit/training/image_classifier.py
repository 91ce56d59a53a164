"""ImageClassifier: from normalised batch to logged metrics.

Shapes: b batch, c channels, h w pixels, k classes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor

from vit.console import say
from vit.errors import ABOVE_ZERO, UserError, check_range
from vit.extensions.adaptation.distillation import Teacher, with_answers
from vit.extensions.adaptation.lora import add_lora, merge_lora
from vit.models.vision_transformer import VisionTransformer
from vit.models.zoo import Model
from vit.preprocessing import Preprocess
from vit.training.counted_data import counting_data, logits_of
from vit.training.losses import Loss, balanced_weights, named_weights
from vit.training.metrics import EvaluationMetrics
from vit.training.mixing import Mixing, check_pairs
from vit.training.network_training import NetworkTraining, build_network, default_optimizer
from vit.training.schedules import Schedule
from vit.weights.adapt import HeadRows
from vit.weights.pretrained import inspect_pretrained


@dataclass(frozen=True, kw_only=True)
class Learning:
    """The parameters that learn, and their rates."""

    layer_decay: float = 1.0
    """Factor on the learning rate from each layer to the one below it, in (0, 1]."""

    freeze_backbone: bool = False
    """Trains the head only (a linear probe); the rest stays in evaluation mode."""

    def __post_init__(self) -> None:
        check_range("learning.layer_decay", self.layer_decay, ABOVE_ZERO)


_LEARNING = Learning()


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
        num_classes: Outputs. This and the next seven follow from the data on the command line.
            Default: as many as `classes`, else those of the weights, or 1000.
        classes: Class names in the order of the outputs.
        counts: Training images of each class, for balanced weights.
        multilabel: An image may have several labels.
        tree: The classes are paths in a tree; recorded with the model.
        image_size: Pixels, one side or (height, width). Default: that of the weights or the model.
        channels: Of images that are not RGB.
        preprocess: Evaluation preprocessing, stored with the model.
        optimizer: Any torch optimizer; it gets parameter groups in which only kernels decay.
        schedule: Warm-up and decay of the learning rate.
        loss: Cross-entropy and its options.
        mixing: Mixup and CutMix.
        learning: Which parameters learn, and how fast.
        lora: Rank of low-rank updates (arXiv:2106.09685) of queries, keys, values and MLP, which
            are trained with the head while the rest is frozen. Merged when the run ends.
        compile: Compiles the network with torch.compile, in place.
    """

    class_weights: Tensor | None

    def __init__(
        self,
        name: str | None = None,
        *,
        architecture: dict[str, Any] | None = None,
        pretrained: str | None = None,
        head: HeadRows = "fit",
        weights: Literal["raw", "average"] | None = None,
        num_classes: int | None = None,
        classes: list[str] | None = None,
        counts: list[int] | None = None,
        multilabel: bool = False,
        tree: bool = False,
        image_size: int | tuple[int, int] | None = None,
        channels: int | None = None,
        preprocess: Preprocess | None = None,
        optimizer: OptimizerCallable = default_optimizer,
        schedule: Schedule | None = None,
        loss: Loss | None = None,
        mixing: Mixing | None = None,
        learning: Learning = _LEARNING,
        lora: int | None = None,
        compile: bool = False,
    ) -> None:
        super().__init__(
            preprocess=preprocess, optimizer=optimizer, schedule=schedule, compile=compile
        )
        self.classes, self.counts, self.multilabel, self.tree = classes, counts, multilabel, tree
        self.monitor = "val/map" if multilabel else "val/acc1"
        self.loss = (loss or Loss()).for_labels(multilabel=multilabel)
        # Without smoothing, class weights or a function, so that runs can be compared.
        self.plain_loss = Loss(kind=self.loss.kind).for_labels(multilabel=multilabel)
        self.mixing = mixing or Mixing()
        self.layer_decay = learning.layer_decay
        self.freeze_backbone = learning.freeze_backbone
        self.model, self.load_report = build_network(
            name,
            pretrained,
            architecture,
            weights=weights,
            image_size=image_size,
            channels=channels,
            classes=classes,
            num_classes=num_classes,
            head=head,
        )
        self.num_classes = num_classes = self.model.config.num_classes
        if num_classes < 1:
            raise UserError(f"num_classes={num_classes} must be at least 1, training needs a head")
        if num_classes == 1 and not multilabel:
            raise UserError("num_classes=1 needs multilabel: softmax makes one output 1 for all")
        self._prepare_head()
        if lora is not None:
            self._add_lora(lora)
        self.teacher: Teacher | None = None  # loaded by a fit that distils; not of the state dict
        self.register_buffer("class_weights", self._class_weights(), persistent=False)
        self.val_metrics = EvaluationMetrics(
            num_classes, multilabel=multilabel, choose_thresholds=True
        )
        self.test_metrics = EvaluationMetrics(num_classes, multilabel=multilabel)
        report = self.load_report
        self.thresholds = report.thresholds if report is not None and multilabel else None
        """Of several labels per image, by class: a probability above it is a yes."""
        self.temperature = None if report is None else report.temperature
        """Of the probabilities of a test, where one was fitted to these weights."""
        self.train()  # Lightning trains in the modes that it finds

    @classmethod
    def for_scoring(
        cls,
        weights: str,
        of_data: dict[str, Any],
        recorded: dict[str, Any],
        read_state: Callable[[], dict[str, Tensor]],
    ) -> Self:
        kind = (recorded.get("loss") or {}).get("kind", "auto")
        return cls(pretrained=weights, **of_data, head="score", loss=Loss(kind=kind))

    @classmethod
    def load_from_checkpoint(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, checkpoint_path: str | Path, map_location: Any = None, **options: Any
    ) -> Self:
        """The classifier of a checkpoint, a run or a model directory, without executing its code.

        Network (with EMA the average, with LoRA merged), classes, preprocessing and thresholds are
        those of the file; optimizer, schedule, loss and the rest are the `options` given.
        """
        info = inspect_pretrained(checkpoint_path)
        preprocess = Preprocess.from_dict(info.preprocess) if info.preprocess else None
        module = cls(
            pretrained=str(checkpoint_path),
            classes=info.classes,
            head="score",
            multilabel=info.extra.get("multilabel", False),
            tree=info.extra.get("tree", False),
            preprocess=preprocess,
            **options,
        )
        return module if map_location is None else module.to(map_location)

    def _prepare_head(self) -> None:
        if self.loss.distillation is not None and len(self.model.head_layers) != 2:
            raise UserError(
                "model.loss.distillation needs a model with a distillation token: add "
                "--model.architecture.distillation_token true"
            )
        report, fresh = self.load_report, torch.ones(self.num_classes, dtype=torch.bool)
        if report is not None:
            fresh[report.kept if report.reinitialised else slice(None)] = False
        if self.freeze_backbone:
            self.model.requires_grad_(False)
        for layer in self.model.head_layers:
            layer.requires_grad_(True)
            if self.loss.head_bias is not None:
                with torch.no_grad():
                    layer.get_parameter("bias")[fresh] = self.loss.head_bias

    def _add_lora(self, rank: int) -> None:
        if self.load_report is None:
            raise UserError(f"model.lora={rank} changes pre-trained weights: give model.pretrained")
        if self.freeze_backbone:
            raise UserError(
                f"model.lora={rank} and learning.freeze_backbone exclude each other: one trains "
                "factors and the head, the other the head alone"
            )
        add_lora(self.model, rank)

    def _class_weights(self) -> Tensor | None:
        weights = self.loss.class_weights
        if isinstance(weights, dict):
            if self.classes is None:
                raise UserError("class_weights by name need classes, their names")
            return named_weights(weights, self.classes)
        if weights == "none":
            return None
        if not self.counts:
            raise UserError("class_weights=balanced needs counts, the images of each class")
        return balanced_weights(self.counts)

    def _compile(self) -> None:
        super()._compile()
        if self.loss.distillation is not None:
            self.forward_distilled = torch.compile(self.forward_distilled)

    def merge(self) -> None:
        merge_lora(self.model)

    def setup(self, stage: str) -> None:
        if stage != "fit":
            return
        self.thresholds = self.temperature = None  # of the weights that training starts from
        data = counting_data(self.trainer)
        balanced = data is not None and data.sampling.balanced
        if balanced and self.loss.class_weights == "balanced":
            raise UserError(
                "data.sampling.balanced=true and model.loss.class_weights=balanced would correct "
                "imbalance twice; use one of them"
            )
        if self.loss.distillation is not None:
            self.teacher = Teacher(
                self.loss.distillation.teacher,
                image_size=self.model.config.size,
                num_classes=self.num_classes,
                classes=self.classes,
                preprocess=self.preprocess,
            )

    def on_fit_start(self) -> None:
        super().on_fit_start()
        data = counting_data(self.trainer)
        if self.mixing and data is not None:
            batches = self.trainer.world_size * self.trainer.accumulate_grad_batches
            check_pairs(data.batch_size, data.batch_size * batches)
        if self.teacher is not None:
            self.teacher.to(self.device, next(self.model.parameters()).dtype)

    def train(self, mode: bool = True) -> "ImageClassifier":
        super().train(mode)
        if self.freeze_backbone:
            self.model.eval()  # no dropout or stochastic depth in features that do not learn
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Logits `b k` of normalised images `b c h w`."""
        # With precision bf16-true, images still come in float32.
        return self.model(images.to(self.dtype))

    def training_loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        images, labels = batch[:2]
        if self.mixing:
            images, labels = self.mixing(images, labels, self.num_classes, self.draws)
        if self.teacher is None or self.loss.distillation is None:
            return self.loss(self(images), labels, self.class_weights)
        images = images.to(self.dtype)
        logits, distilled = self.forward_distilled(images)
        loss = self.loss(logits, labels, self.class_weights)
        return with_answers(loss, distilled, self.teacher(images), self.loss.distillation)

    def forward_distilled(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits `b k` of the class token and of the distillation token."""
        assert isinstance(self.model, VisionTransformer)
        return self.model.forward_distilled(images)

    def predict_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> Tensor:
        """Probabilities `b k`."""
        return self._probabilities(self(batch[0]).float() / (self.temperature or 1.0))

    def _probabilities(self, logits: Tensor) -> Tensor:
        return logits.sigmoid() if self.multilabel else logits.softmax(-1)

    def _evaluate(self, batch: tuple[Tensor, ...], metrics: EvaluationMetrics) -> Tensor:
        """Adds a batch to the metrics and returns its probabilities `b k`, with a temperature of
        the metrics those of logits / temperature."""
        images, labels = batch[:2]
        outputs = self(images)
        logits = outputs.float()
        if len(images):
            metrics.update(self._probabilities(logits), labels, self.plain_loss(outputs, labels))
            if metrics.temperature is not None:
                metrics.update_scaled(logits, labels)
        return self._probabilities(logits / (metrics.temperature or 1.0))

    def on_test_epoch_start(self) -> None:
        super().on_test_epoch_start()
        self.test_metrics.temperature = self.temperature
        self.test_metrics.thresholds = self.thresholds

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        self._take_thresholds()

    def on_fit_end(self) -> None:
        """Several labels: the thresholds on val of weights for which no validation chose any."""
        data = counting_data(self.trainer)
        if not self.multilabel or self.thresholds is not None or data is None:
            return
        if data.splits.val is None or self.trainer.limit_val_batches == 0:
            say("thresholds: 0.5 for every class, as no validation images could choose them")
        else:
            outputs = logits_of(self.trainer, self, "val")
            self.choose_thresholds((logits, labels) for logits, labels, _ in outputs)

    def choose_thresholds(self, outputs: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Takes the thresholds of highest F1 on this process's batches: logits, labels `b k`.

        Every process must call it.
        """
        self.val_metrics.reset()
        for logits, labels in outputs:
            loss = self.plain_loss(logits, labels)
            self.val_metrics.update(self._probabilities(logits), labels, loss)
        self.val_metrics.compute()
        self._take_thresholds()

    def _take_thresholds(self) -> None:
        chosen = self.val_metrics.chosen_thresholds()
        if chosen is not None:
            self.thresholds = [float(value) for value in chosen]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self.thresholds = (checkpoint.get("vit") or {}).get("extra", {}).get("thresholds")

    def extra(self) -> dict[str, Any]:
        chosen = {} if self.thresholds is None else {"thresholds": self.thresholds}
        tree = {"tree": True} if self.tree else {}
        scale = {} if self.temperature is None else {"temperature": self.temperature}
        return {"multilabel": self.multilabel, **tree, **chosen, **scale}
