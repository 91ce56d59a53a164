"""The batch of a run: its size where none is said, and what running out of memory says."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.command import TINY, Vit
from vit.errors import UserError
from vit.runs.options import Options
from vit.runs.trainer import naming_a_smaller_batch
from vit.training.image_classifier import ImageClassifier

OPTIONS = (*(option for option in TINY if "batch_size" not in option), "--final_split=none")
FIT = ("fit", "-c", "cifar10", *OPTIONS, "--trainer.max_epochs=-1")


@pytest.mark.parametrize(
    ("options", "batch"), [((), 64), (("--data.global_batch=48",), None), (("-c=cifar10",), 128)]
)
def test_the_number_that_is_used_without_a_word_is_written(
    options: tuple[str, ...], batch: int | None, photos: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "own.yaml"
    recipe.write_text("data: {image_size: 16}\n")
    config = Options(["-c", str(recipe), *options, "--data.root", str(photos)]).config
    assert config.data.batch_size == batch


def no_memory(kind: type[Exception], text: str, batch: int, whole: int | None = None) -> str:
    trainer: Any = SimpleNamespace(accumulate_grad_batches=3)
    data: Any = SimpleNamespace(batch_size=batch, global_batch=whole)
    with pytest.raises(UserError) as error, naming_a_smaller_batch(trainer, data):
        raise kind(text)
    return str(error.value)


def test_running_out_of_memory_names_half_the_batch(
    vit: Vit, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ImageClassifier.training_loss

    def training_loss(self: ImageClassifier, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        if len(batch[0]) > 6:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(self, batch)

    monkeypatch.setattr(ImageClassifier, "training_loss", training_loss)
    command = (*FIT, "--data.root", photos, "--trainer.max_steps=1", "--run_dir=run")
    done = vit(*command, "--data.batch_size=12")
    remedy = "--data.batch_size 6 --trainer.accumulate_grad_batches 2"
    assert done.status == 2, done.err
    assert done.err.splitlines()[-1].endswith(f"batches of 12 images; try {remedy}")
    assert vit(*command, *remedy.split()).status == 0
    # The words of c10/core/impl/alloc_cpu.cpp.
    text = "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory"
    assert "--data.batch_size 4 --trainer.acc" in no_memory(RuntimeError, text, 8)
    assert no_memory(MemoryError, "", 10, whole=30).endswith("try --data.batch_size 5")
    for odd in (1, 9):  # two halves of which are another step
        assert "smaller batch, model or" in no_memory(torch.OutOfMemoryError, "CUDA", odd)
    nothing: Any = None
    with pytest.raises(RuntimeError, match="shapes"), naming_a_smaller_batch(nothing, nothing):
        raise RuntimeError("shapes differ")
