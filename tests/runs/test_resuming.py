"""The same command, typed again after a kill, a damaged file or a full disk, loses nothing."""

import contextlib
import io
import json
import os
import re
import shutil
import signal
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch

import vit.runs.finish
from tests.command import TINY, Vit, coloured, contents, logged, saved, table
from tests.killing import in_child, killed_at, with_small_files
from vit.cli.main import main
from vit.recipes import read_options
from vit.training.image_classifier import ImageClassifier
from vit.weights.archives import read_checkpoint
from vit.weights.identity import identity

# Three steps per epoch; every epoch is saved.
RUN = ("--save_every=0", "--trainer.max_epochs=8", "--trainer.log_every_n_steps=1")


def fit_on(photos: Path) -> tuple[str, ...]:
    return ("fit", "-c", "cifar10", "--data.root", str(photos), *TINY, *RUN)


@pytest.fixture
def command(photos: Path) -> tuple[str, ...]:
    return fit_on(photos)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of eight epochs that was not interrupted."""
    home = tmp_path_factory.mktemp("trained")
    with contextlib.chdir(home):
        assert main([*fit_on(coloured(home / "my photos")), "--run_dir=whole"]) == 0
    return home


@pytest.fixture
def run(trained: Path, vit: Vit, photos: Path) -> Path:
    """A copy of that run, as if it had been on `photos`."""
    run = Path(shutil.copytree(trained / "whole", "whole"))
    for file in (run / "config.yaml", run / "summary.json", run / "model" / "config.json"):
        text = file.read_text(encoding="utf-8").replace(str(trained), str(photos.parent))
        file.write_text(text, encoding="utf-8")
    return run


def unfinished(folder: Path) -> Path:
    """A run as if it had been killed after its last save."""
    (folder / "summary.json").unlink()
    return folder


# In a save the file is written (save), flushed (fsync) and gets its name (replace). An epoch saves
# best.ckpt, if it is better, and then last.ckpt.
KILLS = [
    (ImageClassifier, "training_step", 2),  # before the first save: starts over
    (torch, "save", 2),  # best.ckpt is there, last.ckpt is not
    (ImageClassifier, "training_step", 5),
    (ImageClassifier, "validation_step", 2),
    (os, "fsync", 2),  # after config.yaml
    (os, "replace", 4),
    (vit.runs.finish, "score", 1),
    (vit.runs.finish, "save_native", 1),
    (vit.runs.finish, "write_json", 1),
]


def test_kills_at_any_moment_change_nothing(run: Path, vit: Vit, command: tuple[str, ...]) -> None:
    def attempt(owner: Any, name: str, count: int) -> int:
        killed_at(owner, name, count)
        return main([*command, "--run_dir=killed"])

    for kill in KILLS:
        assert in_child(lambda kill=kill: attempt(*kill)) == -signal.SIGKILL, kill
    done = vit(*command, "--run_dir=killed")
    assert done.status == 0, done.err
    assert "is finished" not in done.out
    killed = Path("killed")
    for name in ("last", "best"):
        files = [folder / f"checkpoints/{name}.ckpt" for folder in (run, killed)]
        states = [torch.load(file, weights_only=True) for file in files]
        assert states[0]["global_step"] == states[1]["global_step"]
        for key, value in states[0]["state_dict"].items():
            assert torch.equal(value, states[1]["state_dict"][key]), (name, key)
    for name in ("model/model.safetensors", "model/config.json", "predictions.csv"):
        assert (run / name).read_bytes() == (killed / name).read_bytes(), name
    assert logged(run) == logged(killed)
    assert not [path for path in killed.rglob(".*") if path.name not in (".lock",)]


PARTS = """
import random
from torch.nn import functional

class Turn:
    def __init__(self, most: float = 3): self.most = most
    def __call__(self, image): return image.rotate(random.uniform(0, self.most))

