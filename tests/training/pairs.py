"""Pairs of processes for test_pairs.py: left alone, stopped by a signal, or lost."""

import os
import signal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from lightning.pytorch import LightningDataModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Callback

from tests.grouped import silent_trainer
from tests.processes import together
from vit.cli.main import _status
from vit.data.module import ImageData, InputFormat
from vit.data.settings import Loading
from vit.data.transforms import TrainTransform
from vit.errors import UserError
from vit.extensions.recipes import budget
from vit.extensions.recipes.ema import EMA
from vit.extensions.recipes.randaugment import RandAugment
from vit.runs.processes import ChildrenAlive, ending_together
from vit.signals import handled
from vit.training.budget import Length
from vit.training.callbacks.stopping import StopTogether
from vit.training.image_classifier import ImageClassifier
from vit.training.losses import Loss
from vit.training.mixing import Mixing
from vit.training.saving import LastCheckpoint
from vit.training.schedules import Schedule

SIZES = {"patch_size": 4, "width": 16, "depth": 2, "mlp_dim": 32, "num_heads": 2}
# Hook, rank, and the signal that the process gets there; 0 is a mistake that it finds.
STOPPED = [
    ("on_before_backward", 1, signal.SIGINT),
    ("setup", 1, signal.SIGTERM),
    ("on_validation_batch_start", 0, signal.SIGTERM),
    ("on_test_batch_start", 1, signal.SIGTERM),
    ("nowhere", 0, signal.SIGTERM),
]
LOST = [
    ("on_train_batch_start", 1, signal.SIGKILL),
    ("on_save_checkpoint", 0, signal.SIGKILL),
    ("on_test_batch_start", 1, signal.SIGKILL),
    ("on_train_batch_start", 1, 0),
]
CASES: list[tuple[str, int, int]] = [*STOPPED, *LOST]


class ManyLabels(LightningDataModule):
    """One image with several labels: the second process gets an empty batch."""

    def test_dataloader(self) -> torch.utils.data.DataLoader:
        assert self.trainer is not None
        n = 1 if self.trainer.global_rank == 0 else 0
        batch = torch.ones(n, 3, 8, 8), torch.tensor([[1.0, 0.0, 1.0]])[:n]
        return torch.utils.data.DataLoader([batch], batch_size=None)


class SignalAt(Callback):
    """Sends a signal to its own process, once, in a hook."""

    def __init__(self, place: str, number: int) -> None:
        self.place, self.number = place, number

    def __getattribute__(self, name: str) -> Any:
        if name == object.__getattribute__(self, "place"):
            object.__setattr__(self, "place", "")
            if not self.number:
                raise UserError("b/3.png cannot be read")
            os.kill(os.getpid(), self.number)
        return super().__getattribute__(name)


class OwnClock(budget.Budget):
    """A second for each look at the clock in the first process, two in the second one."""

    looks = 0

    def clock(self) -> float:
        self.looks += 1
        return self.looks * (1.0 + float(os.environ.get("RANK", "0")))


def make_model(*, many: bool = False, length: Length | None = None) -> ImageClassifier:
    seed_everything(0, verbose=False)
    model = ImageClassifier.of(
        "vit_ti16",
        architecture={**SIZES, "drop_path": 0.3},
        # Only images with one label are trained on here.
        mixing=None if many else Mixing(mixup=0.8, cutmix=1.0),
        num_classes=3,
        image_size=8,
        multilabel=many,
        loss=Loss(kind="sigmoid" if many else "softmax"),
        # SGD: Adam would blow rounding errors up to the size of a step where a gradient is zero.
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        schedule=Schedule(length=length),
    )
    torch.nn.init.normal_(model.model.get_submodule("head").get_parameter("weight"))
    return model


def make_data(photos: str, batch_size: int) -> ImageData:
    return ImageData(
        root=photos,
        image_size=8,
        batch_size=batch_size,
        loading=Loading(num_workers=0),
        augment=TrainTransform(crop="inception", flip=True, policy=RandAugment()),
        inputs=InputFormat(crop_fraction=1.0),
    )


def make_trainer(processes: int, **options: Any) -> Trainer:
    options = {"strategy": "ddp" if processes > 1 else "auto", **options}
    return silent_trainer(devices=processes, **options)


def train_and_score(photos: str, processes: int, out: str) -> None:
    """Writes the weights and all figures to `out` and the rank."""
    data = make_data(photos, 8 // processes)
    trained = make_model(length=OwnClock("30s"))
    trainer = make_trainer(processes, callbacks=[EMA(0.5)], max_epochs=2)
    with patch.object(budget, "FIRST", 4):  # also in the process of the tests
        trainer.fit(trained, data)

    metrics: dict[str, float] = {}
    settled = trained.length.settled  # pyright: ignore[reportAttributeAccessIssue]
    trainer, model = make_trainer(processes), make_model()
    for evaluate in (trainer.validate, trainer.test):
        evaluate(model, datamodule=data, verbose=False)
        metrics |= {name: value.item() for name, value in trainer.callback_metrics.items()}
    trainer.test(make_model(many=True), datamodule=ManyLabels(), verbose=False)
    metrics |= {f"many/{name}": value.item() for name, value in trainer.callback_metrics.items()}
    results = {"metrics": metrics, "weights": trained.model.state_dict(), "settled": settled}
    torch.save(results, f"{out}.{trainer.global_rank}")


def fit_and_test(photos: str, folder: str, place: str, rank: int, number: int) -> int:
    """As vit/runs/fit.py does; the exit status. `rank` gets the signal `number` at `place`."""
    callbacks: list[Callback] = [StopTogether(), LastCheckpoint(folder)]
    if os.environ["RANK"] == str(rank):
        callbacks.insert(0, SignalAt(place, number))
    data, model = make_data(photos, 4), make_model()
    trainer = make_trainer(2, max_epochs=1, callbacks=callbacks)
    try:
        with handled(), ending_together(trainer, ChildrenAlive()):
            trainer.fit(model, data)
            trainer.test(model, datamodule=data, verbose=False)
    except Exception as error:
        return _status(error)
    return 0


def ends_of(photos: str, out: Path, seconds: float) -> dict[tuple[str, int, int], Any]:
    """Each of CASES -> exit statuses, step of last.ckpt, last lines on stderr.

    The pair that is left alone writes OUT/two.0 and OUT/two.1.
    """
    ends = together(2, out, train_and_score, photos, 2, str(out / "two"), seconds=seconds)
    assert ends == [0, 0], (out / "0.err").read_text()
    results = {}
    for i, case in enumerate(CASES):
        folder = out / str(i)
        ends = together(2, folder, fit_and_test, photos, str(folder), *case, seconds=seconds)
        last = folder / "last.ckpt"
        step = torch.load(last, weights_only=True)["global_step"] if last.is_file() else None
        errors = [(folder / f"{rank}.err").read_text().splitlines()[-1:] for rank in range(2)]
        results[case] = ends, step, ["".join(lines) for lines in errors]
    return results
