from typing import Any

import pytest
from lightning.pytorch.callbacks import Callback

from vit.training.callbacks.progress import RunProgress, clock

pytestmark = pytest.mark.filterwarnings("ignore")


def test_clock() -> None:
    assert [clock(s) for s in (0, 59.6, 61, 3723)] == ["0:00", "1:00", "1:01", "1:02:03"]


def test_a_pipe_gets_a_line_every_tenth(
    make_data, make_model, make_trainer, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(RunProgress, "REFRESH_SECONDS", 0.0)
    trainer = make_trainer(max_epochs=4, enable_progress_bar=True, callbacks=[RunProgress()])
    trainer.fit(make_model(), make_data())
    lines = [line for line in capsys.readouterr().err.splitlines() if "img/s" in line]
    assert [line.split()[0] for line in lines] == [f"{10 * n}%" for n in range(1, 11)]
    assert "epoch 1/4" in lines[0] and "loss 1.0" in lines[0] and "val" not in lines[0]
    assert "epoch 4/4" in lines[-1] and "ETA 0:00" in lines[-1] and "val acc" in lines[-1]


def test_the_fraction_is_of_the_whole_run(make_data, make_model, make_trainer) -> None:
    fractions: list[float] = []

    class Look(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            fractions.append(bar._fraction(trainer))

    bar = RunProgress()
    trainer = make_trainer(max_epochs=2, enable_progress_bar=True, callbacks=[bar, Look()])
    trainer.fit(make_model(), make_data())
    assert fractions == pytest.approx([(i + 1) / 10 for i in range(10)])


def test_the_tightest_budget_counts(make_data, make_model, make_trainer) -> None:
    bar = RunProgress()
    trainer = make_trainer(max_epochs=100, max_steps=4, callbacks=[bar], enable_progress_bar=True)
    trainer.fit(make_model(), make_data())
    assert bar._fraction(trainer) == 1.0


def test_a_disabled_bar_prints_nothing(
    make_data, make_model, make_trainer, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(RunProgress, "REFRESH_SECONDS", 0.0)
    bar = RunProgress()
    bar.disable()
    assert bar.is_disabled
    trainer = make_trainer(max_epochs=1, enable_progress_bar=True, callbacks=[bar])
    trainer.fit(make_model(), make_data())
    assert "img/s" not in capsys.readouterr().err


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_a_terminal_gets_a_bar_for_every_stage(
    stage: str, make_data, make_model, make_trainer, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the pipe for a terminal
    trainer = make_trainer(max_epochs=1, enable_progress_bar=True, callbacks=[RunProgress()])
    model, data = make_model(), make_data()
    trainer.fit(model, data)
    getattr(trainer, stage)(model, datamodule=data)
    shown = capsys.readouterr().err
    assert "train" in shown and stage in shown and "100%" in shown


def test_validation_during_a_fit_keeps_the_bar_of_the_run(
    make_data, make_model, make_trainer, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    trainer = make_trainer(max_epochs=2, enable_progress_bar=True, callbacks=[RunProgress()])
    trainer.fit(make_model(), make_data())
    shown = capsys.readouterr().err
    assert "validate" not in shown
    assert "epoch 2/2" in shown and "epoch 3" not in shown
