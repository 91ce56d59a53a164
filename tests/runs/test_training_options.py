"""Options of `vit fit` for the images of a step and for the end of a run."""

from pathlib import Path
from typing import Any

import torch
import yaml

from tests.command import TINY, Vit

FIT = ("fit", "-c", "cifar10", *TINY)
SHORT = ("--trainer.max_epochs=-1", "--trainer.max_steps=2", "--final_split=none")


def saved(run: str) -> Any:
    return torch.load(Path(run, "checkpoints", "last.ckpt"), weights_only=True)


def images_of_a_step(run: str) -> int:
    """Of a run of two steps."""
    checkpoint = saved(run)
    data = checkpoint["ImageData"]
    assert checkpoint["global_step"] == 2
    return data["consumed_samples"] // 2


def test_batch_and_accumulation_follow_from_the_images_of_a_step(vit: Vit, photos: Path) -> None:
    start = (*FIT, *SHORT, "--data.root", photos, "--data.global_batch=12")
    done = vit(*start, "--data.batch_size=4", "--run_dir=small")
    assert done.status == 0, done.err
    done = vit(*start, "--data.batch_size=null", "--run_dir=whole")
    assert done.status == 0, done.err
    assert images_of_a_step("small") == images_of_a_step("whole") == 12
    config = yaml.safe_load(Path("whole/config.yaml").read_text())
    assert (config["data"]["global_batch"], config["data"]["batch_size"]) == (12, None)
    assert vit("test", "whole").status == 0  # its batches have a size of their own
