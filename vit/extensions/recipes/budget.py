"""A run within a time, from the command's start to its exit: `vit fit --budget 20m`."""

import math
import re
import time as clocks
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from vit.console import clock, is_first_process, say
from vit.errors import UserError
from vit.fine_tuning import ENOUGH_TO_CHOOSE, SHARES
from vit.runs.records import SUMMARY, read_summary, recorded_options
from vit.runs.scoring import MOST
from vit.runs.trainer import callbacks_of
from vit.training.budget import Length, batches_per_epoch, steps_per_epoch
from vit.training.callbacks.by_size import MAX_VALIDATION, FineTuneBySize
from vit.training.counted_data import CountedData, Split, counting_data
from vit.training.saving import Contents
from vit.writing import write_json

FIRST = 20
"""Steps after which the length is settled first; their median leaves out the compilation."""
AGAIN = (1 / 4, 1 / 2, 3 / 4, 7 / 8)
"""Shares of the settled steps at which they are settled again."""
APART = 1 / 16
"""Share of the steps, at least, between two settlements, as the steps may grow."""
SLACK = 0.01
"""Share of the time that is planned to be left."""
OF_START, LEAST = 0.6, 3.0
"""Time of the report and of the process's end: a share of the time from the command's start to its
options, which is spent on imports too; at least seconds."""


def seconds_of(text: str) -> float:
    """Seconds of 90s, 20m, 2h or 1h30m. UserError for another text, and for none."""
    parts = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", text)
    hours, minutes, seconds = (int(part or 0) for part in parts.groups()) if parts else (0, 0, 0)
    if total := 3600 * hours + 60 * minutes + seconds:
        return float(total)
    raise UserError(f"budget={text} is not a time; type 90s, 20m, 2h or 1h30m")


def next_after(step: int, total: int) -> int | None:
    """The step after `step` at which `total` steps are settled again; None if there is none."""
    steps = (math.ceil(share * total) for share in AGAIN)
    return next((again for again in steps if step + APART * total <= again < total), None)


