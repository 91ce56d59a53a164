"""What every module that trains one of our networks does in the same way."""

import sys
from collections.abc import Iterable
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn

from vit.checkpoints.pretrained import LoadReport, create_model
from vit.errors import UserError
from vit.models.matmul import continue_on_route, current_float32_route
from vit.models.routes import use_float32_route
from vit.models.zoo import Model
from vit.training.budget import check_intervals, step_budget, steps_per_epoch, time_limit, time_used
from vit.training.optimizers.groups import param_groups
from vit.training.schedules import Schedule

# What trains where neither a name nor weights are given: small enough for a CPU.
DEFAULT_MODEL = "vit_ti16"


def default_optimizer(params: Any) -> torch.optim.Optimizer:
    """AdamW with a learning rate of 1e-3 and weight decay 0.05."""
    return torch.optim.AdamW(params, lr=1e-3, weight_decay=0.05, fused=True)


def build_network(
    name: str | None, pretrained: str | None, **options: Any
) -> tuple[Model, LoadReport | None]:
    """The network, and how its weights were loaded; None for random ones."""
    if pretrained is None:
        return create_model(name or DEFAULT_MODEL, **options), None
    reports: list[LoadReport] = []
    model = create_model(name, pretrained=pretrained, report=reports.append, **options)
    return model, reports[0]


def optimizer_with_schedule(
    trainer: Trainer,
    parameters: Iterable[tuple[str, nn.Parameter]],
    optimizer: OptimizerCallable,
    schedule: Schedule,
    *,
    depth: int,
    layer_decay: float = 1.0,
) -> dict[str, Any]:
    """The optimizer over named groups, and its schedule, stepped with it."""
    check_intervals(trainer)
    built = optimizer(param_groups(parameters, depth=depth, layer_decay=layer_decay))
    # Else Lightning refuses to clip gradients for fused optimizers, even where none are scaled.
    built._step_supports_amp_scaling = False  # pyright: ignore[reportAttributeAccessIssue]
    for group in built.param_groups:
        group["lr"] = group["lr"] * group["lr_scale"]
    total, timer = step_budget(trainer), time_limit(trainer)
    if schedule.needs_budget and total is None and timer is None:
        raise UserError(
            f"the {schedule.decay} schedule needs to know how long the run is: set "
            "--trainer.max_epochs, --trainer.max_steps or --trainer.max_time"
        )
    epoch = steps_per_epoch(trainer) if schedule.needs_epochs else None
    if schedule.needs_epochs and epoch is None:
        raise UserError("the schedule counts in epochs, and the loader does not know its length")

    def factor(step: int) -> float:
        # One clock for all processes, as another rate is another model.
        used = 0.0 if timer is None else trainer.strategy.broadcast(time_used(timer))
        return schedule.factor(step, total, used, epoch)

    scheduler = torch.optim.lr_scheduler.LambdaLR(built, factor)
    return {"optimizer": built, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def log_training(module: LightningModule, loss: torch.Tensor, batch_size: int) -> None:
    """Logs the loss and the learning rate of a step."""
    module.log("train/loss", loss, prog_bar=True, batch_size=batch_size)
    rates = [group["lr"] for group in module.trainer.optimizers[0].param_groups]
    # A tensor on the CPU: Lightning would move a number to the device, and wait for it.
    module.log("lr", torch.tensor(max(rates), dtype=torch.float64), batch_size=batch_size)


def log_scores(module: LightningModule, split: str, scores: dict[str, torch.Tensor]) -> None:
    """Logs the scores of an evaluation under the name of its split."""
    for name, value in scores.items():
        shown = name in ("loss", "acc1", "map")
        # float64 sums are logged in float32: some accelerators have no float64.
        module.log(f"{split}/{name}", value.float(), prog_bar=shown, rank_zero_only=False)


def checkpoint_header(trainer: Trainer, model: Model, **others: Any) -> dict[str, Any]:
    """What a checkpoint says about its network: plain types, so that it loads without code."""
    return {
        "config": model.config.to_dict(),
        "float32_route": current_float32_route(),
        # With weight averaging `state_dict` is the average; the raw weights that training
        # continues from are under `current_model_state`.
        "weights": "ema" if averages(trainer) else "raw",
        "metrics": {
            name: float(value)
            for name, value in trainer.callback_metrics.items()
            if name.startswith("val/")
        },
        **others,
    }


def check_resumed(trainer: Trainer, checkpoint: dict[str, Any]) -> None:
    """What must hold before training continues from a checkpoint; an evaluation is left alone.

    The run keeps the library of its float32 products. Raises UserError where averaged weights would
    be trained on as if training had stopped with them.
    """
    if trainer.state.fn != TrainerFn.FITTING:
        return
    if "current_model_state" in checkpoint and not averages(trainer):
        raise UserError(
            "the checkpoint is of a run with EMA: add that callback to continue it, or start a "
            "new run with --model.pretrained"
        )
    note = continue_on_route(checkpoint.get("vit", {}).get("float32_route"))
    if note is not None and trainer.is_global_zero:
        print(f"note: {note}", file=sys.stderr)


def share_route(trainer: Trainer) -> None:
    """Has all processes compute float32 products by the library of the first one."""
    if trainer.world_size > 1:
        use_float32_route(trainer.strategy.broadcast(current_float32_route()))


def averages(trainer: Trainer) -> bool:
    """Whether the run averages its weights."""
    callbacks = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
    return any(isinstance(callback, WeightAveraging) for callback in callbacks)