def loss(logits, targets): return functional.mse_loss(logits, targets)
"""


def test_a_run_with_own_parts_continues_bitwise(vit: Vit, command: tuple[str, ...]) -> None:
    Path("own_parts.py").write_text(PARTS)
    own = [
        *command, "--data.augment.extra=own_parts.Turn", "--data.augment.extra.most=9",
        "--model.loss.function=own_parts.loss", "--model.loss.label_smoothing=0",
        "--model.mixing.mixup=0.2", "--trainer.max_epochs=2", "--data.loading.num_workers=1",
    ]  # fmt: skip

    def attempt() -> int:
        killed_at(ImageClassifier, "training_step", 5)
        return main([*own, "--run_dir=killed"])

    assert in_child(attempt) == -signal.SIGKILL
    for folder in ("whole", "killed"):
        done = vit(*own, f"--run_dir={folder}")
        assert done.status == 0, done.err
    weights = [Path(folder, "model/model.safetensors") for folder in ("whole", "killed")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert logged(Path("whole")) == logged(Path("killed"))
    del sys.modules["own_parts"]


def test_a_finished_run_is_left_alone(run: Path, vit: Vit, command: tuple[str, ...]) -> None:
    before = contents(run)
    again = vit(*command, "--run_dir=whole")
    assert again.status == 0 and "whole is finished; to train on, raise --epochs or" in again.out
    shown = vit("fit", "--run_dir=whole", "--json")
    assert json.loads(shown.out) == json.loads((run / "summary.json").read_text())
    assert vit("fit", "--resume", run).status == 0
    other = vit(*command, "--run_dir=whole", "--data.augment.flip=false", "--trainer.max_epochs=9")
    assert other.status == 2 and "data.augment.flip (was True, is False)" in other.err
    assert contents(run) == before
    longer = vit("fit", "--run_dir=whole", "--trainer.max_epochs=9")
    assert longer.status == 0 and "note: resuming whole at step 24 from" in longer.err
    steps = [int(row["step"]) for row in logged(run)]
    assert steps == list(range(3 * 9 + 1))  # the last row is of the test
    before = contents(run)
    for lowered in ("--epochs=2", "--steps=5", "--trainer.max_time=00:00:00:01", "--patience=3"):
        done = vit("fit", "--run_dir=whole", lowered)
        assert done.status == 0 and done.out == "whole is finished and stays as it is\n", done.err
        assert "nothing is left to train at step 27" in done.err
    assert contents(run) == before
    other = vit("fit", "--run_dir=whole", "--final_split=val")
    assert other.status == 0 and "val accuracy" in other.out


def test_options_that_differ_are_noted_and_used(
    run: Path, vit: Vit, command: tuple[str, ...]
) -> None:
    unfinished(run)
    batches = ("--data.batch_size=4", "--trainer.accumulate_grad_batches=2", "--save_every=9")
    other = ("--data.augment.flip=false", "--trainer.max_epochs=9", *batches)
    done = vit(*command, "--run_dir=whole", *other, "--data.loading.num_workers=1")
    assert done.status == 0
    assert "note: resuming whole at step 24 from" in done.err
    assert "data.augment.flip (was True, is False)" in done.err
    assert "trainer.max_epochs (was 8, is 9)" in done.err
    assert read_options(run / "config.yaml")["data"]["augment"]["flip"] is False


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("--model.architecture.width=32", "model.architecture.width (was 16, is 32)"),
        ("--model.optimizer.lr=0.5", "model.optimizer.init_args.lr (was 0.02, is 0.5)"),
        ("--model.learning.layer_decay=0.5", "model.learning.layer_decay (was 1.0, is 0.5)"),
        ("--data.batch_size=4", "images per step (was 8, is 4)"),
        ("--seed_everything=5", "seed_everything"),
        ("--data.splits.val_fraction=0.3", "images and labels.val (was "),
        ("--task=masked_patches", ""),
    ],
)
def test_what_cannot_change_is_refused_and_nothing_is_written(
    option: str, named: str, run: Path, vit: Vit, command: tuple[str, ...]
) -> None:
    before = contents(unfinished(run))
    done = vit(*command, "--run_dir=whole", option)
    assert done.status == 2
    [*_, line] = done.err.splitlines()
    assert line.startswith("vit: ") and named in line
    assert contents(run) == before


@pytest.mark.parametrize("change", ["rename", "add", "relabel"])
def test_other_images_and_labels_are_refused(
    change: str, run: Path, vit: Vit, command: tuple[str, ...], photos: Path
) -> None:
    before = contents(unfinished(run))
    if change == "rename":
        (photos / "red").rename(photos / "rot")
    elif change == "add":
        shutil.copy(photos / "red/00.jpg", photos / "red/more.jpg")
    else:
        for old, new in (("red", "x"), ("blue", "red"), ("x", "blue")):
            (photos / old).rename(photos / new)
        (photos / "red/00.jpg").rename(photos / "red/renamed.jpg")
    done = vit(*command, "--run_dir=whole")
    assert done.status == 2 and "--model.pretrained whole" in done.err
    assert contents(run) == before


def packed(photos: Path, count: int, *, blank: bool = False) -> None:
    """`shards`, of the images of a folder, or of as many bytes of zeros."""
    shutil.rmtree("shards", ignore_errors=True)
    Path("shards").mkdir()
    for number in range(count):
        with tarfile.open(f"shards/{number}.tar", "w") as tar:
            for path in sorted(photos.rglob("*.jpg"))[number::count]:
                content = path.read_bytes()
                content = content[:-9] + bytes(9) if blank else content
                member = tarfile.TarInfo(path.relative_to(photos).as_posix())
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def test_the_order_of_blocks_and_the_contents_of_shards_are_those_of_the_run(
    vit: Vit, photos: Path
) -> None:
    args = ("fit", "-c", "cifar10", "--data", "shards", *TINY, "--save_every=0")
    blocks = ("--data.shuffle=blocks", "--run_dir=blocks")
    one, two = "--trainer.max_epochs=1", "--trainer.max_epochs=2"
    packed(photos, 4)
    assert vit(*args, *blocks, one).status == 0
    assert vit(*args, "--run_dir=images", one).status == 0
    packed(photos, 6)  # the same images in other blocks
    done = vit(*args, *blocks, two)
    assert done.status == 2, done.err
    assert "images and labels.blocks (was " in done.err.splitlines()[-1]
    unfinished(Path("images"))
    done = vit(*args, "--run_dir=images", "--data.shuffle=blocks", two)
    assert done.status == 2 and "labels.blocks (was None, is " in done.err.splitlines()[-1]
    packed(photos, 6, blank=True)  # other images under the same names
    done = vit(*args, "--run_dir=images", two)
    assert done.status == 2 and "contents of the shards (was " in done.err.splitlines()[-1]
    # Where no block decides, a run may go on with the same images in other places.
    packed(photos, 6)
    assert vit(*args, "--run_dir=images", two).status == 0
    packed(photos, 4)
    done = vit(*args, *blocks, two)
    assert done.status == 0, done.err


def test_other_weights_at_the_same_path_are_not_taken_for_those_of_the_run(
    vit: Vit, photos: Path
) -> None:
    """A teacher may not change, nor the weights that a finished run is of; one that goes on has
    all weights in its checkpoint."""
    saved(Path("t"))
    shutil.copytree("t", "start")
    shutil.copytree("t", "first")
    args = ("fit", "-c", "cifar10", "--data", photos, *TINY[1:], "--save_every=0")
    token = TINY[0].replace("}", ", distillation_token: true}")
    teacher = ("--model.loss.teacher=vit.Distillation", "--model.loss.teacher.weights=t")
    student = (*args, token, *teacher, "--run_dir=student")
    tuned = (*args, "--model.pretrained=start", "--model.architecture=null", "--run_dir=tuned")
    more = "--trainer.max_epochs=2"
    for command in (student, tuned):
        assert vit(*command, "--trainer.max_epochs=1").status == 0
    began_with = identity("start")
    for folder in ("t", "start"):
        saved(Path(folder), seed=1)
    for finished in (True, False):
        if not finished:
            unfinished(Path("student"))
        before = contents(Path("student"))
        done = vit(*student, more)
        [*_, line] = done.err.splitlines()
        named = r"teacher\.init_args\.weights \(was \w+ at .*/t, is \w+ at .*/t\)"
        assert done.status == 2 and re.search(named, line), done.err
        assert contents(Path("student")) == before
    done = vit(*tuned, "--trainer.max_epochs=1")
    assert done.status == 2 and "holds a finished run" in done.err
    assert "weights.model.pretrained (was " in done.err.splitlines()[-1]
    done = vit(*tuned, more)
    assert done.status == 0 and "differ from tuned/config.yaml" in done.err, done.err
    assert read_options(Path("tuned/config.yaml"))["weights"]["model.pretrained"] == began_with
    shutil.rmtree("t")
    shutil.copytree("first", "t")
    assert vit(*student, more).status == 0


def test_a_new_run_names_the_one_that_could_go_on(
    vit: Vit, command: tuple[str, ...], run: Path
) -> None:
    Path("runs").mkdir()
    shutil.move(unfinished(run), "runs/cifar10")
    done = vit(*command)
    assert done.status == 0 and Path("runs/cifar10-2/summary.json").is_file()
    assert "runs/cifar10 is unfinished, with these options" in done.err
    assert "vit fit --run_dir runs/cifar10 continues it" in done.err
    assert "unfinished" not in vit(*command, "--seed_everything=5").err


def test_a_path_is_resumed_in_a_new_directory(
    run: Path, vit: Vit, command: tuple[str, ...]
) -> None:
    best = unfinished(run) / "checkpoints/best.ckpt"
    longer = "--trainer.max_epochs=9"
    done = vit(*command, "--run_dir=other", "--resume", best, longer)
    assert done.status == 0, done.err
    assert vit(*command, "--run_dir=whole", longer).status == 0
    one, two = (
        read_checkpoint(p / "checkpoints/last.ckpt")["state_dict"] for p in (run, Path("other"))
    )
    assert all(torch.equal(value, two[name]) for name, value in one.items())
    missing = vit(*command, "--resume=no.ckpt")
    assert missing.status == 2 and "no.ckpt" in missing.err
    assert vit("fit", "--resume", run).status == 0
    before = contents(run), contents(Path("other"))
    occupied = vit(*command, "--run_dir=other", "--resume", run, "--trainer.max_epochs=10")
    assert occupied.status == 2 and "other already holds a run" in occupied.err
    options = (longer, "--data.augment.flip=false")  # one run, spelled in two ways
    spelled = vit(*command, "--run_dir=whole", "--resume", run.resolve(), *options)
    assert spelled.status == 2 and "data.augment.flip" in spelled.err
    assert (contents(run), contents(Path("other"))) == before


@pytest.mark.parametrize("validates", [True, False])
def test_a_resume_from_best_takes_every_step_once(
    validates: bool, run: Path, vit: Vit, command: tuple[str, ...]
) -> None:
    (unfinished(run) / "checkpoints/last.ckpt").unlink()
    more = () if validates else ("--trainer.limit_val_batches=0", "--final_split=none")
    step = read_checkpoint(run / "checkpoints/best.ckpt")["global_step"]
    done = vit(*command, "--run_dir=whole", "--trainer.max_epochs=9", *more)
    assert done.status == 0, done.err
    assert [int(row["step"]) for row in logged(run)] == list(range(27 + validates))
    assert read_checkpoint(run / "checkpoints/last.ckpt")["global_step"] == 27
    assert json.loads((run / "summary.json").read_text())["resumed_at"] == step


def test_a_damaged_last_checkpoint_is_reported_and_best_resumed(
    run: Path, vit: Vit, command: tuple[str, ...]
) -> None:
    last = unfinished(run) / "checkpoints/last.ckpt"
    last.write_bytes(last.read_bytes()[:-30])
    (run / "metrics.csv").write_bytes(b"\xff\xfe\x00step\n1,2,3,4\n")
    explicit = vit("fit", "--resume", last)
    assert explicit.status == 2 and "best.ckpt" in explicit.err.splitlines()[-1]
    done = vit(*command, "--run_dir=whole", "--trainer.max_epochs=9")
    assert done.status == 0, done.err
    assert "note: whole/checkpoints/last.ckpt is damaged" in done.err
    assert "best.ckpt" in done.err and logged(run)
    best = unfinished(run) / "checkpoints/best.ckpt"
    best.write_bytes(best.read_bytes()[:-30])
    done = vit(*command, "--run_dir=whole", "--trainer.max_epochs=10")
    assert done.status == 0 and "the best score starts over" in done.err, done.err
    for name in ("last", "best"):
        (run / f"checkpoints/{name}.ckpt").write_bytes(b"")
    unfinished(run)
    done = vit(*command, "--run_dir=whole")
    assert done.status == 2 and "start a new run" in done.err.splitlines()[-1]


def test_a_full_disk_leaves_the_checkpoints_whole(
    run: Path, vit: Vit, command: tuple[str, ...]
) -> None:
    """A limit on the size of a file stands for the disk; 40 kB are too few for a checkpoint."""
    folder = unfinished(run) / "checkpoints"
    before = contents(folder)
    longer = (*command, "--run_dir=whole", "--trainer.max_epochs=9")
    status, last = with_small_files(40_000, *longer)
    assert status == 1 and last.startswith("vit: File too large: ")
    assert contents(folder) == before
    done = vit(*longer)
    assert done.status == 0, done.err


def test_the_patience_that_is_typed_counts(vit: Vit, command: tuple[str, ...]) -> None:
    frozen = ("--model.optimizer={class_path: torch.optim.SGD, init_args: {lr: 0}}",)
    more = (*frozen, "--run_dir=run", "--trainer.max_epochs=12", "--final_split=none")
    done = vit(*command, *more, "--patience=2")
    assert done.status == 0 and "stopped early: val/acc1" in done.err
    assert "--run_dir run --patience 4" in done.out  # and not a limit, which has not ended it
    best, last = (read_checkpoint(Path(f"run/checkpoints/{n}.ckpt")) for n in ("best", "last"))
    assert best["global_step"] == last["global_step"]  # of equal scores the latest is kept
    waits = [
        {k: v["wait_count"] for k, v in file["callbacks"].items() if "wait_count" in v}
        for file in (best, last)
    ]
    assert waits[0] == waits[1] and [*waits[0].values()] == [2]
    unfinished(Path("run"))  # killed after the stop
    done = vit(*command, *more, "--patience=2")
    assert done.status == 0 and len(logged(Path("run"))) == 3 * 3
    done = vit(*command, *more, "--patience=5")
    assert done.status == 0 and "not improved in 5 validations" in done.err
    assert len(logged(Path("run"))) == 3 * 6
    before = contents(Path("run"))
    assert "stays as it is" in vit(*command, *more, "--patience=4").out
    assert contents(Path("run")) == before


def in_splits(photos: Path, root: Path) -> Path:
    for part in ("train", "val", "test"):
        shutil.copytree(photos, root / part)
    return root


@pytest.mark.parametrize("split", ["val", "test"])
def test_a_split_that_cannot_be_read_costs_its_score_alone(
    split: str, vit: Vit, command: tuple[str, ...], photos: Path, tmp_path: Path
) -> None:
    root = in_splits(photos, tmp_path / "split")
    for path in (root / split).rglob("*.jpg"):
        path.write_bytes(path.read_bytes()[:200])
    more = (f"--data.root={root}", "--data.loading.on_error=skip", "--trainer.max_epochs=1")
    done = vit(*command, *more, "--run_dir=run")
    assert done.status == 0, done.err
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["finished"] and f"{split}/loss" not in summary["metrics"]
    assert Path("run/model/config.json").is_file()


def test_a_test_image_that_cannot_be_read_costs_nothing_that_was_computed(
    vit: Vit, command: tuple[str, ...], photos: Path, tmp_path: Path
) -> None:
    root = in_splits(photos, tmp_path / "split")
    broken = root / "test/red/00.jpg"
    content = broken.read_bytes()
    broken.write_bytes(content[:-100])  # its header can be read
    done = vit(*command, f"--data.root={root}", "--run_dir=run")
    assert done.status == 2 and "00.jpg" in done.err
    assert Path("run/model/config.json").is_file()
    broken.write_bytes(content)
    done = vit(*command, f"--data.root={root}", "--run_dir=run")
    assert done.status == 0 and "nothing is left to train" in done.err
    assert "test/acc1" in json.loads(Path("run/summary.json").read_text())["metrics"]


STOPS = """\
import os, signal
from lightning.pytorch.callbacks import Callback
class AtTheEnd(Callback):
    def on_train_end(self, trainer, model):
        os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_run_that_is_stopped_at_its_very_end_has_the_rows_of_one_that_is_not(
    vit: Vit, photos: Path
) -> None:
    Path("stops.py").write_text(STOPS)
    fit = ("fit", "-c", "cifar10", f"--data.root={photos}", *TINY, "--steps=4")
    assert vit(*fit, "--run_dir=whole").status == 0
    done = vit(*fit, "--run_dir=stopped", "--trainer.callbacks+=stops.AtTheEnd")
    assert done.status == 143 and not Path("stopped/summary.json").exists()
    assert vit(*fit, "--run_dir=stopped").status == 0
    whole, stopped = (
        [(row["step"], row["val/loss"], row["test/loss"]) for row in table(f"{run}/metrics.csv")]
        for run in ("whole", "stopped")
    )
    assert whole == stopped and whole[-1][0] == "4" and whole[-1][2]


