"""The same command, typed again after a kill, a damaged file or a full disk, loses nothing."""

import csv
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import vit.cli.results
import vit.training.saving
from tests.cli.conftest import TINY, Vit
from tests.killing import killed_at
from vit.checkpoints.files import open_weights
from vit.checkpoints.native import load_native
from vit.cli.main import main
from vit.cli.resuming import read_checkpoint
from vit.errors import UserError
from vit.training.classifier import ImageClassifier

# Three steps per epoch; every epoch is saved.
RUN = ("--save_every=0", "--trainer.max_epochs=8", "--trainer.log_every_n_steps=1")


@pytest.fixture
def command(photos: Path) -> tuple[str, ...]:
    return ("fit", "-c", "cifar10", "--data.root", str(photos), *TINY, *RUN)


@pytest.fixture
def run(vit: Vit, command: tuple[str, ...]) -> Path:
    """A run of eight epochs that was not interrupted."""
    done = vit(*command, "--run_dir=whole")
    assert done.status == 0, done.err
    return Path("whole")


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def in_child(work: Callable[[], Any]) -> int:
    """Exit status of a forked process that does the work: negative for a signal."""

    def quiet() -> None:
        sys.stdout = sys.stderr = open(os.devnull, "w")
        os._exit(work())

    child = multiprocessing.get_context("fork").Process(target=quiet)
    child.start()
    child.join()
    assert child.exitcode is not None
    return child.exitcode


# In a save the file is written (save), gets its digest (seal) and its name (replace). An epoch
# saves best.ckpt, if it is better, and then last.ckpt.
KILLS = [
    (ImageClassifier, "training_step", 2),  # before the first save: starts over
    (torch, "save", 2),  # best.ckpt is there, last.ckpt is not
    (vit.training.saving, "seal", 2),
    (ImageClassifier, "training_step", 5),
    (ImageClassifier, "validation_step", 2),
    (os, "fsync", 2),  # after config.yaml
    (os, "replace", 4),
    (vit.cli.results, "score", 1),
    (vit.cli.results, "save_native", 1),
    (vit.cli.results, "write_results", 1),
]


