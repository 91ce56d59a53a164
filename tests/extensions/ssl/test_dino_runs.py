"""Runs of `vit fit -c pretrain/dino_toy`: interrupted, on two processes, and used afterwards."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import vit.runs.fit  # once, in place of in each forked process
from benchmarks.faults.chaos import equal
from tests.command import Vit, coloured
from tests.extensions.ssl.trainings import of, pictures
from tests.killing import killed_at
from tests.processes import together
from vit import create_model
from vit.cli.main import main
from vit.extensions.ssl.dino import Dino
from vit.extensions.ssl.losses import Centre
from vit.extensions.ssl.watch import Watch

pytestmark = pytest.mark.filterwarnings("ignore")
assert vit.runs.fit
TOY = (
    "fit", "-c", "pretrain/dino_toy", "--data.image_size=16", "--data.batch_size=null",
    "--data.global_batch=8", "--data.crops={local: 2, local_size: 8, blur: false}",
    "--model.architecture={patch_size: 4, width: 16, depth: 2, mlp_dim: 32, num_heads: 2, "
    "drop_path: 0.2}",
    "--model.heads={prototypes: 24, hidden: 32, bottleneck: 8}",
    "--data.loading.num_workers=0", "--trainer.accelerator=cpu", "--save_every=0",
)  # fmt: skip
STEPS = ("--steps=12", "--model.pace.heads_alone=0.25", "--trainer.precision=32-true")
EXACT = ("--steps=7", "--trainer.precision=64-true", "--model.koleo=0")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("dino")
    pictures(home / "flat")
    coloured(home / "labelled")
    return home


@pytest.fixture(scope="module")
def fit(home: Path) -> Callable[..., list[int | None]]:
    """fit(processes, RUN_DIR, *options) -> exit statuses; `before` is called in each process."""

    def run(processes: int, folder: str, *options: str, before: Any = None) -> Any:
        words = [*TOY, *options, "--data.root=flat", f"--run_dir={folder}"]

        def work() -> int:
            os.chdir(home)
            os.environ["OMP_NUM_THREADS"] = "1"
            torch.set_num_threads(1)
            if before is not None:
                before()
            return main([*words, f"--trainer.devices={processes}"])

        return together(processes, home / f"{folder}.log", work)

    return run


def last(run: Path) -> dict[str, Any]:
    return torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)


DEATHS: tuple[tuple[Any, str, int], ...] = (
    (Dino, "forward", 2),
    (os, "replace", 2),
    (Dino, "forward", 7),
    (Watch, "_examine", 2),
    (Centre, "move", 3),
    (Dino, "optimizer_step", 5),
)
"""Functions, and the number of the call before which a run dies that has begun again each time."""


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_interruptions_change_nothing(processes: int, home: Path, fit: Any) -> None:
    whole, parts = f"whole{processes}", f"parts{processes}"
    watched = ("--model.yardstick=labelled", "--model.looks=4", "--model.teacher.centring=centre")
    options = (*STEPS, *watched)
    assert fit(processes, whole, *options) == [0] * processes
    # An epoch of five steps is saved at its end; heads alone learn in the first three.
    for death in DEATHS:
        dead = fit(processes, parts, *options, before=lambda where=death: killed_at(*where))
        assert -signal.SIGKILL in dead, (death, dead)
    assert fit(processes, parts, *options) == [0] * processes
    runs = [last(home / name) for name in (whole, parts)]
    assert runs[0]["global_step"] == runs[1]["global_step"] == 12
    assert equal(runs[0]["state_dict"], runs[1]["state_dict"])
    assert equal(runs[0]["optimizer_states"][0]["state"], runs[1]["optimizer_states"][0]["state"])
    watches = [
        next(each["watch"] for each in run["callbacks"].values() if "watch" in each) for run in runs
    ]
    assert equal(*watches) and watches[0]["step"] == 12


@pytest.mark.slow
@pytest.mark.parametrize("centring", ["centre", "sinkhorn"])
def test_two_processes_are_one_with_the_whole_batch(centring: str, home: Path, fit: Any) -> None:
    options = (*EXACT, f"--model.teacher.centring={centring}", "--trainer.gradient_clip_val=0.5")
    states = []
    for processes in (1, 2):
        folder = f"{centring}{processes}"
        statuses = fit(processes, folder, *options)
        assert statuses == [0] * processes, (home / f"{folder}.log/0.err").read_text()
        states.append(last(home / folder)["state_dict"])
    assert states[0]["model.norm.weight"].dtype == torch.float64
    for name, value in states[0].items():
        assert torch.allclose(value, states[1][name], rtol=0, atol=1e-9), name


@pytest.mark.slow
def test_shards_train_as_one_process_does(home: Path, fit: Any) -> None:
    # A large eps: rounding errors of gradients that are zero must not become steps.
    adamw = "{class_path: torch.optim.AdamW, init_args: {lr: 0.01, eps: 0.001}}"
    options = (
        "--steps=7", "--trainer.precision=32-true", "--model.koleo=0", "--save_every=60",
        "--model.pace.heads_alone=0.25", "--trainer.gradient_clip_val=0.5",
        f"--model.optimizer={adamw}",
    )  # fmt: skip
    assert fit(1, "alone", *options) == [0]
    statuses = fit(2, "sharded", *options, "--trainer.strategy=fsdp2")
    assert statuses == [0, 0], (home / "sharded.log/0.err").read_text()
    alone, sharded = (
        load_file(home / f"{n}/model/model.safetensors") for n in ("alone", "sharded")
    )
    for name, value in alone.items():
        assert torch.allclose(value, sharded[name], rtol=0, atol=1e-5), name


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    return pictures(tmp_path / "flat")


def test_what_is_saved_and_loaded_is_the_teacher_and_the_run_says_so(flat: Path, vit: Vit) -> None:
    done = vit(
        *TOY, "--steps=4", "--model.teacher.momentum=0.5", "--data.root", flat, "--run_dir=run"
    )
    assert done.status == 0, done.err
    assert "model/ holds the teacher; whether it is better than the start" in done.out
    state = last(Path("run"))["state_dict"]
    saved = load_file("run/model/model.safetensors")
    teacher, student = of(state, "model."), of(state, "student.")
    assert all(torch.equal(value, teacher[name]) for name, value in saved.items())
    assert any(not torch.equal(value, student[name]) for name, value in saved.items())
    network = create_model(None, pretrained="run")  # pyright: ignore
    assert torch.equal(network.state_dict()["cls_token"], teacher["cls_token"])
    fit = ("fit", "--data", coloured(Path("labelled")), "--steps", "1", "--trainer.accelerator=cpu")
    shown = vit(*fit, "--data.loading.num_workers=0", "--pretrained", "run/checkpoints/last.ckpt")
    assert shown.status == 0, shown.err
    assert "these weights are the running average of the training's" in shown.err
    assert "student" in shown.err and "beside the model" in shown.err


def test_a_run_is_compared_by_its_features(flat: Path, vit: Vit) -> None:
    assert vit(*TOY, "--steps=1", "--data.root", flat, "--run_dir=run").status == 0
    labelled = coloured(Path("labelled"))
    done = vit("knn", "run", "--data", labelled, "--json")
    assert done.status == 0, done.err
    done = vit("test", "run", "--data", labelled)
    assert done.status == 2, done.err
    assert "the loss of task dino scores no weights; try `vit knn` or `vit probe`" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--data.augment.flip=false",), "data.augment"),
        (("--data.crops.local_size=9",), "multiple of the 4 pixels of a patch, such as 8"),
        (("--model.teacher.centring=mean",), "model.teacher.centring"),
        (("--model.mixing.mixup=0.2",), "mixing"),
        (("--budget=1h",), "needs the run's length"),
    ],
)
def test_a_mistake_is_one_line(flat: Path, vit: Vit, words: tuple[str, ...], message: str) -> None:
    done = vit(*TOY, "--data.root", flat, *words)
    assert done.status == 2, done.err
    assert message in done.err.splitlines()[-1]


def test_options_of_the_crops_are_listed_and_those_of_the_augmentation_are_not(vit: Vit) -> None:
    shown = vit("fit", "-c", "pretrain/dino_toy", "--help-all").out
    for option in ("--data.crops.local_size", "--model.teacher.momentum", "--model.masks.share"):
        assert option in shown, option
    assert "--data.augment" not in shown
