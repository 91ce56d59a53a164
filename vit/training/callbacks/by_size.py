"""Fine-tuning by the size of the set: how long, and which weights are the result.

The result is an average of the two ends of fine-tuning (WiSE-FT, Wortsman et al., arXiv:2109.01903,
section 3): the weights it started from, with the fitted head, and those of the last step.
"""

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, WeightAveraging
from torch import Tensor

from vit.checkpoints.lora import A
from vit.console import say
from vit.errors import UserError
from vit.fine_tuning import (
    ENOUGH_TO_CHOOSE,
    FIXED_SHARE,
    PASSES,
    PER_ROOT,
    SHARES,
    images_to_see,
    steps_for,
)
from vit.training.budget import time_limit
from vit.training.counted_data import CountedData, counting_data
from vit.training.losses import Loss

MAX_VALIDATION = 2_000
"""At most this many validation images choose the share; each share takes a pass over them."""


class FineTuneBySize(Callback):
    """Sets the steps of a run by its training images, and averages the two ends when it is over.

    A run with a limit of its own (max_steps, max_epochs or max_time) keeps it. The whole schedule
    is run, and no checkpoint on the way is chosen. The share of the last weights is that with the
    smallest validation loss, FIXED_SHARE where there are fewer than ENOUGH_TO_CHOOSE validation
    images, and 1 where the first weights are random. `chosen` says what was decided and why.
    """

    def __init__(self) -> None:
        self.chosen: dict[str, Any] = {}
        """Steps, share of the fine-tuned weights and reasons: plain values for a JSON file."""
        self._start: dict[str, Tensor] | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        data = counting_data(trainer)
        if data is None:
            raise UserError("FineTuneBySize needs the images of vit.ImageData")
        others: Any = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
        if any(isinstance(callback, WeightAveraging) for callback in others):
            raise UserError("FineTuneBySize and EMA both say which weights result: leave one out")
        images = data.expected_images("train")
        batch = data.batch_size * trainer.world_size * trainer.accumulate_grad_batches
        limited = trainer.max_steps != -1 or trainer.max_epochs != -1
        if limited or time_limit(trainer) is not None:
            why = "the run has a limit of its own"
        else:
            trainer.fit_loop.epoch_loop.max_steps = steps_for(images, batch)
            why = f"the larger of {PER_ROOT} sqrt(n) and {PASSES} n images, in steps of {batch:,}"
        self.chosen = {
            "train_images": images,
            "steps": trainer.max_steps if trainer.max_steps != -1 else None,
            "images_to_see": None if limited else images_to_see(images),
            "steps_because": why,
        }
        validation = data.expected_images("val") if _has_val(data) else 0
        share, why = None, "smallest validation loss"
        if getattr(pl_module, "load_report", None) is None:
            share, why = 1.0, "random first weights are nothing to keep"
        elif validation < ENOUGH_TO_CHOOSE:
            share = FIXED_SHARE
            why = (
                f"{validation:,} validation images; {ENOUGH_TO_CHOOSE} would be enough to choose it"
            )
        self.chosen |= {"val_images": validation, "share": share, "share_because": why}
        self._announce()

    def _announce(self) -> None:
        chosen, limit = self.chosen, self.chosen["steps"]
        steps = "as many steps as the limit allows" if limit is None else f"{limit:,} steps"
        share = chosen["share"]
        part = "a part to be chosen" if share is None else f"{share:.0%}"
        say(
            f"by size: {steps} for n = {chosen['train_images']:,} training images "
            f"({chosen['steps_because']})"
        )
        say(
            f"by size: the result is {part} of the way from the first weights to the last "
            f"({chosen['share_because']})"
        )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step == 0 or self._start is None:  # after the head has been fitted
            self._start = {name: p.detach().clone() for name, p in _trained(pl_module)}

    def state_dict(self) -> dict[str, Any]:
        return {"start": self._start}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._start = state_dict["start"]

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Puts the result into the model; the checkpoints keep the weights of the last step."""
        assert self._start is not None
        start = {name: t.to(pl_module.device) for name, t in self._start.items()}
        end = {name: p.detach().clone() for name, p in _trained(pl_module)}
        share = self.chosen["share"]
        if share is None:
            share = self._best_share(trainer, pl_module, start, end)
        _average(pl_module, start, end, share)
        self.chosen["share"] = share
        if getattr(pl_module, "thresholds", None) is not None:  # those of other weights
            module: Any = pl_module
            module.choose_thresholds(_validation_logits(trainer, pl_module))

    def _best_share(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        start: dict[str, Tensor],
        end: dict[str, Tensor],
    ) -> float:
        losses = {}
        for share in SHARES:
            _average(pl_module, start, end, share)
            losses[share] = _validation_loss(trainer, pl_module)
        self.chosen["val_losses"] = {f"{share:g}": round(loss, 4) for share, loss in losses.items()}
        best = min(SHARES, key=losses.__getitem__)
        shown = ", ".join(f"{share:.0%} {loss:.3f}" for share, loss in losses.items())
        say(f"by size: {best:.0%} of the last step has the smallest validation loss ({shown})")
        return best


def _validation_logits(
    trainer: Trainer, module: Any, limit: int | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Logits `b k` and labels of this process's batches of at most `limit` validation images."""
    data = counting_data(trainer)
    assert data is not None
    found = []
    device, training = trainer.strategy.root_device, module.training
    module.eval()
    with torch.inference_mode(), trainer.precision_plugin.forward_context():
        for images, labels, _ in data.evaluation_loader("val", limit=limit):
            if len(images):
                logits = module(data.preprocess.normalize(images.to(device)))
                found.append((logits.float(), labels.to(device)))
    module.train(training)
    return found


def _validation_loss(trainer: Trainer, module: Any) -> float:
    """Mean loss of validation images, without smoothing or class weights."""
    loss = Loss(kind=module.loss.kind)
    total, count = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for logits, labels in _validation_logits(trainer, module, limit=MAX_VALIDATION):
        total += float(loss(logits, labels)) * len(labels)
        count += len(labels)
    device = trainer.strategy.root_device
    total = trainer.strategy.reduce(total.float().to(device), reduce_op="sum")
    count = trainer.strategy.reduce(count.float().to(device), reduce_op="sum")
    return float(total / count.clamp(min=1))


def _has_val(data: CountedData) -> bool:
    splits: Any = getattr(data, "splits", None)
    return splits is not None and splits.val is not None


def _trained(module: LightningModule) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad]


@torch.no_grad()
def _average(
    module: LightningModule, start: dict[str, Tensor], end: dict[str, Tensor], share: float
) -> None:
    """(1 - share) * start + share * end, of the weights that are used."""
    for name, parameter in _trained(module):
        # An update B A starts at B = 0: share * B with the A of the end is the average of weights.
        if name.endswith(f".{A}"):
            parameter.copy_(end[name])
        else:
            parameter.copy_(torch.lerp(start[name], end[name], share))
