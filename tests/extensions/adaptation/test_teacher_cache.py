"""Answers of a teacher that a run computes once, and keeps in a file."""

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from tests.command import TINY, Vit, saved
from vit.data.sampler import TrainBatchSampler
from vit.errors import UserError
from vit.extensions.adaptation.answer_file import AnswerFile
from vit.extensions.adaptation.distillation import Answers, Distillation
from vit.training.draws import StepDraws
from vit.training.losses import Loss
from vit.training.mixing import Mixing
from vit.weights.native import save_native

PLACES = torch.tensor([4, 1])


def images(seed: int = 0) -> Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def opened(folder: Path, key: str = "ab12") -> AnswerFile:
    return AnswerFile(folder / "new" / "answers.bin", 6, 3, key)


def known(file: AnswerFile, pictures: Tensor, places: Tensor = PLACES) -> list[bool]:
    return file.read(places, file.sums(pictures))[1].tolist()


@pytest.fixture
def values(tmp_path: Path) -> Tensor:
    """Answers that the file in tmp_path has for `images()` at PLACES."""
    values = torch.tensor([[1.5, -2.0, 0.25], [0.0, 3.0, -1.0]]).half()
    file = opened(tmp_path)
    assert known(file, images()) == [False, False]
    file.write(PLACES, file.sums(images()), values)
    return values


def test_another_process_reads_the_answers(values: Tensor, tmp_path: Path) -> None:
    other = opened(tmp_path)
    read, of_them = other.read(PLACES, other.sums(images()))
    assert torch.equal(read, values) and of_them.all()
    assert known(other, images().flip(0), PLACES.flip(0)) == [True, True]


def test_an_answer_is_for_its_image_and_its_teacher_alone(values: Tensor, tmp_path: Path) -> None:
    file, pictures = opened(tmp_path), images()
    assert known(file, pictures.flip(0)) == [False, False]
    assert known(file, pictures.flip(3)) == [False, False]  # the same pixels, mirrored
    assert known(file, pictures, torch.tensor([4, 5])) == [True, False]
    pictures[1, 2, 7, 7] = torch.nextafter(pictures[1, 2, 7, 7], torch.tensor(9.0))
    assert known(file, pictures) == [True, False]
    assert known(opened(tmp_path, "ab13"), images()) == [False, False]


def test_a_row_that_was_written_in_part_is_no_answer(values: Tensor, tmp_path: Path) -> None:
    file = tmp_path / "new" / "answers.bin"
    rows = np.fromfile(file, np.uint8).reshape(6, -1)
    rows[1, -6:] = 0
    rows.tofile(file)
    assert known(opened(tmp_path), images()) == [True, False]


def test_a_black_image_has_no_answer_in_a_new_file(tmp_path: Path) -> None:
    assert known(opened(tmp_path), torch.zeros(2, 3, 8, 8)) == [False, False]


def test_a_smaller_file_in_its_place_does_not_end_the_reader(
    values: Tensor, tmp_path: Path
) -> None:
    file = opened(tmp_path)
    AnswerFile(tmp_path / "new" / "answers.bin", 1, 1, "cd")
    assert known(file, images()) == [True, True]


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="needs posix_fallocate")
def test_a_full_disk_is_said_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UserError, match=r"needs 0\.0 GB: No space left on device; keep fewer"):
        opened(tmp_path)


def test_crops_come_again_in_another_order() -> None:
    class At:
        consumed_samples = 0

    def epoch(number: int) -> list[tuple[int, int, int]]:
        at = At()
        at.consumed_samples = number * 12
        sampler = TrainBatchSampler(12, 4, seed=3, rank=0, world_size=1, progress=at, crops=2)
        return [key for batch in sampler for key in batch]

    epochs = [epoch(number) for number in range(4)]
    assert [{key[0] for key in keys} for keys in epochs] == [{0}, {1}, {0}, {1}]
    assert set(epochs[0]) == set(epochs[2]) and epochs[0] != epochs[2]


@pytest.fixture
def command(vit: Vit, photos: Path) -> tuple[str, ...]:
    """The words of a fit of four epochs with a cache of two crops."""
    saved(Path("weights"))
    words = ("fit", "-c", "distill", f"--data={photos}", "--epochs=4", *TINY, "--run_dir=run")
    return (*words, "--teacher=weights", "--teacher-cache=2")


