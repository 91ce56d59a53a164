"""Length of fine-tuning, and share of the fine-tuned weights, by the number of images."""

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from vit.console import say
from vit.errors import UserError
from vit.fine_tuning import ENOUGH_TO_CHOOSE, FIXED_SHARE, SHARES, steps_for
from vit.training.counted_data import counting_data, logits_of
from vit.training.image_classifier import ImageClassifier
from vit.training.parts import part
from vit.training.saving import averages
from vit.weights.lora import A

MAX_VALIDATION = 2_000
"""At most this many validation images choose the share; each share takes a pass over them."""


class FineTuneBySize(Callback):
    """Sets the steps of a run by its training images, and averages the first and last weights
    (WiSE-FT, Wortsman et al., arXiv:2109.01903, section 3); the first have the fitted head.

    A run with max_steps or max_epochs keeps that limit. The share of the last weights is
    that with the smallest validation loss, FIXED_SHARE with fewer than ENOUGH_TO_CHOOSE validation
    images, and 1 if the first weights are random.
    """

    def __init__(self) -> None:
        self.chosen: dict[str, object] = {}
        """Steps, images and share, for a JSON file."""
        self._share: float | None = None
        """The share of the last weights; None until validation images choose it."""
        self._start: dict[str, Tensor] | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        data = counting_data(trainer)
        if data is None:
            raise UserError("FineTuneBySize needs the images of vit.ImageData")
        if averages(trainer):
            raise UserError("FineTuneBySize and EMA both say which weights result: leave one out")
        images = data.expected_images("train")
        validation = 0 if data.splits.val is None else data.expected_images("val")
        batch = data.batch_size * trainer.world_size * trainer.accumulate_grad_batches
        steps = steps_for(images, batch)
        length = f"steps by a limit of the run ({steps:,} without one)"
        if trainer.max_steps == -1 and trainer.max_epochs == -1:
            trainer.fit_loop.epoch_loop.max_steps = steps
            length = f"{steps:,} steps of {batch:,}"
        self._share = None if validation >= ENOUGH_TO_CHOOSE else FIXED_SHARE
        if pl_module.load_report is None:
            self._share = 1.0  # random first weights are nothing to keep
        self.chosen = {
            "train_images": images,
            "val_images": validation,
            "share": self._share,
        }
        rule = "the share of the last is chosen by validation loss"
        if self._share is not None:
            rule = f"{self._share:.0%} of the last ({validation:,} validation images; "
            rule += f"from {ENOUGH_TO_CHOOSE}, the share is chosen by their loss)"
        say(f"by size: {images:,} training images, {length}; first and last averaged: {rule}")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step == 0 or self._start is None:  # after the head has been fitted
            self._start = {name: p.detach().clone() for name, p in _trained(pl_module)}

    def state_dict(self) -> dict[str, dict[str, Tensor] | None]:
        return {"start": self._start}

    def load_state_dict(self, state_dict: dict[str, dict[str, Tensor] | None]) -> None:
        self._start = state_dict["start"]

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Averages in the model; the checkpoints keep the weights of the last step."""
        assert self._start is not None and isinstance(pl_module, ImageClassifier)
        start = {n: part(self._start[n].to(p.device), p) for n, p in _trained(pl_module)}
        end = {name: p.detach().clone() for name, p in _trained(pl_module)}
        if self._share is None:
            losses = {}
            for share in SHARES:
                _average(pl_module, start, end, share)
                losses[share] = _validation_loss(trainer, pl_module)
            self._share = min(SHARES, key=losses.__getitem__)
            rounded = {f"{share:g}": round(loss, 4) for share, loss in losses.items()}
            self.chosen |= {"share": self._share, "val_losses": rounded}
            shown = ", ".join(f"{share:.0%} {loss:.3f}" for share, loss in losses.items())
            say(f"by size: validation loss by share of the last step: {shown}")
        _average(pl_module, start, end, self._share)
        self.chosen["steps"] = trainer.global_step
        pl_module.test_metrics.take(None)  # what was chosen for other weights


def _validation_loss(trainer: Trainer, module: ImageClassifier) -> float:
    """Mean over the images, without smoothing or class weights."""
    total, count = 0.0, 0
    for logits, labels, _ in logits_of(trainer, module, "val", MAX_VALIDATION):
        total += float(module.plain_loss(logits, labels)) * len(labels)
        count += len(labels)
    sums = torch.tensor([total, count], dtype=torch.float32, device=trainer.strategy.root_device)
    total, count = trainer.strategy.reduce(sums, reduce_op="sum").tolist()
    return total / max(count, 1)


def _trained(module: LightningModule) -> list[tuple[str, Tensor]]:
    """Parameters, and what a batch norm has measured with them."""
    buffers = [(n, b) for n, b in module.named_buffers() if "running_" in n]
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad] + buffers


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
