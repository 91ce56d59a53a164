"""A watched run: what ends it, what is kept, and that an interrupted one ends at the same step."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from tests.command import coloured
from vit.data.module import ImageData
from vit.errors import UserError
from vit.extensions.ssl import watch
from vit.extensions.ssl.watch import Watch
from vit.signals import Stopped
from vit.training.callbacks.invariants import ConsumedSamples
from vit.training.saving import LastCheckpoint
from vit.weights.archives import read_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore")
STEPS, LOOKS = 40, 10
Answers = Callable[[Tensor, int], tuple[Tensor, Tensor]]


def healthy(images: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """Mean colours, which name the classes rightly, and noise that is the image's own."""
    noise = images[:, :, :8, :8]
    noise = (noise - noise.mean((2, 3), keepdim=True)).flatten(1)
    features = torch.cat([10 * images.mean((2, 3)), noise], 1)
    return features, noise[:, :7].softmax(1)


def collapsed(images: Tensor, step: int) -> tuple[Tensor, Tensor]:
    features, probabilities = healthy(images, step)
    return features if step < 23 else torch.ones_like(features), probabilities


def one_prototype(images: Tensor, step: int) -> tuple[Tensor, Tensor]:
    features, probabilities = healthy(images, step)
    return features, probabilities if step < 23 else torch.eye(7)[:1].expand(len(images), 7)


def alike(images: Tensor, step: int) -> tuple[Tensor, Tensor]:
    features, probabilities = healthy(images, step)
    return features, probabilities if step < 23 else torch.full((len(images), 7), 1 / 7)


def harmed(images: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """Best at step 12; from step 20 on colours are lost, but not the rank."""
    features, probabilities = healthy(images, step)
    if step != 12:
        features = torch.cat([features[:, :3].sum(1, keepdim=True), features], 1)
    return (features if step < 20 else features[:, 4:]), probabilities


class Fake(LightningModule):
    """A task whose one weight is the number of its steps."""

    def __init__(self, answers: Answers) -> None:
        super().__init__()
        self.weight, self.answers = nn.Parameter(torch.zeros(())), answers
        self.drawn: list[float] = []

    def teacher_answers(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return self.answers(images, int(self.weight))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.drawn.append(float(torch.rand(())))
        return -self.weight

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.0)


class StopAt(Callback):
    """A signal at a step, as StopTogether raises it."""

    def __init__(self, step: int | None) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: Trainer, *_: object, **__: object) -> None:
        if trainer.global_step == self.step:
            raise Stopped(15, agreed=True)


class Run:
    """A run of the fake task in a folder."""

    def __init__(self, folder: Path, answers: Answers, **options: Any) -> None:
        self.folder, self.answers, self.options = folder, answers, {"looks": LOOKS, **options}

    def fit(self, root: Path, *, stop: int | None = None, resume: bool = False) -> Trainer:
        self.watch, self.module = Watch(**self.options), Fake(self.answers)
        checkpoints = self.folder / "checkpoints"
        trainer = Trainer(
            default_root_dir=str(self.folder),
            max_steps=STEPS,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            callbacks=[ConsumedSamples(), StopAt(stop), self.watch, LastCheckpoint(checkpoints)],
        )
        data = ImageData(root=str(root), image_size=16, batch_size=8)
        try:
            trainer.fit(
                self.module, data, ckpt_path=str(checkpoints / "last.ckpt") if resume else None
            )
        except Stopped:
            assert stop is not None
        return trainer

    @property
    def kept(self) -> int:
        """The step of the weights in best.ckpt."""
        return int(
            read_checkpoint(self.folder / "checkpoints" / "best.ckpt")["state_dict"]["weight"]
        )


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return coloured(tmp_path_factory.mktemp("watched") / "photos")


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "EVERY", 5)


def test_a_healthy_run_goes_to_its_end_and_keeps_its_last_weights(
    tmp_path: Path, images: Path
) -> None:
    run = Run(tmp_path, healthy)
    trainer = run.fit(images)
    assert trainer.global_step == STEPS and run.kept == STEPS
    assert run.module.unscored.startswith("model/ holds the teacher")


def test_one_prototype_before_the_centre_has_followed_ends_nothing(
    tmp_path: Path, images: Path
) -> None:
    def centred(images: Tensor, step: int) -> tuple[Tensor, Tensor]:
        return healthy(images, step) if step > 4 else one_prototype(images, 23)

    assert Run(tmp_path, centred).fit(images).global_step == STEPS


def test_a_smaller_rank_that_is_no_collapse_keeps_the_end(tmp_path: Path, images: Path) -> None:
    def smaller(images: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """A rank less 1 between a quarter and a half of the start's, from step 10 on."""
        features, probabilities = healthy(images, step)
        scale = torch.ones(features.shape[1])
        scale[6:] = 0.0 if step >= 10 else 1.0
        return features * scale, probabilities

    run = Run(tmp_path, smaller)
    trainer = run.fit(images)
    assert trainer.global_step == STEPS and run.kept == STEPS


def test_equal_features_at_the_start_are_refused(tmp_path: Path, images: Path) -> None:
    def equal(images: Tensor, step: int) -> tuple[Tensor, Tensor]:
        return collapsed(images, 23)

    with pytest.raises(UserError, match=r"the features of \d+ images of train are equal"):
        Run(tmp_path, equal).fit(images)


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        (collapsed, "the effective rank of the features fell from"),
        (one_prototype, "one prototype has 1.000 of the teacher's mean probabilities"),
        (alike, "the teacher's answers no longer depend on the image ("),
    ],
)
def test_a_collapse_is_found_at_the_next_measurement_and_named(
    tmp_path: Path, images: Path, answers: Answers, reason: str
) -> None:
    run = Run(tmp_path, answers)
    trainer = run.fit(images)
    # At a look, every 4 steps, or at a multiple of 5.
    assert trainer.global_step == 24
    said = run.module.unscored
    assert f"stopped at step 24: {reason}" in said
    assert "the weights of step 20 are kept" in said and run.kept == 20