def test_crops_are_answered_once_as_if_they_were_answered_each_time(
    vit: Vit, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, forward = Distillation.answers, Distillation.forward
    computed: list[bool] = []
    """For each step, whether the teacher has computed in it."""
    asked: list[int] = []

    def counted(self: Distillation, pictures: Tensor) -> Any:
        asked.append(len(pictures))
        return answers(self, pictures)

    def compared(self: Distillation, loss: Any, outputs: Any, features: Any, seen: Tensor) -> Any:
        computed.append(bool(asked))
        asked.clear()
        assert self.kept is not None
        torch.testing.assert_close(self.kept.logits, answers(self, seen)[0], rtol=2e-3, atol=2e-3)
        return forward(self, loss, outputs, features, seen)

    monkeypatch.setattr(Distillation, "answers", counted)
    monkeypatch.setattr(Distillation, "forward", compared)
    done = vit(
        *command, "--model.mixing.mixup=0", "--trainer.precision=32-true", "--data.batch_size=6"
    )
    assert done.status == 0, done.err
    assert computed == [True] * 10 + [False] * 10  # five steps of six images per epoch
    line = next(line for line in done.err.splitlines() if line.startswith("teacher: "))
    assert "2 crops of each of 30 images" in line and "mixture" not in line


def test_answers_that_float16_cannot_hold_are_said(
    vit: Vit, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Distillation.answers
    monkeypatch.setattr(
        Distillation, "answers", lambda *args: (answers(*args)[0] * 1e6, answers(*args)[1])
    )
    done = vit(*command)
    assert done.status == 2
    assert "the teacher weights has answers that are no numbers of float16" in done.err


@pytest.fixture
def model(make_model, tmp_path: Path) -> Any:
    """The module of a student whose teacher has a cache of two crops."""
    network = make_model(init_seed=3).model
    torch.nn.init.normal_(network.head.weight)
    teacher = tmp_path / "teacher"
    save_native(teacher, network, classes=["a", "b", "c"], preprocess={}, extra={})
    return make_model(loss=Loss(teacher=Distillation(str(teacher), cache=2)))


def test_other_loaders_score_a_student_and_cannot_train_it(
    model, make_data, make_trainer, tmp_path: Path
) -> None:
    data = make_data()
    batch = data.on_after_batch_transfer(next(iter(data.evaluation_loader("val"))), 0)
    loader = DataLoader([batch], batch_size=None)
    assert make_trainer().test(model, loader, verbose=False)
    with pytest.raises(UserError, match=r"--teacher-cache needs vit\.ImageData"):
        make_trainer(max_steps=1).fit(model, loader)


def test_a_fit_that_fails_leaves_the_data_as_they_were(
    model, make_data, make_trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, seen = make_data(), []

    def fails(*_: object) -> None:
        seen.append(data.crops)
        raise KeyError("stop")

    monkeypatch.setattr(model, "training_loss", fails)
    with pytest.raises(KeyError, match="stop"):
        make_trainer(max_steps=3, default_root_dir=tmp_path).fit(model, data)
    assert seen == [2] and data.crops is None


def test_mixed_images_learn_the_mixture_of_the_probabilities() -> None:
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    draws = StepDraws(seed=5, global_batch=4, places=[0, 1, 2, 3])
    mixing, none = Mixing(mixup=0.7), torch.zeros(4, 0, 8, 8)

    def mixed(targets: Tensor) -> Tensor:
        return mixing(none, targets, 3, draws)[1]

    distillation = Distillation("weights", alpha=1.0, temperature=2.0)
    distillation.kind, distillation.has_token, distillation.multilabel = "soft", False, False
    distillation.kept = Answers(logits, logits[:, :0], mixed)
    outputs = torch.zeros(4, 3)
    loss = distillation(torch.tensor(0.0), outputs, outputs, images())
    share = draws.beta("mixup", 0.7).numpy()[:, None]
    p = np.exp(logits.double().numpy() / 2)
    p /= p.sum(1, keepdims=True)
    target = share * p + (1 - share) * p[[2, 3, 0, 1]]
    expected = 4 * (target * np.log(target * 3)).sum(1).mean()
    assert float(loss) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--data.loading.on_error=skip",), "data.loading.on_error=skip changes"),
        (("--model.loss.teacher.features=cosine",), "the features of a mixed image"),
        (("--model.loss.teacher.cache=0",), "cache=0 must be at least 1"),
    ],
)
def test_what_the_cache_cannot_know_is_refused(
    vit: Vit, command: tuple[str, ...], words: tuple[str, ...], message: str
) -> None:
    done = vit(*command, *words)
    assert done.status == 2 and message in done.err.splitlines()[-1], done.err
