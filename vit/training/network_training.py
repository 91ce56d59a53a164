"""Base LightningModule: network, optimizer, schedule, logs, contents of checkpoints."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Generic, Self, TypeVar

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    Callback,
    GradientAccumulationScheduler,
    LearningRateFinder,
    StochasticWeightAveraging,
)
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from vit.errors import MESSAGE, NOT_NEGATIVE, Range, UserError, check_range, shorten
from vit.facts import Facts
from vit.models.units import sharded_units
from vit.models.zoo import Model
from vit.preprocessing import Preprocess
from vit.seeds import indices_in_step, step_seed
from vit.training.budget import Length, check_intervals, step_budget, steps_per_epoch
from vit.training.callbacks.finite import FiniteLoss
from vit.training.callbacks.invariants import ConsumedSamples, EveryImageOnce
from vit.training.counted_data import Batch, counting_data
from vit.training.draws import StepDraws, batch_draws, set_depth
from vit.training.learning import Adaptation
from vit.training.lightning_internals import is_logged
from vit.training.metrics import SplitMetrics
from vit.training.optimizers.param_groups import Group, param_groups
from vit.training.saving import Contents, averages
from vit.training.schedules import Schedule
from vit.weights.pretrained import LoadReport, create_model

Recorded = dict[str, Any]
"""The section `model` of a run's config.yaml."""
DEFAULT_MODEL = "vit_ti16"  # small enough for a CPU
DECIDED = {
    "num_classes": "data.root",
    "image_size": "data.image_size",
    "in_channels": "data.channels",
    "name": "model.name",
}
"""Fields of an architecture that other options decide."""
RECOMPUTE = "recompute"
"""Key beside an architecture's fields: the backward pass computes each layer again, for memory."""
REFUSED: dict[type[Callback], str] = {
    GradientAccumulationScheduler: "set trainer.accumulate_grad_batches",
    StochasticWeightAveraging: "use vit.EMA, whose average is scored",
    BackboneFinetuning: "-c finetune fits the head first",
    BatchSizeFinder: "use --data.batch_size auto",
    LearningRateFinder: "`vit transfer` tries several learning rates",
}
"""Lightning's callbacks with which a run could not be resumed or scored, and remedies."""
ADAMW = {"lr": 1e-3, "weight_decay": 0.05, "fused": True}
"""Arguments of the default optimizer."""


def default_optimizer(params: ParamsT) -> torch.optim.Optimizer:
    """AdamW with a learning rate of 1e-3 and weight decay 0.05."""
    return torch.optim.AdamW(params, **ADAMW)


def build_optimizer(optimizer: OptimizerCallable, groups: list[Group]) -> torch.optim.Optimizer:
    """The optimizer of these groups; UserError for arguments or a rate that are refused."""
    try:
        built = optimizer(groups)
    except (ValueError, TypeError, RuntimeError) as error:
        reason = shorten(" ".join(str(error).split()), MESSAGE)
        raise UserError(f"model.optimizer: {reason}") from error
    # Else Lightning refuses to clip gradients for fused optimizers, even where none are scaled.
    built._step_supports_amp_scaling = False  # pyright: ignore
    for group in built.param_groups:
        check_range("model.optimizer.lr", group["lr"], NOT_NEGATIVE)
        group["lr"] = group["lr"] * group["lr_scale"]
    return built


def build_network(
    name: str | None,
    pretrained: str | None,
    architecture: Mapping[str, object] | None,
    facts: Facts,
    **options: Any,
) -> tuple[Model, LoadReport | None]:
    """The network, and the report of its weights; None for random ones."""
    changes = dict(architecture or {})
    recompute = changes.pop(RECOMPUTE, False)
    if not isinstance(recompute, bool):
        raise UserError(f"model.architecture.{RECOMPUTE}={recompute} must be true or false")
    for field, option in DECIDED.items():
        if field in changes:
            raise UserError(
                f"model.architecture.{field}={changes[field]} follows from {option}; set that"
            )
    if facts.channels is not None:
        changes["in_channels"] = facts.channels
    options |= {"image_size": facts.image_size, "classes": facts.classes or None, **changes}
    reports: list[LoadReport] = []
    name = name or (DEFAULT_MODEL if pretrained is None else None)
    model = create_model(name, pretrained=pretrained, report=reports.append, **options)
    model.set_grad_checkpointing(recompute)
    return model, reports[0] if reports else None


Network = TypeVar("Network", bound=Model)
Scores = TypeVar("Scores", bound=SplitMetrics)