STABLE = ("--model.schedule.decay=constant", "--model.schedule.warmup_steps=2")
EMA = "--trainer.callbacks=[{class_path: vit.EMA, init_args: {decay: 0.9}}]"


def same_end(one: Path, other: Path) -> None:
    """Weights, averages, state of the optimizer, position and result are equal, bit for bit."""
    states = [torch.load(run / "checkpoints/last.ckpt", weights_only=True) for run in (one, other)]
    for name in ("global_step", "ImageData", "lr_schedulers"):
        assert states[0][name] == states[1][name]
    names = ("state_dict", "current_model_state")
    parts = [
        [*(state[name] for name in names if name in state), state["optimizer_states"][0]["state"]]
        for state in states
    ]
    torch.testing.assert_close(*parts, rtol=0, atol=0)
    models = [run / "model/model.safetensors" for run in (one, other)]
    assert models[0].read_bytes() == models[1].read_bytes()


@pytest.mark.parametrize("own", [(), (EMA,)], ids=["raw", "average"])
def test_a_cooldown_of_a_finished_run_is_the_planned_one(
    vit: Vit, command: tuple[str, ...], own: tuple[str, ...]
) -> None:
    fit = (*command, *STABLE, *own, "--trainer.val_check_interval=2")
    fit = (*fit, "--trainer.check_val_every_n_epoch=null", "--trainer.max_epochs=-1")
    assert vit(*fit, "--steps=7", "--run_dir=stable").status == 0  # in the middle of an epoch
    before = contents(Path("stable"))
    branch = vit("fit", "--resume=stable", "--run_dir=branch", "--cooldown=4")
    assert branch.status == 0, branch.err
    assert "cooldown: from step 7 to 11" in branch.err
    assert "vit test branch" in branch.out and "vit fit --run_dir" not in branch.out
    assert contents(Path("stable")) == before
    assert vit(*fit, "--steps=11", "--cooldown=4", "--run_dir=planned").status == 0
    same_end(Path("branch"), Path("planned"))
    rows = logged(Path("planned"))
    assert logged(Path("branch")) == [row for row in rows if int(row["step"]) >= 7]
    rates = [float(row["lr"]) for row in rows if row["lr"]]
    assert rates[7:] == pytest.approx([rates[6] * share for share in (1, 0.75, 0.5, 0.25)])
    validated = [int(row["step"]) for row in rows if row["val/loss"]]
    assert validated == [1, 3, 5, 7, 9, 10]  # the last step, too
    assert (Path("branch/config.yaml")).read_bytes() == Path("planned/config.yaml").read_bytes()
    again = vit("fit", "--resume=branch", "--run_dir=more", "--cooldown=2")
    assert again.status == 2 and "learning rate has decayed by step 11" in again.err


def test_a_cooldown_of_a_stopped_run_is_the_planned_one(vit: Vit, command: tuple[str, ...]) -> None:
    fit = (*command, *STABLE, "--trainer.max_epochs=-1")

    def attempt() -> int:
        killed_at(ImageClassifier, "training_step", 9)
        return main([*fit, "--steps=30", "--run_dir=stable"])

    assert in_child(attempt) == -signal.SIGKILL  # after the save at step 6
    branch = vit("fit", "--resume=stable/checkpoints/last.ckpt", "--run_dir=branch", "--cooldown=5")
    assert branch.status == 0, branch.err
    assert vit(*fit, "--steps=11", "--cooldown=5", "--run_dir=planned").status == 0
    same_end(Path("branch"), Path("planned"))


def test_a_run_that_has_decayed_is_not_cooled(run: Path, vit: Vit) -> None:
    fit = ("fit", f"--resume={run}", "--run_dir=branch", "--cooldown=4")
    linear = vit(*fit)
    assert linear.status == 2 and "cooldown_steps=4 has no effect on linear decay" in linear.err
    other = vit(*fit, "--model.schedule.decay=constant")
    assert other.status == 2 and "learning rate has decayed by step 24" in other.err
    assert not Path("branch").exists()
