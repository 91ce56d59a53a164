"""What holds of every objective: the loss of a step is the mean over its images, and a run that is
killed and continued in a new process computes what an uninterrupted one does, to the last bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint

from tests.extensions.pretraining.conftest import TASKS, make_task
from vit.data.transforms import TrainTransform
from vit.extensions.recipes.ema import EMA
from vit.extensions.recipes.randaugment import RandAugment
from vit.training.losses import Loss
from vit.training.mixing import Mixing
from vit.training.optimizers.muon import MuonWithAdamW
from vit.training.schedules import Schedule

__all__ = ["make_task"]
pytestmark = pytest.mark.filterwarnings("ignore")

IMAGES = 44
"""Of train."""
CLASSES = ["a", "b", "c"]
RANDOM = TrainTransform(crop="inception", flip=True, policy=RandAugment(), erasing=0.25)
WITH_LABELS: dict[str, dict[str, Any]] = {
    "cross-entropy": {},
    "mixing": {"mixing": Mixing(mixup=0.8, cutmix=1.0)},
    "class weights": {"loss": Loss(class_weights={"a": 5.0}), "classes": CLASSES},
    "several labels": {"multilabel": True},
    "a share of any class is a yes": {"loss": Loss(kind="bce"), "mixing": Mixing(mixup=0.8)},
}


@pytest.mark.parametrize("objective", [*WITH_LABELS, *TASKS])
def test_the_loss_of_a_step_is_the_mean_over_its_images(
    objective: str, make_data, make_model, make_task, make_trainer
) -> None:
    options, losses = WITH_LABELS.get(objective), []
    for batch in (44, 22, 4):
        data = make_data(batch_size=batch, image_size=8 if objective in WITH_LABELS else 16)
        if options is None:
            model = make_task(objective)
        else:
            model = make_model(**options)
            torch.nn.init.normal_(model.model.head.weight)  # else all images have the same loss
        if options == {}:
            data.setup("fit")
            images, labels, _ = map(torch.cat, zip(*data.evaluation_loader("train"), strict=True))
            with torch.inference_mode():
                logits = model.model(data.preprocess.normalize(images))
            losses.append(F.cross_entropy(logits, labels).item())
        once = {"max_steps": 1, "accumulate_grad_batches": IMAGES // batch, "limit_val_batches": 0}
        trainer = make_trainer(**once)
        trainer.fit(model, data)
        losses.append(trainer.callback_metrics["train/loss"].item())
    assert losses == [pytest.approx(losses[0], rel=1e-6)] * len(losses)


# 44 images in batches of 8 are 5 batches per epoch; batch 7 lies in the second of three epochs.
KILLED_AFTER = 8
CASES: dict[str, dict[str, Any]] = {
    "adamw": {},
    "two_workers": {"workers": 2},
    "muon": {"optimizer": lambda params: MuonWithAdamW(params)},
    "accumulate": {"accumulate": 2},
    "validation_within_the_epoch": {"val_check_interval": 2, "ema": True},
    **{task: {"optimizer": MuonWithAdamW} for task in TASKS},
}
WITHIN, AT_END = "within_an_epoch", "at_the_end_of_an_epoch"
MOMENTS = [*((case, WITHIN) for case in CASES), ("adamw", AT_END), ("accumulate", AT_END)]


@pytest.mark.parametrize(("case", "when"), MOMENTS)
def test_a_killed_run_continues_bitwise(
    case: str, when: str,
    make_data, make_model, make_task, make_trainer, tmp_path: Path, continues_bitwise,
) -> None:  # fmt: skip
    options = CASES[case]
    accumulate = options.get("accumulate", 1)
    divided = accumulate > 1
    epoch = IMAGES // (8 * accumulate) * 8 * accumulate  # what is left of the images sits out

    def run(record: Any, resume: Path | None = None) -> Any:
        shared = {
            "init_seed": 0 if resume is None else 99,
            "architecture": {"dropout": 0.1, "drop_path": 0.2},
            "schedule": Schedule(warmup_steps=3),
            **({"optimizer": options["optimizer"]} if "optimizer" in options else {}),
        }
        data = make_data(augment=RANDOM, num_workers=options.get("workers", 0))
        if case in TASKS:
            data = make_data(augment=RANDOM, image_size=16).read_as(labelled=False)
            model = make_task(case, **shared)
        else:
            model = make_model(classes=CLASSES, mixing=Mixing(mixup=0.2, cutmix=1.0), **shared)
        steps = {"every_n_train_steps": 1 if divided else 2}
        every = steps if when == WITHIN else {"every_n_epochs": 1}
        keep = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, **every)
        trainer = make_trainer(
            max_epochs=3,
            accumulate_grad_batches=accumulate,
            val_check_interval=options.get("val_check_interval", 1.0),
            gradient_clip_val=1.0,
            callbacks=[*([EMA(0.9)] if options.get("ema") else []), record, keep],
        )
        trainer.fit(model, data, ckpt_path=resume)
        return model

    last = continues_bitwise(run, 6 if divided else KILLED_AFTER)
    position = torch.load(last, weights_only=True)["ImageData"]["consumed_samples"]
    inside = when == WITHIN or "val_check_interval" in options  # saves after each
    assert (position % epoch != 0) == inside


def test_the_seed_of_a_step_matters(make_data, make_model, make_trainer, losses) -> None:
    records = []
    for seed in (1, 1, 2):
        records.append(losses())
        model = make_model(architecture={"dropout": 0.1})
        torch.manual_seed(len(records))  # of no consequence: the data's seed rules
        make_trainer(max_epochs=1, callbacks=[records[-1]]).fit(model, make_data(seed=seed))
    assert records[0].hex == records[1].hex != records[2].hex
