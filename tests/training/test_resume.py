"""A run that is killed and continued in a new process computes what an uninterrupted one does, to
the last bit: the losses of all batches and the final weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from vit.data.transforms import TrainTransform
from vit.extensions.recipes.ema import EMA
from vit.extensions.recipes.randaugment import RandAugment
from vit.training.mixing import Mixing
from vit.training.optimizers.muon import MuonWithAdamW
from vit.training.schedules import Schedule

pytestmark = pytest.mark.filterwarnings("ignore")

# 44 images in batches of 8 are 5 batches per epoch; batch 7 lies in the second of three epochs.
KILLED_AFTER = 8
RANDOM = TrainTransform(crop="inception", flip=True, policy=RandAugment(), erasing=0.25)


CASES: dict[str, dict[str, Any]] = {
    "adamw": {},
    "two_workers": {"workers": 2},
    "muon": {"optimizer": lambda params: MuonWithAdamW(params)},
    "accumulate": {"accumulate": 2},
    "validation_within_the_epoch": {"val_check_interval": 2, "ema": True},
}


WITHIN, AT_END = "within_an_epoch", "at_the_end_of_an_epoch"
MOMENTS = [*((case, WITHIN) for case in CASES), ("adamw", AT_END), ("accumulate", AT_END)]


@pytest.mark.parametrize(("case", "when"), MOMENTS)
def test_a_killed_run_continues_bitwise(
    case: str, when: str, make_data, make_model, make_trainer, tmp_path: Path, continues_bitwise
) -> None:
    options = CASES[case]
    accumulate = options.get("accumulate", 1)
    divided = accumulate > 1
    epoch = 44 // (8 * accumulate) * 8 * accumulate  # what is left of the 44 images sits out

    def run(record: Any, resume: Path | None = None) -> Any:
        model = make_model(
            init_seed=0 if resume is None else 99,
            architecture={"dropout": 0.1, "drop_path": 0.2},
            classes=["a", "b", "c"],
            schedule=Schedule(warmup_steps=3),
            mixing=Mixing(mixup=0.2, cutmix=1.0),
            **({"optimizer": options["optimizer"]} if "optimizer" in options else {}),
        )
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
        data = make_data(augment=RANDOM, num_workers=options.get("workers", 0))
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
