"""ImageClassifier: steps 5 to 11 of the walk, from normalised batch to logged metrics.

Shapes: b batch, c channels, h w pixels, k classes.
"""

from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import Callback, WeightAveraging
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn

from vit.checkpoints.pretrained import LoadReport, create_model
from vit.errors import UserError
from vit.models.zoo import Model
from vit.training.budget import step_budget, time_limit, time_used
from vit.training.callbacks import ConsumedSamples, EveryImageOnce, FiniteLoss
from vit.training.losses import Loss, balanced_weights
from vit.training.metrics import EvaluationMetrics
from vit.training.mixing import Mixing
from vit.training.optim import check_layer_decay, param_groups
from vit.training.schedules import Schedule


@dataclass(kw_only=True)
class Labels:
    """What the data says about its classes; travels with the model."""

    names: list[str] | None = None
    """Class names in the order of the outputs."""
    counts: list[int] | None = None
    """Training images a class."""
    multilabel: bool = False
    """Whether an image may have several labels."""


def default_optimizer(params: Any) -> torch.optim.Optimizer:
    """AdamW with a learning rate of 1e-3 and weight decay 0.05."""
    return torch.optim.AdamW(params, lr=1e-3, weight_decay=0.05, fused=True)


class ImageClassifier(LightningModule):
    """Trains and evaluates an image classifier.

    Args:
        name: Model name as `vit models` lists it. Default: what `pretrained` holds, or vit_ti16.
        architecture: Fields of the model's configuration to change, such as
            {patch_size: 4, width: 192, dropout: 0.1}.
        pretrained: Weights to start from: a run, a model directory, a file, or a hub address.
        num_classes: Outputs of the head. The command line takes it from the data.
        image_size: Pixels, one side or (height, width). The command line takes it from the data.
        labels: Class names and counts. The command line takes them from the data.
        preprocess: Evaluation preprocessing in plain types, stored with the model. The command line
            takes it from the data.
        optimizer: Any torch optimizer; it gets parameter groups in which only kernels decay.
        schedule: Warm-up and decay of the learning rate.
        loss: Cross-entropy and its options.
        mixing: Mixup and CutMix.
        layer_decay: Factor on the learning rate from each layer to the one below it, in (0, 1].
        freeze_backbone: Trains the head only (a linear probe); the rest stays in evaluation mode.
        compile: Compiles the network with torch.compile, in place.
    """

    class_weights: Tensor | None

    def __init__(
        self,
        name: str | None = None,
        *,
        architecture: dict[str, Any] | None = None,
        pretrained: str | None = None,
        num_classes: int = 1000,
        image_size: int | tuple[int, int] = 224,
        labels: Labels | None = None,
        preprocess: dict[str, Any] | None = None,
        optimizer: OptimizerCallable = default_optimizer,
        schedule: Schedule | None = None,
        loss: Loss | None = None,
        mixing: Mixing | None = None,
        layer_decay: float = 1.0,
        freeze_backbone: bool = False,
        compile: bool = False,
    ) -> None:
        super().__init__()
        self.labels = labels or Labels()
        self.preprocess = preprocess
        self.optimizer = optimizer
        self.schedule = schedule or Schedule()
        self.loss = loss or Loss()
        self.mixing = mixing or Mixing()
        self.layer_decay = layer_decay
        self.freeze_backbone = freeze_backbone
        self.compile_network = compile
        self.num_classes = num_classes
        check_layer_decay(layer_decay)
        if num_classes < 1:
            raise UserError(f"num_classes={num_classes} must be at least 1, training needs a head")
        if self.labels.multilabel and self.loss.kind != "sigmoid":
            raise UserError("images with several labels need model.loss.kind=sigmoid")
        if self.labels.names is not None and len(self.labels.names) != num_classes:
            raise UserError(
                f"labels.names has {len(self.labels.names)} names for num_classes={num_classes}"
            )
        self.model, self.load_report = _build(
            name,
            pretrained,
            classes=self.labels.names,
            num_classes=num_classes,
            image_size=image_size,
            **architecture or {},
        )
        self._prepare_head()
        weights = None
        if self.loss.class_weights == "balanced":
            if not self.labels.counts:
                raise UserError("class_weights=balanced needs labels.counts, images a class")
            weights = balanced_weights(self.labels.counts)
        self.register_buffer("class_weights", weights, persistent=False)
        multilabel = self.labels.multilabel
        self.val_metrics = EvaluationMetrics(num_classes, multilabel=multilabel, details=False)
        self.test_metrics = EvaluationMetrics(num_classes, multilabel=multilabel, details=True)
        # The split that the test loop gets; names its metrics.
        self.evaluation_split = "test"
        self.train()  # Lightning trains in the modes that it finds

    def _prepare_head(self) -> None:
        fresh = self.load_report is None or bool(self.load_report.reinitialised)
        if self.freeze_backbone:
            self.model.requires_grad_(False)
        for layer in self.model.head_layers:
            layer.requires_grad_(True)
            if self.loss.head_bias is not None and fresh:
                nn.init.constant_(layer.get_parameter("bias"), self.loss.head_bias)

    def configure_callbacks(self) -> list[Callback]:
        return [ConsumedSamples(), FiniteLoss(), EveryImageOnce()]

    def configure_model(self) -> None:
        if self.compile_network:
            self.compile_network = False  # Lightning calls this hook once per fit, test, ...
            self.model.compile()  # in place, so that the keys of the checkpoint stay clean

    def configure_optimizers(self) -> Any:
        """The optimizer over named groups, and its schedule, stepped with it."""
        groups = param_groups(
            self.model.named_parameters(),
            depth=len(self.model.layer_channels),
            layer_decay=self.layer_decay,
        )
        optimizer = self.optimizer(groups)
        # Else Lightning refuses to clip gradients for fused optimizers, even where none are scaled.
        optimizer._step_supports_amp_scaling = False  # pyright: ignore[reportAttributeAccessIssue]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * group["lr_scale"]
        total, timer = step_budget(self.trainer), time_limit(self.trainer)
        if self.schedule.needs_budget and total is None and timer is None:
            raise UserError(
                f"the {self.schedule.decay} schedule needs to know how long the run is: set "
                "--trainer.max_epochs, --trainer.max_steps or --trainer.max_time"
            )

        def factor(step: int) -> float:
            # One clock for all processes, as another rate is another model.
            used = 0.0 if timer is None else self.trainer.strategy.broadcast(time_used(timer))
            return self.schedule.factor(step, total, used)

        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def train(self, mode: bool = True) -> "ImageClassifier":
        super().train(mode)
        if self.freeze_backbone:
            self.model.eval()  # no dropout or stochastic depth in features that do not learn
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Logits `b k` of normalised images `b c h w`."""
        # With precision bf16-true, images still come in float32.
        return self.model(images.to(self.dtype))

    def training_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> Tensor:
        images, labels = batch[:2]
        if self.mixing:
            images, labels = self.mixing(images, labels, self.num_classes)
        loss = self.loss(self(images), labels, self.class_weights)
        self.log("train/loss", loss, prog_bar=True, batch_size=len(images))
        rates = [group["lr"] for group in self.trainer.optimizers[0].param_groups]
        # A tensor on the CPU: Lightning would move a number to the device, and wait for it.
        self.log("lr", torch.tensor(max(rates), dtype=torch.float64), batch_size=len(images))
        return loss

    def validation_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> None:
        self._evaluate(batch, self.val_metrics)

    def test_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> Tensor:
        return self._evaluate(batch, self.test_metrics)

    def predict_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> Tensor:
        """Probabilities `b k`."""
        return self._probabilities(self(batch[0]))

    def _probabilities(self, logits: Tensor) -> Tensor:
        logits = logits.float()
        return logits.sigmoid() if self.labels.multilabel else logits.softmax(-1)

    def _evaluate(self, batch: tuple[Tensor, ...], metrics: EvaluationMetrics) -> Tensor:
        """Adds a batch to the metrics and returns its probabilities `b k`."""
        images, labels = batch[:2]
        logits = self(images)
        probabilities = self._probabilities(logits)
        if len(images):
            # The plain loss, without smoothing or class weights, so that runs can be compared.
            loss = Loss(kind=self.loss.kind)(logits, labels)
            metrics.update(probabilities, labels, loss)
        return probabilities

    def on_validation_epoch_start(self) -> None:
        self.val_metrics.reset()

    def on_test_epoch_start(self) -> None:
        self.test_metrics.reset()

    def on_validation_epoch_end(self) -> None:
        self._log_scores("val", self.val_metrics)

    def on_test_epoch_end(self) -> None:
        self._log_scores(self.evaluation_split, self.test_metrics)

    def _log_scores(self, split: str, metrics: EvaluationMetrics) -> None:
        for name, value in metrics.compute().items():
            shown = name in ("loss", "acc1", "map")
            # float64 sums are logged in float32: some accelerators have no float64.
            self.log(f"{split}/{name}", value.float(), prog_bar=shown, rank_zero_only=False)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Plain types only, so that the file loads without executing code."""
        checkpoint["vit"] = {
            "config": self.model.config.to_dict(),
            "classes": self.labels.names,
            "preprocess": self.preprocess,
            # With weight averaging `state_dict` is the average; the raw weights that training
            # continues from are under `current_model_state`.
            "weights": "ema" if self._averages() else "raw",
            "metrics": {
                name: float(value)
                for name, value in self.trainer.callback_metrics.items()
                if name.startswith("val/")
            },
            "extra": {"multilabel": self.labels.multilabel},
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses to train on from averaged weights as if training had left off with them."""
        resumed = self.trainer.state.fn == TrainerFn.FITTING
        if resumed and "current_model_state" in checkpoint and not self._averages():
            raise UserError(
                "the checkpoint is of a run with EMA: add that callback to continue it, or start a "
                "new run with --model.pretrained"
            )

    def _averages(self) -> bool:
        callbacks = self.trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
        return any(isinstance(callback, WeightAveraging) for callback in callbacks)


# What trains where neither a name nor weights are given: small enough for a CPU.
DEFAULT_MODEL = "vit_ti16"


def _build(
    name: str | None, pretrained: str | None, **options: Any
) -> tuple[Model, LoadReport | None]:
    if pretrained is None:
        return create_model(name or DEFAULT_MODEL, **options), None
    reports: list[LoadReport] = []
    model = create_model(name, pretrained=pretrained, report=reports.append, **options)
    return model, reports[0]
