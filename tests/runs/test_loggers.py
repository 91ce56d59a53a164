"""Experiment trackers by name, and the picture of the first batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.command import TINY, Vit, table
from vit.training.mixing import Mixing

EPOCHS = ("--trainer.max_epochs=2", "--trainer.log_every_n_steps=1")


def test_tensorboard_gets_the_figures_of_metrics_csv(vit: Vit, photos: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fit = ("fit", "-c", "cifar10", "--data.root", photos, *TINY, *EPOCHS, "--run_dir=run")
    done = vit(*fit, "--trainer.logger=tensorboard")
    assert done.status == 0, done.err
    assert "train images per class: blue 10, grün 10, red 10" in done.err
    events = EventAccumulator("run/tensorboard/events")
    events.Reload()
    rows = table("run/metrics.csv")
    for name in ("train/loss", "val/acc1", "val/loss"):
        ours = [(int(row["step"]), float(row[name])) for row in rows if row[name]]
        theirs = [(event.step, event.value) for event in events.Scalars(name)]
        assert [step for step, _ in ours] == [step for step, _ in theirs]
        np.testing.assert_allclose([v for _, v in ours], [v for _, v in theirs], rtol=1e-6)


@pytest.mark.usefixtures("finishing")
def test_the_first_batch_is_drawn_and_changes_nothing(
    vit: Vit, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mix, mixed = Mixing.__call__, []

    def mixing(self: Mixing, *given: Any) -> Any:
        mixed.append(mix(self, *given))
        return mixed[-1]

    monkeypatch.setattr(Mixing, "__call__", mixing)
    fit = ("fit", "-c", "cifar10", "--data.root", photos, *TINY, "--trainer.max_epochs=1")
    done = vit(*fit, "--model.mixing.mixup=0.2", "--run_dir=with")
    assert done.status == 0, done.err
    with Image.open("with/first_batch.png") as shown:
        assert shown.width > 400 and len(shown.convert("RGB").getcolors(2**20) or ()) > 100
    for shown, used in zip(*mixed[:2], strict=True):  # images, then targets
        assert torch.equal(shown, used)
    monkeypatch.setattr("vit.runs.fit.save_first_batch", lambda *_: None)
    assert vit(*fit, "--model.mixing.mixup=0.2", "--run_dir=without").status == 0
    one, other = (
        torch.load(f"{run}/checkpoints/last.ckpt", weights_only=True)["state_dict"]
        for run in ("with", "without")
    )
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not [*Path("without").glob("first_batch.*")]
