"""benchmarks/parity/goldens.py: a run repeats itself, and a changed bit is noticed."""

import csv
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from benchmarks.parity import goldens


def test_a_run_that_was_stopped_leaves_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], vit_here: None
) -> None:
    monkeypatch.setattr("sys.argv", ["goldens.py", "--quick"])
    assert goldens.main() == 0, capsys.readouterr().out
    assert "1 runs: equal" in capsys.readouterr().out


def _run(folder: Path) -> Path:
    for name in ("checkpoints", "model"):
        (folder / name).mkdir(parents=True)
    state = {"weight": torch.arange(4.0)}
    torch.save(
        {"state_dict": state, "callbacks": {"vit.a.b.Ema": 1}}, folder / "checkpoints/last.ckpt"
    )
    save_file(state, folder / "model" / "model.safetensors")
    (folder / "summary.json").write_text(json.dumps({"train_seconds": 1.5, "steps": 3}))
    with (folder / "metrics.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([("step", "seconds", "val/acc1"), (1, 2.5, 0.5)])
    return folder


def test_a_changed_bit_changes_one_digest_and_seconds_none(tmp_path: Path) -> None:
    run = _run(tmp_path / "run")
    before = {"run": goldens.digests_of(run)}
    assert set(before["run"]) == {
        "checkpoints/last.ckpt", "model/model.safetensors", "metrics.csv", "summary.json",
    }  # fmt: skip

    def changed() -> list[str]:
        return goldens.differing(before, {"run": goldens.digests_of(run)})

    (run / "summary.json").write_text(json.dumps({"train_seconds": 9.0, "steps": 3}))
    (run / "metrics.csv").write_text("step,seconds,val/acc1\n1,7.0,0.5\n")
    state = {"weight": torch.arange(4.0)}
    moved = {"state_dict": state, "callbacks": {"vit.other.Ema": 1}}  # the class in another module
    torch.save(moved, run / "checkpoints" / "last.ckpt")
    assert changed() == []
    state["weight"][3] = torch.nextafter(state["weight"][3], torch.tensor(9.0))
    torch.save({**moved, "state_dict": state}, run / "checkpoints" / "last.ckpt")
    assert changed() == ["run/checkpoints/last.ckpt"]
    (run / "metrics.csv").write_text("step,seconds,val/acc1\n1,7.0,0.6\n")
    (run / "model" / "model.safetensors").unlink()
    assert changed() == [
        "run/checkpoints/last.ckpt", "run/metrics.csv", "run/model/model.safetensors",
    ]  # fmt: skip