def test_an_answer_that_names_one_of_three_colours_has_the_information_of_the_colours(
    tmp_path: Path, images: Path
) -> None:
    def named(images: Tensor, step: int) -> tuple[Tensor, Tensor]:
        features, _ = healthy(images, step)
        return features, torch.eye(7)[features[:, :3].argmax(1)]

    run = Run(tmp_path, named)
    run.fit(images)
    assert run.watch.progress is not None
    assert run.watch.progress.nats == pytest.approx(math.log(3), abs=1e-3)


def test_a_yardstick_ends_a_run_at_the_second_worse_look_and_keeps_the_best(
    tmp_path: Path, images: Path
) -> None:
    run = Run(tmp_path, harmed, yardstick=str(images))
    trainer = run.fit(images)
    assert trainer.global_step == 24
    said = run.module.unscored
    assert "labelled images that neighbours name rightly fell from 18 to" in said
    assert "stopped at step 24" in said and "of 18, at two looks" in said
    assert said.endswith("no look was better than the start, whose weights model/ holds")
    assert run.kept == 0


def test_of_equal_looks_that_are_better_than_the_start_the_latest_is_kept(
    tmp_path: Path, images: Path
) -> None:
    def improved(pixels: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Colours of other images at the start, of the images themselves from step 8 to 19."""
        features, probabilities = healthy(pixels, step)
        if not 8 <= step < 20:
            others = torch.randperm(len(features), generator=torch.Generator().manual_seed(0))
            features = torch.cat([features[others, :3], features[:, 3:]], 1)
        return features, probabilities

    run = Run(tmp_path, improved, yardstick=str(images))
    assert run.fit(images).global_step == STEPS and run.kept == 16
    assert "by the teacher of step 16, now in model" in run.module.unscored
    assert run.module.unscored.endswith(", a gain")


def test_one_worse_look_alone_ends_nothing(tmp_path: Path, images: Path) -> None:
    def once(pixels: Tensor, step: int) -> tuple[Tensor, Tensor]:
        return harmed(pixels, 20 if step == 20 else 0)

    run = Run(tmp_path, once, yardstick=str(images))
    assert run.fit(images).global_step == STEPS and run.kept == 0


@pytest.mark.parametrize("step", [1, 8, 20, 21, 24])
@pytest.mark.parametrize("answers", [collapsed, harmed])
def test_an_interrupted_run_ends_at_the_same_step_with_the_same_weights(
    tmp_path: Path, images: Path, answers: Answers, step: int
) -> None:
    options = {"yardstick": str(images)} if answers is harmed else {}
    whole, parts = Run(tmp_path / "whole", answers, **options), Run(tmp_path / "parts", answers)
    parts.options = whole.options
    expected = whole.fit(images).global_step
    parts.fit(images, stop=step)
    assert parts.fit(images, resume=True).global_step == expected == 24
    assert parts.kept == whole.kept
    assert parts.module.drawn == whole.module.drawn[step:]
    ours, theirs = (vars(run.watch.progress) for run in (parts, whole))
    for name, value in ours.items():
        equal = all(map(torch.equal, value, theirs[name])) if name in ("hits", "best") else None
        assert equal or value == theirs[name], name


def test_a_finished_watch_ends_a_resumed_run_at_once(tmp_path: Path, images: Path) -> None:
    run = Run(tmp_path, collapsed)
    run.fit(images)
    assert run.fit(images, resume=True).global_step == 24


def test_a_run_that_was_killed_after_its_last_step_says_what_it_has_brought(
    tmp_path: Path, images: Path
) -> None:
    run = Run(tmp_path, healthy, yardstick=str(images))
    run.fit(images)
    said = run.module.unscored
    assert run.fit(images, resume=True).global_step == STEPS and run.module.unscored == said


def test_a_resumed_run_with_other_labelled_images_is_refused(tmp_path: Path, images: Path) -> None:
    labelled = coloured(tmp_path / "labelled")
    run = Run(tmp_path / "run", healthy, yardstick=str(labelled))
    run.fit(images, stop=6)
    (labelled / "red" / "00.jpg").unlink()
    with pytest.raises(UserError, match="the run began with other images"):
        run.fit(images, resume=True)


def test_looks_draw_no_number_that_training_would_have_drawn(tmp_path: Path, images: Path) -> None:
    drawn = []
    for looks in (1, LOOKS):
        run = Run(tmp_path / str(looks), healthy, yardstick=str(images), looks=looks)
        run.fit(images)
        drawn.append(run.module.drawn)
    assert drawn[0] == drawn[1] and len({*drawn[0]}) == STEPS


def test_a_number_of_looks_below_one_is_refused() -> None:
    with pytest.raises(UserError, match="looks=0"):
        Watch(looks=0)