class NetworkTraining(LightningModule, Generic[Network, Scores], ABC):
    """Trains a network of ours; a subclass sets the attributes and has the loss and the scores."""

    labelled = True
    """Training needs labels."""
    data_module: type | None = None
    """A subclass of vit.ImageData whose images the task needs; None: of that itself."""
    monitor: str
    """The validation score by which the best weights are chosen."""
    of_training: frozenset[str] = frozenset()
    """Arguments that a test of a task without labels leaves out; it takes the others again."""
    classes: list[str] | None = None
    """Class names in the order of the outputs."""
    adaptation: Adaptation | None = None
    held_out: Sequence[tuple[Tensor, Tensor]] = ()
    """Without val: logits and labels of training images, each by what was fitted without it."""
    held_out_by = "a head"
    """Name of what was fitted."""
    unscored = "not scored: no images for it, or --final_split none"
    model: Network
    load_report: LoadReport | None
    val_metrics: Scores
    test_metrics: Scores

    def __init__(
        self,
        preprocess: Preprocess | None,
        optimizer: OptimizerCallable,
        schedule: Schedule | None,
        *,
        compile: bool,
    ) -> None:
        super().__init__()
        self.preprocess = preprocess
        self.optimizer = optimizer
        self.schedule = schedule or Schedule()
        self.length = self.schedule.length or Length()
        self.compile_network = compile
        self.layer_decay = 1.0
        self.draws: StepDraws | None = None
        """Random numbers of the current training batch; None between batches."""
        self._step_loss = -1, torch.zeros(2)
        """Number of a step; the sum of the loss over its images so far, and their number."""

    @classmethod
    def of(cls, name: str | None = None, **options: Any) -> Self:
        """Makes the module with facts as arguments: `of(classes=["cat", "dog"])`."""
        facts = {f.name: options.pop(f.name) for f in fields(Facts) if f.name in options}
        make: Any = cls  # each has arguments of its own
        return make(name, facts=Facts(**facts), **options)

    @classmethod
    @abstractmethod
    def for_scoring(
        cls,
        weights: str,
        facts: Facts,
        recorded: Recorded,
        read_state: Callable[[], dict[str, Tensor]],
    ) -> Self:
        """The module of a trained model, to score it on data.

        `facts`: those of the data. `recorded`: the section `model` of the run's config.yaml.
        `read_state`: the state dict of the run's checkpoint, which model/ may lack parts of.
        """

    def extra(self) -> dict[str, Any]:
        """Facts about the outputs that go with a saved model."""
        return {"multilabel": False}

    def headline(self, split: str, metrics: dict[str, float]) -> str:
        """The main result on a split, where there are no predictions to count."""
        return f"{split} loss  {metrics[f'{split}/loss']:.4f}"

    def merge(self) -> None:
        """Ends the training: adds what was trained beside the weights to them, in place."""
        if self.adaptation is not None:
            self.adaptation.merge(self.model)

    def guards(self) -> list[Callback]:
        """Callbacks of every fit and evaluation."""
        return [self.length, ConsumedSamples(), FiniteLoss(), EveryImageOnce()]

    def configure_callbacks(self) -> list[Callback]:
        """Adds the guards that the Trainer does not list; UserError for REFUSED callbacks."""
        callbacks = self.trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
        listed = {type(callback) for callback in callbacks}
        for kind in REFUSED.keys() & listed:
            raise UserError(
                f"trainer.callbacks: a run cannot have {kind.__name__}; {REFUSED[kind]}"
            )
        return [guard for guard in self.guards() if type(guard) not in listed]

    def configure_model(self) -> None:
        # A strategy that divides the network does so after this hook.
        if not self.compile_network:
            return
        self.compile_network = False  # Lightning calls this hook once per fit, test, ...
        if self.beside() or isinstance(self.trainer.strategy, ModelParallelStrategy):
            for block in sharded_units(self)[:-1]:
                block.compile()
        else:
            self.model.compile()  # in place: the keys of the checkpoint stay clean

    def beside(self) -> list[tuple[str, nn.Parameter]]:
        """Named parameters that are not the network's, such as a decoder's."""
        return [pair for pair in self.named_parameters() if not pair[0].startswith("model.")]

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        self.draws = self.next_draws(len(batch[0]))
        set_depth(self.model, self.draws)

    def next_draws(self, images: int) -> StepDraws:
        """The draws of the next batch, of `images` images."""
        data = counting_data(self.trainer)
        if data is None:  # the batch's place in a step is unknown
            return batch_draws(images)
        rank, world = self.trainer.global_rank, self.trainer.world_size
        accumulated = self.trainer.accumulate_grad_batches
        whole = data.batch_size * world * accumulated
        inside = data.consumed_samples % whole
        part = inside // (data.batch_size * world)
        return StepDraws(
            seed=step_seed(data.seed, data.consumed_samples - inside, -2),
            global_batch=whole,
            places=indices_in_step(data.batch_size, rank, world, accumulated, part),
        )

    def on_train_batch_end(self, *_: object, **__: object) -> None:
        self.draws = None
        set_depth(self.model, None)
        if 0 < self.trainer.max_steps <= self.trainer.global_step:
            self.trainer.should_stop = True  # with a validation, which max_steps alone leaves out

    def configure_optimizers(self) -> Any:
        """The optimizer over named groups, and its schedule, stepped with it."""
        trainer, schedule = self.trainer, self.schedule
        check_intervals(trainer)
        optimizer, total = self.make_optimizer(), step_budget(trainer)
        if schedule.cooldown_steps is not None and total is not None:
            whole = Range(f"at most the {total:,} steps of the run", lambda steps: steps <= total)
            check_range("cooldown_steps", schedule.cooldown_steps, whole)
        if schedule.needs_budget and total is None and schedule.length is None:
            raise UserError(
                f"the {schedule.decay} schedule needs to know how long the run is: set --epochs, "
                "--steps or --budget; a run with --trainer.max_time alone needs --budget"
            )
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, self.rate_factor)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def rate_factor(self, step: int) -> float:
        """The schedule's factor at an optimizer step, by the length of the run as it is now."""
        epoch = steps_per_epoch(self.trainer) if self.schedule.needs_epochs else None
        return self.schedule.factor(step, step_budget(self.trainer), epoch)

    def make_optimizer(self) -> Any:
        """The optimizer over named groups, without its schedule."""
        groups = param_groups(
            [*self.model.named_parameters(), *self.beside()],
            depth=len(self.model.layer_channels),
            layer_decay=self.layer_decay,
            no_weight_decay=self.model.no_weight_decay(),
        )
        return build_optimizer(self.optimizer, groups)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss, size = self.training_loss(batch) + self.model.auxiliary_loss(), len(batch[0])
        value, (step, sums) = loss.detach().float(), self._step_loss
        part = torch.stack([value * size, torch.full_like(value, size)])
        sums = part if step != self.trainer.global_step else sums + part
        self._step_loss = self.trainer.global_step, sums
        if is_logged(self.trainer):
            sums = self.trainer.strategy.reduce(sums.clone(), reduce_op="sum")
        self.log("train/loss", sums[0] / sums[1], prog_bar=True, batch_size=size)
        rates = [group["lr"] for group in self.trainer.optimizers[0].param_groups]
        # A tensor on the CPU: Lightning would move a number to the device, and wait for it.
        self.log("lr", torch.tensor(max(rates), dtype=torch.float64), batch_size=size)
        return loss

    @abstractmethod
    def training_loss(self, batch: Batch) -> Tensor:
        """The loss of a batch, which is normalised and on the device."""

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.evaluate_batch(batch, self.val_metrics)

    def test_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        return self.evaluate_batch(batch, self.test_metrics)

    @abstractmethod
    def evaluate_batch(self, batch: Batch, metrics: Scores) -> Tensor | None:
        """Adds a batch to the metrics; may return the outputs of a test."""

    def on_validation_epoch_start(self) -> None:
        self.val_metrics.reset()

    def on_test_epoch_start(self) -> None:
        self.test_metrics.reset()

    def on_validation_epoch_end(self) -> None:
        self._log_scores("val", self.val_metrics)

    def on_test_epoch_end(self) -> None:
        data = counting_data(self.trainer)
        self._log_scores(data.evaluation_split if data else "test", self.test_metrics)

    def _log_scores(self, split: str, metrics: Scores) -> None:
        for name, value in metrics.compute().items():
            shown = name in ("loss", "acc1", "map")
            # float64 sums are logged in float32: some accelerators have no float64.
            self.log(f"{split}/{name}", value.float(), prog_bar=shown, rank_zero_only=False)

    def on_save_checkpoint(self, checkpoint: Contents) -> None:
        scores = self.trainer.callback_metrics.items()
        # Plain types, so that it loads without code.
        checkpoint["vit"] = {
            "config": self.model.config.to_dict(),
            # With weight averaging `state_dict` is the average; the raw weights that training
            # continues from are under `current_model_state`.
            "weights": "ema" if averages(self.trainer) else "raw",
            "metrics": {name: float(value) for name, value in scores if name.startswith("val/")},
            "classes": self.classes,
            "preprocess": self.preprocess and self.preprocess.to_dict(),
            "extra": {**self.extra(), **self.model.inherited},
        }

    def on_load_checkpoint(self, checkpoint: Contents) -> None:
        """UserError if training would take averaged weights for its own, or a cooled rate."""
        fitting = self.trainer.state.fn == TrainerFn.FITTING
        if fitting and self.schedule.cooldown_steps and self.schedule.length is None:
            rates = checkpoint["lr_schedulers"][0]
            factor = self.rate_factor(step := rates["last_epoch"])
            if rates["_last_lr"] != [rate * factor for rate in rates["base_lrs"]]:
                raise UserError(
                    f"the checkpoint's learning rate has decayed by step {step:,}: a cooldown goes "
                    "on from a run with decay=constant or rsqrt, before another cooldown"
                )
        if fitting and "current_model_state" in checkpoint and not averages(self.trainer):
            raise UserError(
                "the checkpoint is of a run with EMA: add that callback to continue it, or start a "
                "new run with --model.pretrained"
            )
