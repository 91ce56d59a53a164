"""A run that is not finite ends, is named, and leaves whole checkpoints."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from vit.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore")


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
