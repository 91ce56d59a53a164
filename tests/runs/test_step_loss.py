"""metrics.csv: the loss of a step is that of its images, on one process or two."""

from pathlib import Path

import pytest

from tests.command import TINY, Vit, table
from tests.runs.pair import pair


def losses(run: Path) -> list[float]:
    return [float(row["train/loss"]) for row in table(run / "metrics.csv") if row["train/loss"]]


def test_a_step_has_one_loss_in_one_batch_in_four_and_on_two_processes(
    vit: Vit, photos: Path, tmp_path: Path, deadline
) -> None:
    shared = [
        "fit", "-c", "cifar10", "--data.root", photos, *TINY, "--steps=8",
        "--model.optimizer=torch.optim.SGD", "--model.optimizer.lr=0.1",
        "--data.splits.val_fraction=0", "--data.splits.test_fraction=0",
        "--trainer.log_every_n_steps=1",
    ]  # fmt: skip
    for name, batch, accumulated in (("one", 32, 1), ("four", 8, 4)):
        more = (f"--data.batch_size={batch}", f"--trainer.accumulate_grad_batches={accumulated}")
        done = vit(*shared, *more, "--run_dir", name)
        assert done.status == 0, done.err
    more = ("--data.batch_size=16", "--trainer.devices=2", "--run_dir=two")
    for ended in pair(tmp_path, (*shared, *more), seconds=deadline(120)):
        assert ended.status == 0, ended.err
    whole = losses(Path("one"))
    assert len(whole) == 8
    for name in ("four", "two"):
        assert losses(Path(name))[0] == pytest.approx(whole[0], rel=1e-6)
        assert losses(Path(name)) == pytest.approx(whole, rel=1e-4)
