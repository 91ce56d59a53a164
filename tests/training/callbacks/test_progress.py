import pytest

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


@pytest.mark.parametrize("limits", [{"max_epochs": 4}, {"max_epochs": 9, "max_steps": 20}])
def test_a_pipe_gets_a_line_every_tenth_of_the_tightest_budget(
    limits: dict[str, int], make_data, make_model, make_trainer, capsys
) -> None:
    trainer = make_trainer(enable_progress_bar=True, callbacks=[RunProgress()], **limits)
    trainer.fit(make_model(), make_data())
    lines = [line for line in capsys.readouterr().err.splitlines() if "img/s" in line]
    assert [line.split("%")[-2].split()[-1] for line in lines] == [
        f"{10 * n}" for n in range(1, 11)
    ]
    assert "epoch 1/" in lines[0] and "loss 1.0" in lines[0] and "val" not in lines[0]
    assert "epoch 4/" in lines[-1] and "ETA 0:00" in lines[-1] and "val acc" in lines[-1]


def test_a_run_of_steps_ends_in_its_last_epoch_and_a_resumed_one_too(
    make_data, make_model, make_trainer, tmp_path, capsys
) -> None:
    data = make_data()
    shown = {"enable_progress_bar": True}
    trainer = make_trainer(callbacks=[RunProgress()], max_epochs=-1, max_steps=12, **shown)
    trainer.fit(make_model(), data)
    per_epoch, inside = divmod(12, trainer.num_training_batches)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    ended = capsys.readouterr().err.splitlines()[-1]
    assert f"epoch {per_epoch + (inside > 0)}  " in ended, ended
    resumed = make_trainer(callbacks=[RunProgress()], max_epochs=-1, max_steps=14, **shown)
    resumed.fit(make_model(), data, ckpt_path=tmp_path / "a.ckpt")
    last = -(-14 // trainer.num_training_batches)
    assert f"epoch {last}  " in capsys.readouterr().err.splitlines()[-1]


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