class Budget(Length):
    """Settles the steps of a run so that its command ends within a time.

    The time is that of all of it: start-up, steps, validations, scoring, report; of an interrupted
    run, the sum over its parts, each until its last save. The steps are settled after FIRST of
    them and again at the shares AGAIN; the rate of step s (from 0) is the schedule's for the steps
    that were last settled before step s. A validation follows the last step. If the time that the
    rest needs is reached before, the training ends there. Limits of steps that are set by others
    (`FineTuneBySize`, max_steps) stay limits.

    Args:
        time: Such as 90s, 20m, 2h, 1h30m.
        only_training: Counts the time from the first step to the last one alone, with validations.
        settled: Pairs (step, steps in total) to follow in place of the clock: those of
            summary.json or of a checkpoint repeat a run.
    """

    clock: Callable[[], float] = staticmethod(clocks.monotonic)
    """Seconds; a test has its own."""

    def __init__(
        self,
        time: str,
        only_training: bool = False,
        settled: list[tuple[int, int]] | None = None,
    ) -> None:
        self.seconds = seconds_of(time)
        self.only_training = only_training
        self._replayed = None if settled is None else dict(settled)
        self._made = self.clock()
        self.settled: list[tuple[int, int]] = []
        """Steps taken, and steps in total that were settled then."""
        self._used_before = 0.0
        """Seconds of earlier parts of the run."""
        self._step_seconds = 0.0
        self._validations: list[float] = []
        """Seconds of each validation."""
        self._limit, self._next, self._every = -1, None, 1
        """Steps that others allow; the step of the next settlement; steps between looks at the
        clock."""
        self._times: list[float] = []
        """Seconds of each step since the last settlement, without validations."""
        self._losses: list[float] = []
        """Seconds until each batch had its loss, until a validation is measured; not the first
        batch's, which starts the loader and compiles."""
        self._batch_ended: float | None = None
        self._training_began: float | None = None

    # Time.

    def used(self) -> float:
        """Seconds that the run has used so far."""
        began = self._made if self.began is None else self.began
        if self.only_training:
            began = self.clock() if self._training_began is None else self._training_began
        return self._used_before + self.clock() - began

    def _after_the_last_step(self, trainer: Trainer) -> float:
        """Seconds of the last validation and of what follows it."""
        validation = self._validation_seconds(trainer)
        if self.only_training:
            return validation
        rest = max(LEAST, OF_START * (self._made - (self.began or self._made)))
        data = counting_data(trainer)
        images = 0 if data is None else _scored_images(trainer, data)
        return validation + images * self._image_seconds(trainer) + rest

    def _validation_seconds(self, trainer: Trainer) -> float:
        if self._validations:
            return median(self._validations)
        return _images(trainer, "val") * self._image_seconds(trainer)

    def _image_seconds(self, trainer: Trainer) -> float:
        """Seconds to evaluate an image, on all processes together: until a validation is measured,
        to wait for an image of a training batch and to compute its loss; the fastest batch's while
        there are too few for a settlement."""
        if self._validations and (images := _images(trainer, "val")):
            return median(self._validations) / images
        data = counting_data(trainer)
        if data is None or not self._losses:
            return 0.0
        usual = median if self.settled or trainer.global_step == self._next else min
        return usual(self._losses) / (data.batch_size * trainer.world_size)

    # Settlements.

    def _settle(self, trainer: Trainer, step: int) -> None:
        """Plans the rest of the time by the steps since the last settlement."""
        if self._times:
            usual = sum(self._times) / len(self._times) if self.settled else median(self._times)
            self._step_seconds = usual
        self._times = []
        rest = self._after_the_last_step(trainer)
        left = self.seconds * (1 - SLACK) - self.used() - rest
        between = _steps_between_validations(trainer)
        per_step = self._step_seconds + self._validation_seconds(trainer) / between
        total = step + max(int(left / max(per_step, 1e-9)), 0)
        total = total if self._limit == -1 else min(total, self._limit)
        every = max(int(1 / max(self._step_seconds, 1e-3)), 1)
        # One clock for all processes, as another length is another model.
        total, self._every = trainer.strategy.broadcast((total, every))
        changed = not self.settled or total != self.settled[-1][1]
        self._take(trainer, step, total)
        if changed and step < total:
            ends = clocks.localtime(clocks.time() + (total - step) * per_step + rest)
            epochs = steps_per_epoch(trainer)
            length = "" if epochs is None else f" ({total / epochs:.1f} epochs)"
            at = clocks.strftime("%H:%M", ends)
            say(f"budget {clock(self.seconds)}: {total:,} steps{length}, ends about {at}")

    def _take(self, trainer: Trainer, step: int, total: int) -> None:
        """Makes `total` the steps of the run; the first ones below `step` are its end."""
        before = self.settled[-1][1] if self.settled else 0
        self.settled.append((step, total))
        trainer.fit_loop.epoch_loop.max_steps = total
        self._next = next_after(step, total)
        if step == total and self._replayed is None:
            share = "(too few to settle a length)"
            if before:
                share = f"of {before:,}, at {step / before:.0%} of the schedule"
            rest = "; a larger --budget trains on" if before else "; give a larger --budget"
            say(f"budget {clock(self.seconds)}: training ends after {step:,} steps {share}{rest}")

    def _is_late(self, trainer: Trainer, step: int) -> bool:
        """The time that is left is needed for what follows the last step."""
        if step % self._every:
            return False
        late = self.used() + self._after_the_last_step(trainer) >= self.seconds
        return trainer.strategy.broadcast(late)

    # Hooks.

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self._limit = trainer.max_steps

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: Contents
    ) -> None:
        """Before Lightning's loops are placed, which asks whether there is a limit of steps."""
        state: dict[str, Any] | None = checkpoint["callbacks"].get(self.state_key)
        if trainer.state.fn != TrainerFn.FITTING or state is None:
            return
        self._used_before, self._step_seconds = state["used"], state["step_seconds"]
        self._validations = state["validations"]
        self.settled = [(step, total) for step, total in state["settled"]]
        if self.settled:
            step: int = checkpoint["global_step"]
            total = self.settled[-1][1]
            trainer.fit_loop.epoch_loop.max_steps = total
            self._next = next_after(step, total)
            if state["seconds"] != self.seconds and self._replayed is None:
                self._settle(trainer, step)

    def state_dict(self) -> Contents:
        return {
            "seconds": self.seconds,
            "used": self.used(),
            "settled": [list(pair) for pair in self.settled],
            "step_seconds": self._step_seconds,
            "validations": self._validations,
        }

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._last = self._training_began = self.clock()
        self._step, self._validated = trainer.global_step, 0.0
        if not self.settled:
            self._next = self._step + FIRST
        used, rest = self.used(), self._after_the_last_step(trainer)
        if self._step == 0 and trainer.strategy.broadcast(used + rest >= self.seconds):
            raise UserError(
                f"--budget {clock(self.seconds)} is too short: start-up took {clock(used)}, and "
                f"the report takes about {clock(rest)}; give at least {clock(3 * (used + rest))}"
            )

    def on_before_backward(self, trainer: Trainer, *_: object, **__: object) -> None:
        if self._batch_ended is not None and not self._validations:
            self._losses.append(self._device_clock(trainer) - self._batch_ended)

    def _device_clock(self, trainer: Trainer) -> float:
        """The clock; where a length is settled, once the device has done what it was given."""
        asked = not self.settled or trainer.global_step == self._next
        if asked and trainer.strategy.root_device.type != "cpu":
            torch.accelerator.synchronize()
        return self.clock()

    def on_train_batch_end(self, trainer: Trainer, *_: object, **__: object) -> None:
        now, step = self._device_clock(trainer), trainer.global_step
        self._batch_ended = now
        if step == self._step:  # gradients are accumulated
            return
        self._step = step
        self._times.append(now - self._last - self._validated)
        self._last, self._validated = now, 0.0
        if self._replayed is not None:
            if step in self._replayed:
                self._take(trainer, step, self._replayed[step])
        elif step == self._next:
            self._settle(trainer, step)
        elif step != trainer.max_steps and self._is_late(trainer, step):
            self._take(trainer, step, step)

    def on_validation_start(self, *_: object, **__: object) -> None:
        self._validation_began = self.clock()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            seconds = self.clock() - self._validation_began
            self._validations.append(seconds)
            self._validated += seconds

    def on_train_end(self, *_: object, **__: object) -> None:
        if self.only_training:
            self._used_before, self._training_began = self.used(), None

    def close(self, run: Path) -> None:
        """Says how much of the time was used, and writes it to summary.json."""
        if not is_first_process():
            return
        facts = {"asked_seconds": self.seconds, "used_seconds": round(self.used(), 2)}
        budget = {**facts, "settled": self.settled}
        write_json(run / SUMMARY, {**read_summary(run), "budget": budget})
        say(f"used {clock(self.used())} of {clock(self.seconds)}")


