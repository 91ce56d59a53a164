"""Every image once; a run that is not finite ends, is named, and leaves whole checkpoints."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from vit.data import module
from vit.errors import UserError
from vit.training.mixing import Mixing

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_a_missing_image_is_noticed(
    stage: str, make_data, make_model, make_trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer()
    getattr(trainer, stage)(make_model(), datamodule=make_data(), verbose=False)
    monkeypatch.setattr(module, "evaluated", lambda total, *_: range(1, total))
    split, size = ("val", 9) if stage == "validate" else ("test", 7)
    with pytest.raises(RuntimeError, match=f"{split}: {size - 1} images were counted, the set has"):
        getattr(trainer, stage)(make_model(), datamodule=make_data(), verbose=False)


def test_the_split_that_is_tested_is_the_one_that_is_counted(
    make_data, make_model, make_trainer
) -> None:
    data, model = make_data(), make_model()
    data.evaluation_split = "train"
    [scores] = make_trainer().test(model, datamodule=data, verbose=False)
    assert "train/acc1" in scores


def test_skipped_images_are_known(
    training_photos: Path, make_data, make_model, make_trainer, tmp_path: Path
) -> None:
    root = tmp_path / "copy"
    shutil.copytree(training_photos, root)
    (root / "test" / "a" / "0.png").write_bytes(b"not an image")
    data = make_data(root=str(root), on_error="skip")
    model = make_model()
    make_trainer().test(model, datamodule=data, verbose=False)
    assert int(model.test_metrics.images.compute()) == 6


def test_a_limited_evaluation_is_not_counted(make_data, make_model, make_trainer) -> None:
    make_trainer(limit_val_batches=1).validate(make_model(), make_data(), verbose=False)
    make_trainer(fast_dev_run=True).fit(make_model(), make_data())


def test_images_are_counted_exactly_and_logged(make_data, make_model, make_trainer) -> None:
    data = make_data()
    data.consumed_samples = 100_000_000 // 40 * 40 + 8  # float32 counts in eights up there
    trainer = make_trainer(max_steps=1, limit_val_batches=0)
    before = data.consumed_samples
    trainer.fit(make_model(mixing=Mixing(mixup=0.2)), data)
    assert data.consumed_samples == before + 8
    assert trainer.callback_metrics["images"].dtype == torch.float64
    assert trainer.callback_metrics["images"].item() == data.consumed_samples


def break_at(model: Any, step: int) -> None:
    """The loss of optimizer step `step`, from 1, is NaN."""
    normal = model.training_step

    def training_step(batch: Any, batch_idx: int) -> Any:
        loss = normal(batch, batch_idx)
        return loss * float("nan") if model.trainer.global_step + 1 == step else loss

    model.training_step = training_step


@pytest.mark.parametrize(("interval", "accumulate"), [(1, 1), (1000, 2)])
def test_a_loss_that_is_not_finite_stops_and_names_the_step(
    interval: int, accumulate: int, make_data, make_model, make_trainer, tmp_path: Path
) -> None:
    model = make_model()
    break_at(model, 4)
    keep = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=1, filename="at")
    trainer = make_trainer(
        max_epochs=4,
        log_every_n_steps=interval,
        accumulate_grad_batches=accumulate,
        callbacks=[keep],
    )
    with pytest.raises(UserError, match=r"^the loss is not finite since step 4: training stopped"):
        trainer.fit(model, make_data())
    [file] = tmp_path.glob("*.ckpt")
    checkpoint = torch.load(file, weights_only=True)
    assert checkpoint["global_step"] == 3
    assert all(value.isfinite().all() for value in checkpoint["state_dict"].values())


@pytest.mark.parametrize("options", [{"limit_val_batches": 0}, {"val_check_interval": 3}])
def test_an_epoch_and_an_evaluation_end_in_the_error(
    options: dict[str, Any], make_data, make_model, make_trainer
) -> None:
    model = make_model()
    break_at(model, 3)
    trainer = make_trainer(max_epochs=1, log_every_n_steps=1000, **options)
    with pytest.raises(UserError, match="since step 3"):
        trainer.fit(model, make_data())
    assert trainer.callback_metrics.get("val/loss") is None


def test_gradients_that_overflow_reach_no_checkpoint(
    make_data, make_model, make_trainer, tmp_path: Path
) -> None:
    class Overflow(Callback):
        def on_before_optimizer_step(self, trainer: Any, model: Any, optimizer: Any) -> None:
            if trainer.global_step == 2:
                next(model.parameters()).grad.fill_(float("inf"))

    keep = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=1, filename="at")
    trainer = make_trainer(max_epochs=1, callbacks=[Overflow(), keep])
    with pytest.raises(UserError, match="the weights are not finite after step 3"):
        trainer.fit(make_model(), make_data())
    [file] = tmp_path.glob("*.ckpt")
    assert torch.load(file, weights_only=True)["global_step"] == 2
