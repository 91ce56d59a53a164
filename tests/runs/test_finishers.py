"""What is made of a finished run: in its first process alone, at the end, or again on demand."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.command import TINY, Vit, coloured
from tests.killing import in_child
from tests.runs.pair import pair
from vit.cli.main import main
from vit.tables import TABLES

pytestmark = pytest.mark.usefixtures("finishing")
TASKS = {
    "report": ("cifar10", "vit.extensions.reports.finisher", "write_results", "worst.png"),
    "examples": (
        "pretrain/masked_patches_cifar10",
        "vit.extensions.pretraining.finisher",
        "write_pretraining",
        "masked_patches.png",
    ),
}
"""Finisher -> recipe, its module, a function that it calls, and a file that it writes."""


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The name of a finisher, and a finished run of its recipe."""
    name = getattr(request, "param", "report")
    home = tmp_path_factory.mktemp("finished")
    options = ("--data.root", str(coloured(home / "photos")), *TINY, "--steps=2")
    assert main(["fit", "-c", TASKS[name][0], *options, "--run_dir", str(home / "run")]) == 0
    return name, home / "run"


@pytest.fixture
def run(runs: Any, tmp_path: Path) -> tuple[str, Path]:
    """The name of a finisher, and a copy of a run without what it makes, called run."""
    name, folder = runs
    copy = Path(shutil.copytree(folder, tmp_path / "run"))
    summary = json.loads((copy / "summary.json").read_text())
    states = summary.pop("finishers")
    assert states == dict.fromkeys(TABLES["finishers"], "done")
    (copy / "summary.json").write_text(json.dumps({**summary, "finishers": states | {name: "no"}}))
    for file in ("report.html", TASKS[name][3]):
        (copy / file).unlink()
    return name, copy


def states(run: Path) -> dict[str, str]:
    summary = json.loads((run / "summary.json").read_text())
    assert summary["finished"] is True
    return summary["finishers"]


