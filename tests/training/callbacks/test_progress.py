from typing import Any

import pytest
from lightning.pytorch.callbacks import Callback

from vit import console
from vit.console import clock
from vit.training.callbacks.progress import RunProgress

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunProgress, "REFRESH_SECONDS", 0.0)
    monkeypatch.setattr(console, "PATIENCE", -1.0)


def test_clock() -> None:
    assert [clock(s) for s in (0, 59.6, 61, 3723)] == ["0:00", "1:00", "1:01", "1:02:03"]


def test_a_pipe_gets_a_line_every_tenth(make_data, make_model, make_trainer, capsys) -> None:
    trainer = make_trainer(max_epochs=4, enable_progress_bar=True, callbacks=[RunProgress()])
    trainer.fit(make_model(), make_data())
    lines = [line for line in capsys.readouterr().err.splitlines() if "img/s" in line]
    assert [line.split("%")[-2].split()[-1] for line in lines] == [
        f"{10 * n}" for n in range(1, 11)
    ]
    assert "epoch 1/4" in lines[0] and "loss 1.0" in lines[0] and "val" not in lines[0]
    assert "epoch 4/4" in lines[-1] and "ETA 0:00" in lines[-1] and "val acc" in lines[-1]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [({"max_epochs": 2}, [(i + 1) / 10 for i in range(10)]),
     ({"max_epochs": 100, "max_steps": 4}, [0.25, 0.5, 0.75, 1.0])],
)  # fmt: skip
def test_the_fraction_is_of_the_tightest_budget(
    limits: dict, expected: list, make_data, make_model, make_trainer
) -> None:
    fractions: list[float] = []

    class Look(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            fractions.append(bar._fraction(trainer))

    bar = RunProgress()
    trainer = make_trainer(enable_progress_bar=True, callbacks=[bar, Look()], **limits)
    trainer.fit(make_model(), make_data())
    assert fractions == pytest.approx(expected)


def test_a_terminal_gets_a_bar_for_training_and_for_the_score(
    make_data, make_model, make_trainer, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the pipe for a terminal
    monkeypatch.setenv("COLUMNS", "160")
    trainer = make_trainer(max_epochs=2, enable_progress_bar=True, callbacks=[RunProgress()])
    model, data = make_model(), make_data()
    trainer.fit(model, data)
    shown = capsys.readouterr().err
    assert "train" in shown and "validate" not in shown
    assert "epoch 2/2" in shown and "epoch 3" not in shown and "100%" in shown
    trainer.test(model, datamodule=data)
    shown = capsys.readouterr().err
    assert "test" in shown and "100%" in shown
