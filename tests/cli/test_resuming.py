"""A resume that does not fit is one line, and leaves the run as it was."""

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import TINY, Vit

LONG = ("--final_split=none", "--trainer.log_every_n_steps=1")


@pytest.fixture
def run(vit: Vit, photos: Path) -> Path:
    """A run of one epoch on three classes, by AdamW."""
    done = vit(
        "fit", "-c", "cifar10", "--data.root", photos, *TINY, *LONG, "--trainer.max_epochs=1",
        "--model.optimizer=torch.optim.AdamW", "--run_dir=run",
    )  # fmt: skip
    assert done.status == 0, done.err
    return Path("run")


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def resume(vit: Vit, *options: object) -> tuple[int, str, str]:
    return vit("fit", "--run_dir=run", "--ckpt_path", "last", "--trainer.max_epochs=2", *options)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (
            "--model.architecture={patch_size: 8, width: 32, depth: 1, mlp_dim: 32, num_heads: 1}",
            "model.architecture.width was 16 and is 32",
        ),
        (
            "--model.architecture={patch_size: 8, width: 16, depth: 1, mlp_dim: 32, num_heads: 2}",
            "model.architecture.num_heads was 1 and is 2",  # tensors of the same shapes
        ),
        (
            "--model.optimizer=torch.optim.SGD",
            "model.optimizer was torch.optim.AdamW and is torch.optim.SGD",
        ),
        ("--model.learning.layer_decay=0.5", "model.learning.layer_decay was 1.0 and is 0.5"),
        (
            "--data.batch_size=4",
            "images per step (batch_size x processes x accumulation) was 8 and is 4",
        ),
        ("--task=masked_patches", None),
    ],
)
def test_what_differs_is_named_and_nothing_is_written(
    option: str, said: str | None, run: Path, vit: Vit
) -> None:
    before = contents(run)
    done = resume(vit, option)
    assert done[0] == 2
    [*_, line] = done[2].splitlines()
    assert line.startswith("vit: ") and "Traceback" not in done[2]
    if said is not None:
        assert f"last.ckpt does not go on with this configuration: {said}. " in line
    assert contents(run) == before
    assert resume(vit)[0] == 0


def test_other_classes_are_named_and_the_run_still_works(run: Path, vit: Vit, photos: Path) -> None:
    os.rename(photos / "red", photos / "rot")
    before = contents(run)
    done = resume(vit)
    assert done[0] == 2
    assert "configuration: class 2 was 'red' and is 'rot'. " in done[2]
    (photos / "rot" / "00.jpg").rename(photos / "00.jpg")
    for name in ("more", "again"):
        (photos / name).mkdir()
        for i in range(12):
            (photos / name / f"{i}.jpg").write_bytes((photos / "00.jpg").read_bytes())
    assert (
        "classes was 3 (blue, grün, red) and is 5 (again, blue, grün and 2 more)" in resume(vit)[2]
    )
    assert contents(run) == before


def test_the_configuration_before_a_resume_is_kept(run: Path, vit: Vit) -> None:
    before = (run / "config.yaml").read_bytes()
    assert resume(vit)[0] == 0
    assert (run / "config.yaml.1").read_bytes() == before
    assert b"max_epochs: 2" in (run / "config.yaml").read_bytes()
    assert resume(vit)[0] == 0  # the same options: nothing to keep
    assert not (run / "config.yaml.2").exists()


def test_the_model_of_a_run_that_went_on_does_not_say_how_it_was_started(
    run: Path, vit: Vit
) -> None:
    def recipe() -> dict[str, Any]:
        return json.loads((run / "model/config.json").read_text())["extra"]["recipe"]

    before = recipe()
    assert before["ckpt_path"] is None and before["run_dir"] is None and "config" not in before
    done = vit("fit", "--run_dir", run, "--ckpt_path=last")
    assert done.status == 0, done.err
    assert recipe() == before


def test_an_option_of_the_optimizer_without_effect_is_noted(run: Path, vit: Vit) -> None:
    done = resume(vit, "--model.optimizer.lr=0.5")
    assert done[0] == 0
    assert "note: model.optimizer.init_args.lr=0.5 has no effect on a run that goes on" in done[2]
    with (run / "metrics.csv").open() as file:
        rates = [float(row["lr"]) for row in csv.DictReader(file) if row["lr"]]
    assert max(rates) < 0.1


@pytest.mark.parametrize(
    "damage", [b"nonsense\n1,2\n", b"\xff\xfe\x00step\n", b"step,a\n1,2,3,4\n"]
)
def test_damaged_metrics_are_set_aside(damage: bytes, run: Path, vit: Vit) -> None:
    (run / "metrics.csv").write_bytes(damage)
    done = resume(vit)
    assert done[0] == 0
    assert "note: run/metrics.csv could not be read" in done[2]
    assert (run / "metrics.csv.damaged").read_bytes() == damage
    with (run / "metrics.csv").open() as file:
        assert [int(row["step"]) for row in csv.DictReader(file)]


def test_a_cut_summary_costs_a_note(run: Path, vit: Vit) -> None:
    (run / "summary.json").write_text((run / "summary.json").read_text()[:40])
    done = vit("test", run)
    assert done.status == 0
    assert "note: run/summary.json cannot be read and is left out" in done.err


def test_a_run_without_a_configuration_is_named(run: Path, vit: Vit) -> None:
    (run / "config.yaml").unlink()
    assert vit("test", run) == (
        2, "", "vit: run is not a run directory: it has no config.yaml\n"
    )  # fmt: skip
