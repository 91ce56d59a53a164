"""`vit fit --budget TIME`, by a clock that moves 100 seconds at each look."""

import json
import time
from pathlib import Path

import pytest

from tests.command import TINY, Vit, photos, saved, schema, vit
from vit.errors import UserError
from vit.extensions.recipes.budget import Budget
from vit.runs.records import read_summary, recorded_options
from vit.runs.short_names import Words

__all__ = ["photos", "vit"]


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the clock was looked at; to be 0 where a command starts."""
    seen = [0]

    def clock() -> float:
        seen[0] += 1
        return time.monotonic() + 100 * seen[0]

    monkeypatch.setattr(Budget, "clock", staticmethod(clock))
    return seen


def test_the_word_takes_the_place_of_epochs_and_steps() -> None:
    typed = Words(["-c", "quickstart", "--budget", "20m"]).typed
    assert typed == {
        "model.schedule.length": "vit.Budget",
        "model.schedule.length.init_args.time": "20m",
        "trainer.max_epochs": "-1",
        "trainer.max_steps": "-1",
    }
    assert Words(["--budget", "null"]).typed == {"model.schedule.length": "null"}
    with pytest.raises(UserError, match="--budget 20m and --epochs 3 contradict each other"):
        Words(["--budget", "20m", "--epochs", "3"])


def test_a_text_that_is_no_time_is_one_line(vit: Vit, photos: Path) -> None:
    done = vit("fit", "-c", "quickstart", "--data", photos, "--budget", "soon")
    assert done.status == 2 and not Path("runs").exists()
    assert "soon is not a time; type 90s, 20m, 2h or 1h30m" in done.err


def test_a_run_ends_within_its_time_and_trains_on_with_more(
    vit: Vit, photos: Path, looks: list[int]
) -> None:
    words = ("fit", "-c", "quickstart", "--data", photos, *TINY, "--run_dir=run")
    done = vit(*words, "--budget=10h", "--json")
    assert done.status == 0, done.err
    summary = json.loads(done.out)
    schema("fit").validate(summary)
    budget, steps = summary["budget"], summary["steps"]
    assert budget["asked_seconds"] == 36_000 and budget["used_seconds"] <= 36_000
    assert budget["settled"][0][0] == 20 and budget["settled"][-1][1] == steps > 20
    assert f"budget 10:00:00: {budget['settled'][0][1]} steps (" in done.err
    assert " of 10:00:00" in done.err
    assert summary["checkpoint"]["step"] <= steps
    again = vit(*words, "--budget=10h")
    assert again.status == 0 and "run is finished" in again.out
    looks[0] = 0
    longer = vit("fit", "--run_dir=run", "--budget=20h")
    assert longer.status == 0 and f"resuming run at step {steps}" in longer.err, longer.err
    after = read_summary(Path("run"))
    assert after["steps"] > 1.5 * steps
    assert after["budget"]["settled"][: len(budget["settled"])] == budget["settled"]
    assert after["budget"]["used_seconds"] > budget["used_seconds"]
    assert "--run_dir run --budget TIME" in longer.out
    limited = vit("fit", "--run_dir=run", "--budget=null", f"--steps={after['steps'] + 3}")
    assert limited.status == 0, limited.err
    assert read_summary(Path("run"))["steps"] == after["steps"] + 3
    assert recorded_options(Path("run"))["model"]["schedule"]["length"] is None


def test_a_probe_takes_the_time_that_it_needs(vit: Vit, photos: Path, tmp_path: Path) -> None:
    encoder = saved(tmp_path / "encoder", classes=None)
    words = ("--pretrained", encoder, "--data.loading.num_workers=0", "--data.batch_size=8")
    done = vit("fit", "-c", "probe", "--data", photos, *words, "--budget=1h", "--run_dir=run")
    assert done.status == 0, done.err
    assert read_summary(Path("run"))["steps"] == 0
    assert " of 1:00:00" in done.err