def metrics(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    timed = {"seconds", "images_per_second"}
    return [{k: v for k, v in row.items() if k not in timed} for row in rows]


def test_kills_at_any_moment_change_nothing(run: Path, vit: Vit, command: tuple[str, ...]) -> None:
    def attempt(owner: Any, name: str, count: int) -> int:
        killed_at(owner, name, count)
        return main([*command, "--run_dir=killed"])

    for kill in KILLS:
        assert in_child(lambda kill=kill: attempt(*kill)) == -signal.SIGKILL, kill
        assert not (Path("killed") / "traceback.txt").exists()
    done = vit(*command, "--run_dir=killed")
    assert done.status == 0, done.err
    assert "is finished" not in done.err
    killed = Path("killed")
    for name in ("last", "best", "previous"):
        files = [folder / f"checkpoints/{name}.ckpt" for folder in (run, killed)]
        states = [torch.load(file, weights_only=True) for file in files]
        assert states[0]["global_step"] == states[1]["global_step"]
        for key, value in states[0]["state_dict"].items():
            assert torch.equal(value, states[1]["state_dict"][key]), (name, key)
    for name in ("model/model.safetensors", "model/config.json", "predictions.csv"):
        assert (run / name).read_bytes() == (killed / name).read_bytes(), name
    assert metrics(run) == metrics(killed)
    assert not [path for path in killed.rglob(".*") if path.name not in (".lock",)]


def test_a_finished_run_is_left_alone(run: Path, vit: Vit, command: tuple[str, ...]) -> None:
    before = contents(run)
    again = vit(*command, "--run_dir=whole")
    assert again.status == 0 and again.err.startswith("whole is finished, nothing was done")
    shown = vit("fit", "--run_dir=whole", "--json")
    assert json.loads(shown.out) == json.loads((run / "summary.json").read_text())
    assert contents(run) == before
    longer = vit("fit", "--run_dir=whole", "--trainer.max_epochs=9")
    assert longer.status == 0 and "is finished" not in longer.err
    steps = [int(row["step"]) for row in metrics(run)]
    assert max(steps) > 3 * 8 and steps == sorted(steps)


def unfinished(folder: Path) -> Path:
    """A run as if it had been killed after its last save."""
    (folder / "summary.json").unlink()
    return folder


def test_another_configuration_is_refused_and_nothing_is_written(
    run: Path, vit: Vit, command: tuple[str, ...]
) -> None:
    before = contents(unfinished(run))
    other = ("--model.schedule.warmup_steps=3", "--data.augment.flip=false")
    done = vit(*command, "--run_dir=whole", *other)
    assert done.status == 2
    assert "whole already holds an unfinished run of another configuration: " in done.err
    for difference in (
        "model.schedule.warmup_steps was 20 and is 3",
        "data.augment.flip was True and is False",
    ):
        assert difference in done.err
    assert contents(run) == before
    never = vit(*command, "--run_dir=whole", "--resume=never")
    assert never.status == 2 and "already holds a run" in never.err
    assert contents(run) == before


@pytest.mark.parametrize(
    "options",
    [
        ("--data.loading.num_workers=1",),
        ("--trainer.max_epochs=9", "--trainer.log_every_n_steps=2", "--save_every=9"),
        ("--data.batch_size=4", "--trainer.accumulate_grad_batches=2"),
    ],
)
def test_what_does_not_change_the_training_may_differ(
    options: tuple[str, ...], run: Path, vit: Vit, command: tuple[str, ...]
) -> None:
    unfinished(run)
    done = vit(*command, "--run_dir=whole", *options)
    assert done.status == 0, done.err


def test_a_new_run_names_the_one_that_could_go_on(
    vit: Vit, command: tuple[str, ...], run: Path
) -> None:
    Path("runs").mkdir()
    shutil.move(unfinished(run), "runs/cifar10")
    done = vit(*command)
    continues = "vit fit --run_dir runs/cifar10 continues it"
    assert done.status == 0 and Path("runs/cifar10-2/summary.json").is_file()
    assert f"note: runs/cifar10 is an unfinished run of this configuration; {continues}" in done.err
    assert "unfinished" not in vit(*command, "--seed_everything=5").err
    assert "unfinished" not in vit(*command, "--resume=never").err


def test_a_path_is_continued(run: Path, vit: Vit, command: tuple[str, ...]) -> None:
    previous = run / "checkpoints/previous.ckpt"
    done = vit(*command, "--run_dir=other", "--resume", previous)
    assert done.status == 0, done.err
    for folder in ("whole", "other"):
        assert Path(folder, "summary.json").is_file()
    assert contents(run / "model") == contents(Path("other/model"))
    both = vit(*command, "--resume", previous, "--ckpt_path", previous)
    assert both.status == 2 and "give one of them" in both.err
    missing = vit(*command, "--resume=no.ckpt")
    assert missing.status == 2 and "no checkpoint at no.ckpt" in missing.err
    assert vit("fit", "--resume", run).status == 0


def flip(file: Path, draw: random.Random) -> None:
    content = bytearray(file.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)


def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(
    run: Path, vit: Vit, command: tuple[str, ...]
) -> None:
    model = contents(unfinished(run) / "model")
    flip(run / "checkpoints/last.ckpt", random.Random(0))
    explicit = vit("fit", "--resume", run / "checkpoints/last.ckpt")
    assert explicit.status == 2 and "last.ckpt is damaged: " in explicit.err.splitlines()[-1]
    done = vit(*command, "--run_dir=whole")
    assert done.status == 0, done.err
    assert "note: whole/checkpoints/last.ckpt is damaged: its bytes have changed" in done.err
    assert "note: continuing from previous.ckpt, step 21" in done.err
    assert contents(run / "model") == model
    for name in ("last", "previous", "best"):
        (run / f"checkpoints/{name}.ckpt").write_bytes(b"")
    unfinished(run)
    done = vit(*command, "--run_dir=whole")
    assert done.status == 2 and "start a new run" in done.err.splitlines()[-1]


def test_a_damaged_best_checkpoint_is_noted_or_refused(
    run: Path, vit: Vit, command: tuple[str, ...]
) -> None:
    unfinished(run)
    flip(run / "checkpoints/best.ckpt", random.Random(1))
    done = vit(*command, "--run_dir=whole")
    assert done.status == 0, done.err
    assert "best.ckpt is damaged; the best score starts over" in done.err


def test_no_damage_to_a_file_of_a_run_is_silent(run: Path) -> None:
    draw, model = random.Random(0), run / "model"
    expected = {name: t.clone() for name, t in load_native(model)[0].state_dict().items()}
    description = (model / "config.json").read_text()

    def read(file: Path) -> None:
        """Reads the file as the commands do, and compares what is read."""
        if file.suffix == ".ckpt":
            open_weights(file)
            read_checkpoint(file)
            raise AssertionError(f"damage to {file.name} went unnoticed")
        network, info = load_native(model)
        for name, value in network.state_dict().items():
            assert torch.equal(value, expected[name]), name
        for name in ("classes", "preprocess"):
            same = getattr(info, name) == json.loads(description)[name]
            assert same or any(name in note for note in info.notes)
        assert info.extra == json.loads(description)["extra"]

    for file in (*sorted((run / "checkpoints").iterdir()), *sorted(model.iterdir())):
        content = file.read_bytes()
        damages = [bytearray(content) for _ in range(20)]
        for damaged in damages:
            damaged[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        damages += [content[: draw.randrange(len(content))] for _ in range(5)]
        damages += [content + tail for tail in (b"x", bytes(50))]
        for damaged in damages:
            file.write_bytes(damaged)
            try:
                read(file)
            except UserError as error:
                assert "\n" not in str(error)
        file.write_bytes(content)


def test_a_full_disk_leaves_the_checkpoints_whole(
    run: Path, vit: Vit, command: tuple[str, ...]
) -> None:
    """A limit on the size of a file stands for the disk; 40 kB are too few for a checkpoint."""
    folder = unfinished(run) / "checkpoints"
    before = contents(folder)

    def limited() -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
        sys.stderr = open("err.txt", "w")
        status = main([*command, "--run_dir=whole", "--trainer.max_epochs=9"])
        sys.stderr.flush()
        return status

    assert in_child(limited) == 1
    assert contents(folder) == before
    last = Path("err.txt").read_text().splitlines()[-1]
    assert last.startswith("vit: File too large: ") and "Traceback" not in last
    done = vit(*command, "--run_dir=whole", "--trainer.max_epochs=9")
    assert done.status == 0, done.err
