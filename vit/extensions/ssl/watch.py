"""The end of a run that harms its features, and its best weights; no loss says which they are."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from vit.console import say
from vit.data.module import ImageData
from vit.errors import AT_LEAST_ONE, UserError, check_range
from vit.extensions.evaluation.features import effective_rank
from vit.extensions.reports.intervals import Paired
from vit.extensions.serving.proof import paired
from vit.extensions.ssl.yardstick import Yardstick, joined
from vit.runs.lineage import note_seen
from vit.seeds import seeded
from vit.training.budget import step_budget
from vit.training.counted_data import counting_data
from vit.training.saving import BestCheckpoint, Contents
from vit.weights.archives import BEST

EVERY, CROPS = 25, 1_024
"""Steps between two measurements of the effective rank, and training images that it is of."""
COLLAPSED, HEALTHY, ALONE, ALIKE = 1 / 4, 1 / 2, 0.99, 0.1
"""Shares: of the start's rank less 1, that of equal features, below which a run ends and from which
on weights are kept; of the mean probabilities, above which one prototype has taken all. Nats of
information of an answer on its image: below, and below COLLAPSED of the start's, a run ends."""
EQUAL = 1e-3
"""Rank less 1 of features that differ by rounding alone."""
LEVEL, SUCCESSION = 0.05, 2
"""P-value of a loss, over all looks; and looks in succession at which there is one."""


@dataclass
class Progress:
    """Findings so far, in types of a checkpoint."""

    images: dict[str, str]
    """Digests of the labelled images, if any."""
    rank: float
    """Effective rank at the start."""
    nats: float
    """What an answer tells of its image, at the start."""
    hits: list[Tensor]
    """Of each half of the labelled images those named rightly, true `n`: at the start; at best."""
    best: list[Tensor]
    kept_step: int = 0
    step: int = 0
    """The last one that was examined."""
    worse: int = 0
    """Looks in succession that were worse than the start."""
    ended: str = ""
    """Why the run ended early, if it did."""