def breaks(name: str, monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    """Lets the finisher act so when it writes its page."""
    _, module, function, _ = TASKS[name]
    monkeypatch.setattr(f"{module}.{function}", lambda *_, **__: act())


def fails() -> None:
    raise RuntimeError("no\nink")


@pytest.mark.parametrize("runs", TASKS, indirect=True)
def test_a_failure_is_a_note_and_a_report_is_made_later(
    run: tuple[str, Path], vit: Vit, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, folder = run
    monkeypatch.delenv("VIT_STRICT")
    with monkeypatch.context() as patch:
        breaks(name, patch, fails)
        done = vit("fit", "--run_dir=run")
        assert done.status == 0 and "run is finished; to train on" in done.out
        line = f"note: finisher {name} failed: RuntimeError: no ink; `vit report run` tries again"
        assert line in done.err.splitlines()
        assert states(folder)[name] == "failed: RuntimeError: no ink"
        assert vit("report", "run").status == 1
    done = vit("report", "run")
    assert (done.status, done.err) == (0, "")
    assert done.out == f"report         {(folder / 'report.html').resolve().as_uri()}\n"
    assert states(folder)[name] == "done" and (folder / TASKS[name][3]).is_file()
    page = folder / "report.html"
    made = page.stat().st_mtime_ns
    assert vit("report", "run").status == 0 and page.stat().st_mtime_ns > made


def test_the_same_command_makes_what_is_missing(run: tuple[str, Path], vit: Vit) -> None:
    name, folder = run
    assert vit("fit", "--run_dir=run").status == 0
    assert states(folder)[name] == "done" and (folder / "report.html").is_file()


def test_a_failure_is_the_commands_where_that_is_asked_for(
    run: tuple[str, Path], vit: Vit, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(run[0], monkeypatch, fails)
    done = vit("report", "run")
    assert done.status == 1 and "unexpected error in vit" in done.err and "no ink" in done.err


def interrupted() -> None:
    """A signal that becomes another error."""
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except SystemExit:
        fails()


@pytest.mark.parametrize(
    ("number", "act"),
    [
        (signal.SIGINT, lambda: os.kill(os.getpid(), signal.SIGINT)),
        (signal.SIGTERM, lambda: os.kill(os.getpid(), signal.SIGTERM)),
        (signal.SIGTERM, interrupted),
    ],
)
def test_a_signal_stops_a_finisher_and_leaves_the_run_finished(
    number: int, act: Any, run: tuple[str, Path], vit: Vit, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, folder = run
    monkeypatch.delenv("VIT_STRICT")
    with monkeypatch.context() as patch:
        breaks(name, patch, act)
        done = vit("fit", "--run_dir=run")
    assert done.status == 128 + number
    assert done.err == "stopped; run is finished, and `vit report run` makes the rest\n"
    assert states(folder).get(name) != "done"
    assert vit("report", "run").status == 0 and states(folder)[name] == "done"


def test_a_kill_leaves_a_run_that_is_reported_later(
    run: tuple[str, Path], vit: Vit, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, folder = run
    with monkeypatch.context() as patch:
        breaks(name, patch, lambda: os.kill(os.getpid(), signal.SIGKILL))
        assert in_child(lambda: main(["report", "run"])) == -signal.SIGKILL
    assert states(folder).get(name) != "done"
    assert vit("report", "run").status == 0 and states(folder)[name] == "done"


def test_a_report_is_of_a_finished_run(run: tuple[str, Path], vit: Vit) -> None:
    _, folder = run
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "finished": False}))
    refused = vit("report", "run")
    assert refused.status == 2
    assert "without a finished model; continue it: vit fit --run_dir run" in refused.err
    refused = vit("report", "rum")
    assert refused.status == 2 and "is not a run directory" in refused.err
    assert "did you mean 'run'" in refused.err and not Path("rum").exists()


def test_a_damaged_file_of_a_report_and_images_that_are_gone_or_changed_are_named(
    vit: Vit, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = vit("fit", "-c", "cifar10", "--data.root", photos, *TINY, "--steps=2", "--run_dir=run")
    assert done.status == 0 and "shows no images" not in done.err
    for path in [*photos.rglob("*.jpg")]:
        path.rename(path.with_name(f"{path.stem}{path.parent.name}.jpg"))
    monkeypatch.delenv("VIT_STRICT")
    for file in (Path("run/predictions.npz"), Path("run/first_batch.npz")):
        whole = file.read_bytes()
        for damaged in (b"", b"xx", whole[:200]):
            file.write_bytes(damaged)
            refused = vit("report", "run")
            text = f"report failed: {file} is damaged; copy the run again"
            assert refused.status == 1 and text in refused.err
        file.write_bytes(whole)
    changed = vit("report", "run")
    assert changed.err == "note: the report shows no images of test: they have changed\n"
    photos.rename("moved")
    gone = vit("report", "run")
    assert "note: the report shows no images of test: " in gone.err
    assert changed.status == gone.status == 0
    assert "Confusion" in Path("run/report.html").read_text(encoding="utf-8")


def telling(run: Path) -> None:
    print("finisher, in a group:", dist.is_initialized(), file=sys.stderr)


TELL = "from tests.runs.test_finishers import tells; tells()"


def tells() -> None:
    """Lets all finishers tell that they are called."""
    for _, module, _, _ in TASKS.values():
        import_module(module).finish = telling


def test_finishers_run_in_the_first_of_two_processes_after_they_have_parted(
    tmp_path: Path, photos: Path, deadline: Callable[[float], float]
) -> None:
    shared = ("fit", "-c", "cifar10", *TINY, f"--data.root={photos}", "--run_dir=run")
    shared += ("--steps=2", "--trainer.devices=2", "--trainer.strategy=ddp")
    first, second = pair(tmp_path, shared, seconds=deadline(60), before=TELL)
    assert first.status == second.status == 0, (first, second)
    assert first.err.count("finisher, in a group: False") == len(TABLES["finishers"])
    assert "finisher" not in second.err
    assert states(tmp_path / "run") == dict.fromkeys(TABLES["finishers"], "done")