def _images(trainer: Trainer, split: Split) -> int:
    """Images of val or test; 0 without any, or if validations are switched off."""
    data = counting_data(trainer)
    limit = trainer.limit_val_batches if split == "val" else trainer.limit_test_batches
    if data is None or limit == 0 or data.splits.get(split) is None:
        return 0
    return data.expected_images(split)


def _scored_images(trainer: Trainer, data: CountedData) -> int:
    """Images that are evaluated after the training."""
    val, test = _images(trainer, "val"), _images(trainer, "test")
    images = min(val, MOST)
    by_size = any(isinstance(callback, FineTuneBySize) for callback in callbacks_of(trainer))
    if by_size and val >= ENOUGH_TO_CHOOSE:
        images += len(SHARES) * min(val, MAX_VALIDATION)
    final = recorded_options(Path(trainer.default_root_dir)).get("final_split", "none")
    scored = {"test": test or val, "val": val}
    return images + scored.get(final, 0)


def _steps_between_validations(trainer: Trainer) -> float:
    batches, interval = batches_per_epoch(trainer) or math.inf, trainer.val_check_interval
    assert interval is not None  # LightningModule's
    each = interval if isinstance(interval, int) else interval * batches
    return each * (trainer.check_val_every_n_epoch or 1) / trainer.accumulate_grad_batches