class Watch(BestCheckpoint):
    """Looks at the teacher during a run, ends it if the features get worse, and keeps best.ckpt.

    The task has `teacher_answers(images b c h w)`: features `b d` and probabilities of prototypes
    `b k`. Every 25 steps the run ends if the effective rank of 1,024 images, less 1, is below a
    quarter of its start, one prototype has more than 0.99 of the mean probabilities, or the mutual
    information of answers and images is below 0.1 nats and a quarter of its start. The last look
    with half of the rank is kept, and the end of a run that was not ended.

    With a yardstick it also ends if fewer labelled images are named rightly by their neighbours
    than at the start, at a level of 0.05 / looks, at two looks in succession. The best look, the
    start included, is kept, and measured by the other half of the images.

    Args:
        yardstick: A labelled folder or list.
        looks: Number of looks over the run.
    """

    def __init__(self, yardstick: str | None = None, looks: int = 20) -> None:
        check_range("model.looks", looks, AT_LEAST_ONE)
        super().__init__("checkpoints", "effective_rank" if yardstick is None else "yardstick/knn")
        self.root, self.looks, self._steps = yardstick, looks, 0
        self.progress: Progress | None = None
        self._yardstick: Yardstick | None = None
        self._crops: list[Tensor] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.dirpath = str(Path(trainer.default_root_dir).resolve() / "checkpoints")
        super().setup(trainer, pl_module, stage)

    def state_dict(self) -> Contents:
        return {**super().state_dict(), "watch": self.progress and vars(self.progress)}

    def load_state_dict(self, state_dict: Contents) -> None:
        super().load_state_dict(state_dict)
        self.progress = Progress(**state_dict["watch"])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data, steps, root = counting_data(trainer), step_budget(trainer), self.root
        assert isinstance(data, ImageData) and steps is not None  # by the task
        self._steps = steps
        self._crops = [images for images, *_ in data.evaluation_loader("train", limit=CROPS)]
        if root is not None:
            self._yardstick = Yardstick(root, LEVEL / self.looks, data, trainer)
        if self.progress is not None:
            trainer.should_stop |= bool(self.progress.ended)
            if self._yardstick is not None and self._yardstick.data.digests != self.progress.images:
                raise UserError(f"the run began with other images in {root}; give those")
        else:
            say("the features at the start are measured before the first step")

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, *_: object, **__: object
    ) -> None:
        step, seen = trainer.global_step, self.progress
        last = -1 if seen is None else seen.step
        look = step * self.looks // self._steps > last * self.looks // self._steps
        if step > last and (look or step % EVERY == 0) and not (seen and seen.ended):
            with seeded(0):  # a loader draws a number, which training is not to miss
                self._examine(trainer, pl_module, step, look=look)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.on_train_batch_start(trainer, pl_module)  # of the next step, if there is one

    def _examine(self, trainer: Trainer, module: Any, step: int, *, look: bool) -> None:
        def answers(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            pixels = data.preprocess.normalize(images.to(module.device))
            with torch.inference_mode(), trainer.precision_plugin.forward_context():
                features, probabilities = module.teacher_answers(pixels)
            spread = torch.special.entr(probabilities.float())
            return features.float(), probabilities.float().sum(0, keepdim=True), spread.sum(-1)

        data: Any = counting_data(trainer)
        features, sums, entropies = joined(map(answers, self._crops))
        rank, mean = effective_rank(features), sums.sum(0) / len(features)
        share, nats = float(mean.max()), float(torch.special.entr(mean).sum() - entropies.mean())
        if self.progress is None and rank - 1 < EQUAL:
            raise UserError(
                f"the features of {len(features)} images of train are equal, or not finite: they "
                "are copies or plain, or the weights are broken; there is nothing to learn from"
            )
        hits, digests = [], {}
        if look and self._yardstick is not None:
            hits, digests = self._yardstick.hits(answers), self._yardstick.data.digests
            if self.progress is None and trainer.is_global_zero:
                for name, images in self._yardstick.data.splits.present().items():
                    note_seen(trainer.default_root_dir, images, f"labelled {name}")
        self.progress = self.progress or Progress(digests, rank, nats, hits, hits)
        self.progress.step = step
        scores = {"effective_rank": rank, "prototype_share": share, "answer_nats": nats}
        scores |= {"yardstick/knn": float(hits[0].double().mean())} if hits else {}
        for logger in trainer.loggers if step else ():
            logger.log_metrics(scores, step - 1)  # the row of the step that has just ended
        reason = _collapse(self.progress, rank, share, nats)
        if look and reason is None:
            reason = self._look(trainer, self.progress, scores, hits)
        if reason is not None:
            trainer.should_stop, best = True, f"the weights of step {self.progress.kept_step:,}"
            self.progress.ended = f"stopped at step {step:,}: {reason}; {best} are kept"

    def _look(
        self, trainer: Trainer, progress: Progress, scores: dict[str, float], hits: list[Tensor]
    ) -> str | None:
        """Keeps weights that are the best; the reason to end the run, if any."""
        score, best, reason = torch.tensor(scores[f"{self.monitor}"]), self.best_model_score, None
        better = progress.step == self._steps or bool(score - 1 >= HEALTHY * (progress.rank - 1))
        if hits:
            pair = paired(progress.hits[0].numpy(), hits[0].numpy())
            progress.worse = progress.worse + 1 if is_worse(pair, self.looks) else 0
            better = best is None or bool(score >= best and pair.after > pair.before)
            if progress.worse == SUCCESSION:
                fell = f"from {pair.before:,} to {pair.after:,} of {pair.count:,}"
                reason = f"labelled images that neighbours name rightly fell {fell}, at two looks"
        if better:
            progress.best, progress.kept_step, self.best_model_score = hits, progress.step, score
            debugging: bool = trainer.fast_dev_run  # pyright: ignore[reportAttributeAccessIssue]
            if len(trainer.checkpoint_callbacks) > 1 and not debugging:  # else nothing is saved
                self.best_model_path = f"{self.dirpath}/{BEST}"
                trainer.save_checkpoint(self.best_model_path, weights_only=False)
        return reason

    def on_fit_end(self, trainer: Trainer, pl_module: Any) -> None:
        if (progress := self.progress) is not None:
            pl_module.unscored = f"{progress.ended}\n{verdict(progress)}".lstrip()


def _collapse(start: Progress, rank: float, share: float, nats: float) -> str | None:
    """The reason to end a run whose features or answers have become alike."""
    if rank - 1 < COLLAPSED * (start.rank - 1):
        was = f"from {start.rank:.1f} at the start to {rank:.1f}"
        return f"the effective rank of the features fell {was}, by more than 3/4 towards 1"
    if share > ALONE and start.step >= EVERY:  # random weights may begin so, until centred
        return f"one prototype has {share:.3f} of the teacher's mean probabilities"
    if nats < min(ALIKE, COLLAPSED * start.nats):
        was = f"no longer depend on the image ({start.nats:.2g} nats on it, now {nats:.2g})"
        return f"the teacher's answers {was}: lower the temperatures of model.teacher, or the rate"
    return None


def verdict(progress: Progress) -> str:
    """The gain of the best weights, by the images that have chosen nothing."""
    if progress.kept_step == 0:
        return "no look was better than the start, whose weights model/ holds"
    if not progress.best:
        return "model/ holds the teacher; whether it is better than the start, `vit knn` tells"
    pair = paired(progress.hits[1].numpy(), progress.best[1].numpy())
    low, high = sorted(-bound for bound in pair.interval)
    word = "a gain" if low > 0 else "a loss" if high < 0 else "no difference is shown"
    return (
        f"yardstick: neighbours name {pair.before:,} of {pair.count:,} other images rightly at "
        f"the start, {pair.after:,} by the teacher of step {progress.kept_step:,}, now in model/: "
        f"{0.0 - pair.drop:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}, {word}"
    )


def is_worse(pair: Paired, looks: int) -> bool:
    """True for a loss that chance hardly makes at any look: the exact sign test, one-sided."""
    return pair.drop > 0 and pair.p_value / 2 < LEVEL / looks
