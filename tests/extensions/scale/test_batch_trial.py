"""The batch that fits: --data.batch_size auto, by trial."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import Trainer

from tests.command import TINY, Vit
from tests.processes import together
from vit.cli.main import main
from vit.extensions.pretraining.masked_patches import MaskedPatchPrediction
from vit.extensions.scale.batch_trial import largest_batch
from vit.training.image_classifier import ImageClassifier
from vit.training.losses import Loss

OPTIONS = (*(option for option in TINY if "batch_size" not in option), "--final_split=none")
FIT = ("fit", "-c", "cifar10", *OPTIONS, "--trainer.max_epochs=-1")
AUTO = "--data.batch_size=auto"

# Lets `auto` be tried on the CPU, where steps of more images than `most` find no memory.
LIMITED = """\
import torch
import vit.extensions.scale.batch_trial
from vit.runs.records import HEADER
from vit.training.image_classifier import ImageClassifier
vit.extensions.scale.batch_trial.computes_on_cpu = lambda accelerator: False
inner = ImageClassifier.training_loss
def training_loss(self, batch):
    if len(batch[0]) > {most}:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return inner(self, batch)
ImageClassifier.training_loss = training_loss
"""


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """limited(5): from then on the device has no memory for steps of more than 5 images."""
    whole = ImageClassifier.training_loss
    monkeypatch.setattr(
        "vit.extensions.scale.batch_trial.computes_on_cpu", lambda accelerator: False
    )
    monkeypatch.setattr(ImageClassifier, "training_loss", whole)

    def limit(most: int) -> None:
        ImageClassifier.training_loss = whole
        exec(LIMITED.format(most=most), {})

    return limit


def config_of(run: str) -> Any:
    return yaml.safe_load(Path(run, "config.yaml").read_text())


def saved_by(run: Path | str) -> Any:
    return torch.load(Path(run, "checkpoints", "last.ckpt"), weights_only=True)


def test_a_batch_is_tried_kept_and_changes_nothing_else(
    vit: Vit, photos: Path, limited: Callable[[int], None]
) -> None:
    model = "--model.architecture={patch_size: 8, width: 16, depth: 1, num_heads: 1, dropout: 0.2}"
    command = (*FIT, model, "--data.root", photos, "--model.mixing.mixup=0.5")
    # Epochs of two batches of 12 images.
    command = (*command, "--data.global_batch=12", "--trainer.max_epochs=2")
    number = ("--data.batch_size=4", "--trainer.limit_train_batches=6")
    assert vit(*command, *number, "--run_dir=number").status == 0
    limited(5)
    auto = (*command, AUTO, "--trainer.limit_train_batches=2", "--run_dir=run")
    done = vit(*auto)
    assert done.status == 0, done.err
    assert "batch size 4 on each of 1 processes, tried on the device: 3 per step of 12" in done.err
    config = config_of("run")
    assert config["data"]["batch_size"] == 4
    assert config["trainer"]["accumulate_grad_batches"] == 3
    assert config["trainer"]["limit_train_batches"] == 6
    one, other = saved_by("run"), saved_by("number")
    assert one["global_step"] == other["global_step"] == 4
    weights = other["state_dict"]
    assert all(torch.equal(value, weights[name]) for name, value in one["state_dict"].items())

    limited(12)  # the same command goes on with what was chosen
    done = vit(*auto, "--trainer.max_epochs=3")
    assert done.status == 0 and "tried" not in done.err, done.err
    assert config_of("run")["data"]["batch_size"] == 4 and saved_by("run")["global_step"] == 6

    limited(0)
    done = vit(*command, AUTO, "--run_dir=none")
    assert done.status == 2 and "not even a batch of 2 fits" in done.err.splitlines()[-1]
    assert not Path("none").exists()


def test_processes_agree_on_the_smallest(
    tmp_path: Path, photos: Path, deadline: Callable[[float], float]
) -> None:
    """A step has the images of the recipe, 128 in each process."""
    run = tmp_path / "run"
    words = (*FIT, AUTO, f"--data.root={photos}", "--trainer.max_steps=1")

    def work() -> int:
        exec(LIMITED.format(most=(9, 5)[int(os.environ["RANK"])]), {})
        return main([*words, "--trainer.devices=2", f"--run_dir={run}"])

    ends = together(2, tmp_path / "log", work, seconds=deadline(120))
    first, second = ((tmp_path / "log" / f"{rank}.err").read_text() for rank in (0, 1))
    assert ends == [0, 0], first + second
    assert "batch size 4 on each of 2 processes" in first and "batch size" not in second
    saved = saved_by(run)
    assert saved["run"]["global_batch"] == 2 * 128 == saved["ImageData"]["consumed_samples"]


SIZES = {"patch_size": 8, "width": 16, "depth": 1, "mlp_dim": 32, "num_heads": 1, "dropout": 0.1}


def test_a_trial_leaves_weights_and_random_numbers_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also of masked patches, which draw their masks."""
    module: Any = MaskedPatchPrediction.of("vit_ti16", architecture=SIZES, image_size=64)
    loss, sizes = type(module).training_loss, []

    def training_loss(self: Any, batch: Any) -> torch.Tensor:
        sizes.append(len(batch[0]))
        if sizes[-1] > 5:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return loss(self, batch)

    monkeypatch.setattr(type(module), "training_loss", training_loss)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.get_rng_state()
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, barebones=True)
    assert largest_batch(trainer, module, [1, 2, 3, 4, 6, 12]) == 4
    assert largest_batch(trainer, module, [6, 12]) == 0 and set(sizes) <= {3, 4, 6, 12}
    assert torch.equal(torch.get_rng_state(), state)
    after = module.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert all(p.grad is None for p in module.parameters())


def test_a_trial_of_several_labels_gives_the_loss_an_answer_for_each_class() -> None:
    """A loss of one's own gets `b k` with several labels, and this one takes nothing else."""
    loss = Loss(function=torch.nn.MultiLabelSoftMarginLoss())
    options: dict[str, Any] = {"multilabel": True, "num_classes": 3, "loss": loss}
    module = ImageClassifier.of("vit_ti16", architecture=SIZES, image_size=16, **options)
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, barebones=True)
    assert largest_batch(trainer, module, [2, 4]) == 4
