"""Guards of a run: numbers that are not finite, and losses that jump."""

import math
import statistics
import sys
from collections import deque
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from typing_extensions import override

from vit.errors import UserError
from vit.training.counted_data import counting_data
from vit.writing import write_json

NONFINITE = "nonfinite.json"
"""In the run's directory: the step that was not finite, and the images of its batches."""

OnNonfinite = Literal["stop", "skip"]


class FiniteLoss(Callback):
    """Stops a run whose loss, gradients or weights are NaN or infinite, or skips such steps.

    All is tested on the device. The result is read at the logging interval, before an evaluation
    and before anything is saved, so that it costs no synchronisation a step and that no broken
    weights reach a checkpoint. The scaler of 16-mixed precision skips steps whose gradients
    overflow; there only the loss is tested.

    Args:
        on_nonfinite: stop: the run ends, and names the step and its images. skip: a step whose
            gradients are not finite changes neither weights nor optimizer, and is counted. Fused
            optimizers skip it on the device; others wait for the device at every step.
    """

    MOST_IN_A_ROW = 10
    """Skipped steps in a row after which the run ends."""

    def __init__(self, on_nonfinite: OnNonfinite = "stop") -> None:
        self.on_nonfinite = on_nonfinite
        self._first_bad: Tensor | None = None
        """First step whose loss, and first whose gradients, were not finite."""
        self._step = 1
        self._skipped = 0
        self._noted = 0
        self._counts = torch.zeros(3, dtype=torch.int64)
        """Steps skipped since the start, in a row now, and most in a row."""
        self._batches: deque[tuple[int, Tensor]] = deque()
        """Steps since the last look, and the indices of their images."""

    @property
    def state_key(self) -> str:
        return "FiniteLoss"

    def state_dict(self) -> dict[str, int]:
        skipped = self._skipped + int(self._counts[0])
        return {"skipped": skipped} if skipped else {}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self._skipped = self._noted = int(state_dict.get("skipped", 0))

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._first_bad = torch.full((2,), math.inf, device=pl_module.device)
        self._counts = torch.zeros(3, dtype=torch.int64, device=pl_module.device)

    @override
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._step = trainer.global_step + 1  # that this batch is for, also if it is accumulated
        if counting_data(trainer) is not None:
            self._batches.append((self._step, batch[2]))

    @override
    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
        gradients = [p.grad for p in parameters if p.grad is not None]
        if not gradients or _scales(trainer):
            return
        bad = ~_all_finite(gradients)
        if self.on_nonfinite == "skip":
            self._skip(bad, pl_module, optimizer)
        else:
            self._mark(1, ~bad)

    def _skip(
        self, bad: Tensor, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        total, row, most = self._counts.unbind()
        row = torch.where(bad, row + 1, 0)
        self._counts = torch.stack([total + bad, row, torch.maximum(most, row)])
        if all(group.get("fused") for group in optimizer.param_groups):
            # As torch.amp.GradScaler asks a fused optimizer to leave a step out.
            vars(optimizer).update(found_inf=bad.float(), grad_scale=None)
        elif bad:
            for parameter in pl_module.parameters():
                parameter.grad = None  # which optimizers pass over

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.on_nonfinite == "stop" or _scales(trainer):
            self._mark(0, outputs["loss"].isfinite())
        interval: int = trainer.log_every_n_steps  # pyright: ignore[reportAttributeAccessIssue]
        if interval and self._step % interval == 0:
            self._check(trainer)

    def _mark(self, which: int, finite: Tensor) -> None:
        assert self._first_bad is not None
        firsts = list(self._first_bad)
        firsts[which] = torch.where(finite, firsts[which], firsts[which].clamp(max=self._step))
        self._first_bad = torch.stack(firsts)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._check(trainer)

    on_validation_start = on_train_epoch_end

    @override
    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._check(trainer)
        # A finite loss may still have had gradients that overflow.
        finite = torch.stack([p.isfinite().all() for p in pl_module.parameters()])
        if not finite.all():
            self._stop(f"the weights are not finite after step {trainer.global_step}")

    def _check(self, trainer: Trainer) -> None:
        if self._first_bad is None:
            return
        if self.on_nonfinite == "skip":
            self._check_skipped(trainer)
        firsts = trainer.strategy.reduce(self._first_bad.clone(), reduce_op="min").tolist()
        step = min(firsts)
        if not math.isfinite(step):
            self._batches.clear()
            return
        # Gradients follow from the loss.
        what = "the loss is" if firsts[0] == step else "the gradients are"
        mine = self._images(trainer, int(step)) if float(self._first_bad.min()) == step else []
        self._save_images(trainer, f"{what} not finite", int(step), mine)
        self._stop(f"{what} not finite since step {int(step)}", listed=bool(mine))

    def _check_skipped(self, trainer: Trainer) -> None:
        total, _, most = self._counts.tolist()
        total += self._skipped
        if total > self._noted and trainer.is_global_zero:
            print(
                f"note: {total - self._noted} steps skipped up to step {self._step}, {total} in "
                "all: their gradients were not finite",
                file=sys.stderr,
            )
        self._noted = total
        if most >= self.MOST_IN_A_ROW:
            self._stop(
                f"the gradients were not finite in {most} steps in a row, up to step {self._step}"
            )

    def _images(self, trainer: Trainer, step: int) -> list[str]:
        """Names of this process's images of a step."""
        data = counting_data(trainer)
        if data is None:
            return []
        indices = [i for s, batch in self._batches if s == step for i in batch.tolist()]
        return data.training_names(indices)

    def _save_images(self, trainer: Trainer, what: str, step: int, mine: list[str]) -> None:
        """Writes the names of all processes on which it happened."""
        if trainer.world_size > 1:
            every: list[Any] = [None] * trainer.world_size
            dist.all_gather_object(every, mine)
            mine = [name for names in every for name in names]
        if trainer.is_global_zero and mine:
            path = Path(trainer.default_root_dir) / NONFINITE
            write_json(path, {"what": what, "step": step, "images": mine})

    def _stop(self, what: str, *, listed: bool = False) -> None:
        where = f" ({NONFINITE} lists the images of the step)" if listed else ""
        raise UserError(
            f"{what}: training stopped, checkpoints are from before it{where}; lower the learning "
            "rate, lengthen model.schedule.warmup_steps or set --trainer.gradient_clip_val 1"
        )


class LossSpikes(Callback):
    """Notes a loss far above those before it; looks at the losses that are logged."""

    KEPT, NEEDED = 50, 20
    """Logged losses that a loss is compared with, and how many it takes."""
    SPREADS = 8.0
    """Robust standard deviations above the median that make a spike."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=self.KEPT)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        interval: int = trainer.log_every_n_steps  # pyright: ignore[reportAttributeAccessIssue]
        if not interval or trainer.global_step % interval or not trainer.is_global_zero:
            return
        loss = float(outputs["loss"]) * trainer.accumulate_grad_batches
        usual = self.usual()
        if usual is not None and loss > usual[1]:
            print(
                f"note: the loss at step {trainer.global_step} is {loss:.4g}; the median of the "
                f"{len(self._losses)} logged before is {usual[0]:.4g}",
                file=sys.stderr,
            )
        elif math.isfinite(loss):
            self._losses.append(loss)

    def usual(self) -> tuple[float, float] | None:
        """Median of the last losses, and where a spike begins; None while there are few."""
        if len(self._losses) < self.NEEDED:
            return None
        median = statistics.median(self._losses)
        # 1.4826: of a normal distribution, the standard deviation over the median deviation.
        spread = 1.4826 * statistics.median(abs(loss - median) for loss in self._losses)
        return median, median + self.SPREADS * max(spread, 0.01 * abs(median))


def _all_finite(tensors: list[Tensor]) -> Tensor:
    """Whether all numbers are finite, on the device of the tensors."""
    # A CPU adds squares six times as fast as it finds the largest number, and may wait for the sum.
    if tensors[0].is_cpu:
        finite = torch.nn.utils.get_total_norm(tensors).isfinite()
        if finite:
            return finite
    # A sum of squares can overflow where no number has.
    return torch.nn.utils.get_total_norm(tensors, math.inf).isfinite()


def _scales(trainer: Trainer) -> bool:
    """Whether gradients are scaled, as in 16-mixed precision."""
    return getattr(trainer.precision_plugin, "scaler", None) is not None
