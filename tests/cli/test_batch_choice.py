"""--data.batch_size auto: what is chosen, that it is kept, and what running out of memory says."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from jsonargparse import Namespace
from lightning.pytorch import Trainer

from tests.cli import batch_run
from tests.cli.conftest import TINY, Vit
from tests.grouped import image_classifier, masked_patches
from vit.cli.batch_choice import settle_batch
from vit.cli.batch_memory import predicted_batch, trial
from vit.cli.recipes import resolve_recipes
from vit.compute.memory import kept_bytes, largest_of
from vit.data.batches import batch_sizes
from vit.data.module import ImageData
from vit.errors import UserError
from vit.training.classifier import ImageClassifier
from vit.training.mixing import Mixing

OPTIONS = (*(option for option in TINY if "batch_size" not in option), "--final_split=none")
STEPS = ("--trainer.max_epochs=-1", "--trainer.max_steps=2")
FIT = ("fit", "-c", "cifar10", *OPTIONS, *STEPS)
AUTO = ("--data.batch_size=auto",)


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """limited(5): from then on the device has no memory for steps of more than 5 images."""
    monkeypatch.setattr("vit.cli.batch_memory.tries", lambda device: False)
    monkeypatch.setattr(ImageClassifier, "training_loss", ImageClassifier.training_loss)
    whole = ImageClassifier.training_loss

    def limit(most: int) -> None:
        monkeypatch.setattr(ImageClassifier, "training_loss", whole)
        batch_run.limit(most)

    return limit


def config_of(run: str) -> Any:
    return yaml.safe_load(Path(run, "config.yaml").read_text())


def weights_of(run: str) -> dict[str, torch.Tensor]:
    saved = torch.load(Path(run, "checkpoints", "last.ckpt"), weights_only=True)
    return saved["state_dict"] | {"step": torch.tensor(saved["global_step"])}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    ("whole", "processes", "paired", "sizes"),
    [
        (12, 1, False, [1, 2, 3, 4, 6, 12]),
        (12, 1, True, [2, 4, 6, 12]),
        (12, 4, True, []),
        (15, 1, True, [15]),  # one batch is the step: partners are all in it
        (30, 2, True, []),
        (1, 1, False, [1]),
    ],
)
def test_batches_divide_the_step(
    whole: int, processes: int, paired: bool, sizes: list[int]
) -> None:
    assert batch_sizes(whole, processes, paired=paired) == sizes


@pytest.mark.parametrize("guess", [0, 1, 5, 6, 100])
@pytest.mark.parametrize("limit", [0, 1, 4, 5, 100])
def test_the_search_finds_the_largest_from_any_guess(guess: int, limit: int) -> None:
    sizes, tried = [1, 2, 3, 4, 6, 12], []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= limit

    expected = max([size for size in sizes if size <= limit], default=0)
    assert largest_of(sizes, fits, guess) == expected
    assert len(tried) == len(set(tried))


def settled(*args: str, **data: Any) -> Namespace:
    trainer = {"val_check_interval": 50, "limit_train_batches": 1.0, "accumulate_grad_batches": 1}
    trainer |= {name: data.pop(name) for name in [*data] if name in trainer}
    config = Namespace(
        data=Namespace(**{"batch_size": "auto", "global_batch": None, **data}),
        trainer=Namespace(**trainer),
        batch_choice=None,
    )
    settle_batch(config, resolve_recipes([*args]))
    return config


def test_the_images_of_a_step_are_those_of_the_recipe(tmp_path: Path) -> None:
    assert settled("-c", "finetune").data.global_batch == 32
    assert settled().data.global_batch == 64
    assert settled("-c", "finetune", global_batch=48).data.global_batch == 48
    mine = tmp_path / "mine.yaml"
    mine.write_text("data: {batch_size: auto}\ntrainer: {devices: 4, num_nodes: 2}\n")
    assert settled("-c", "finetune", "-c", str(mine)).data.global_batch == 32 * 8
    config = settled("-c", "finetune", accumulate_grad_batches=4)
    assert config.data.global_batch == 128 and config.trainer.accumulate_grad_batches == 1
    assert config.trainer.val_check_interval == 12  # of 50 batches, in steps
    assert config.trainer.limit_train_batches == 1.0


def test_formula_keeps_the_images_of_a_step_and_the_choice(
    vit: Vit, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guesses = [5]
    monkeypatch.setattr("vit.cli.batch_memory.predicted_batch", lambda *_: guesses[0])
    command = (*FIT, "--data.root", photos, "--data.global_batch=12")
    done = vit(*command, *AUTO, "--run_dir=run")
    assert done.status == 0, done.err
    line = next(line for line in done.err.splitlines() if line.startswith("batch size"))
    assert line.startswith("batch size 4, by formula in ") and "3 batches per step of 12" in line
    assert vit(*command, "--data.batch_size=4", "--run_dir=number").status == 0
    assert same(weights_of("run"), weights_of("number"))

    config, before = config_of("run"), Path("run/config.yaml").read_text()
    assert config["data"]["batch_size"] == 4 and config["data"]["global_batch"] == 12
    choice = config["batch_choice"]
    assert {**choice, "because": ""} == {
        "batch_size": 4, "processes": 1, "images_per_step": 12, "because": "",
    }  # fmt: skip
    assert json.loads(Path("run/summary.json").read_text())["batch_choice"] == choice
    assert vit("test", "run").status == 0
    done = vit("test", "run", *AUTO)
    assert (done.status, done.err.splitlines()[-1]) == (
        2, "vit: data.batch_size=auto is for vit fit; give a number of images",
    )  # fmt: skip

    # Neither the same command nor the run directory alone choose again.
    guesses[0] = 12
    longer = "--trainer.max_steps=3"
    done = vit(*command, *AUTO, longer, "--run_dir=run")
    assert done.status == 0, done.err
    assert "batch size 4, as chosen when the run began: 3 batches" in done.err
    assert config_of("run")["batch_choice"] == choice
    done = vit("fit", "--run_dir=run", "--trainer.max_steps=4")
    assert done.status == 0 and "as chosen when the run began" in done.err
    assert int(weights_of("run")["step"]) == 4
    # A number, or another step, is another matter.
    done = vit("fit", "--run_dir=run", "--trainer.max_steps=5", "--data.batch_size=6")
    assert done.status == 0, done.err
    assert config_of("run")["batch_choice"] is None and config_of("run")["data"]["batch_size"] == 6
    # A new run by that configuration chooses for its own machine.
    Path("old.yaml").write_text(before)
    done = vit("fit", "-c", "old.yaml", *STEPS, "--run_dir=new")
    assert done.status == 0, done.err
    assert config_of("new")["data"]["batch_size"] == 12
    assert config_of("new")["trainer"]["accumulate_grad_batches"] == 1


def test_counts_of_batches_keep_their_images(
    vit: Vit, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vit.cli.batch_memory.predicted_batch", lambda *_: 4)
    start = ("--data.root", photos, "--data.global_batch=12", *AUTO)
    steps = ("--trainer.max_epochs=2", "--trainer.limit_train_batches=2")
    options = [option for option in FIT if "max_" not in option]
    done = vit(*options, *start, *steps, "--run_dir=run")
    assert done.status == 0, done.err
    assert int(weights_of("run")["step"]) == 4  # two epochs of two batches of 12 images
    assert config_of("run")["trainer"]["limit_train_batches"] == 2


def test_a_batch_is_tried_and_leaves_no_trace(
    vit: Vit, photos: Path, limited: Callable[[int], None]
) -> None:
    model = "--model.architecture={patch_size: 8, width: 16, depth: 1, num_heads: 1, dropout: 0.2}"
    command = (*FIT, model, "--data.root", photos, "--model.mixing.mixup=0.5")
    command = (*command, "--data.global_batch=24")
    assert vit(*command, "--data.batch_size=4", "--run_dir=number").status == 0
    limited(5)
    done = vit(*command, *AUTO, "--run_dir=run")
    assert done.status == 0, done.err
    assert "batch size 4, tried on the device: 6 batches per step of 24 images" in done.err
    assert same(weights_of("run"), weights_of("number"))
    limited(0)
    done = vit(*command, *AUTO, "--run_dir=none")
    assert done.status == 2 and "not even a batch of 2 fits into the" in done.err.splitlines()[-1]
    assert not Path("none").exists()


def test_processes_agree_on_the_smallest_and_another_number_chooses_again(
    vit: Vit, tmp_path: Path, photos: Path, limited: Callable[[int], None]
) -> None:
    run = tmp_path / "run"
    options = ["--data.root", str(photos), "--data.global_batch=32", "--trainer.devices=2"]
    command = [sys.executable, batch_run.__file__, *FIT, *AUTO, *options, "--run_dir", str(run)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    line = "batch size 4 on each of 2 processes, tried on the device: 4 batches per step of 32"
    assert done.stderr.count(line) == 1
    assert config_of(str(run))["batch_choice"]["processes"] == 2
    saved = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    assert saved["ImageData"]["batch"] == 8 and saved["ImageData"]["consumed_samples"] == 64
    limited(9)
    more = vit("fit", f"--run_dir={run}", "--trainer.devices=1", "--trainer.max_steps=3")
    assert more.status == 0, more.err
    assert "batch size 8, tried on the device: 4 batches per step of 32 images" in more.err
    assert config_of(str(run))["batch_choice"]["processes"] == 1
    saved = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    assert (saved["global_step"], saved["ImageData"]["consumed_samples"]) == (3, 96)


@pytest.mark.parametrize("on_cpu", [False, True])
def test_running_out_of_memory_names_a_batch_that_works(
    vit: Vit,
    photos: Path,
    limited: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    on_cpu: bool,
) -> None:
    limited(4)
    if on_cpu:  # the words of c10/core/impl/alloc_cpu.cpp
        text = "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory"

        def fail(self: Any, batch: Any) -> torch.Tensor:
            raise RuntimeError(text)

        monkeypatch.setattr(ImageClassifier, "training_loss", fail)
    command = (*FIT, "--data.root", photos)
    done = vit(*command, "--data.batch_size=12", "--run_dir=run")
    named = "--data.batch_size 6 --trainer.accumulate_grad_batches 2"
    assert (done.status, done.err.splitlines()[-1]) == (
        2,
        f"vit: out of memory with batches of 12 images; 6 would fit: {named} (the same 12 images "
        "per step)",
    )
    assert not Path("run").exists()
    if on_cpu:
        return
    done = vit(*command, *named.split(), "--run_dir=run")
    assert done.status == 2 and "--data.batch_size 3 --trainer.accumulate" in done.err
    more = "--data.batch_size 3 --trainer.accumulate_grad_batches 4"
    assert vit(*command, *more.split(), "--run_dir=run").status == 0
    # A smaller batch than is asked for, but none that the formula says fits.
    monkeypatch.setattr("vit.cli.batch_memory.predicted_batch", lambda *_: 0)
    done = vit(*command, "--data.batch_size=12", "--run_dir=other")
    assert "and no smaller one would fit; choose smaller images" in done.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--data.batch_size=automatic"], "data.batch_size=automatic is none of"),
        ([*AUTO, "--data.global_batch=12", "--trainer.accumulate_grad_batches=3"],
         "accumulate_grad_batches=3 contradicts data.batch_size=auto"),
        ([*AUTO, "--data.global_batch=0"], "data.global_batch=0 must be at least 1"),
        ([*AUTO, "--data.global_batch=13", "--trainer.devices=2"],
         "global_batch=13 is not a multiple of 2"),
    ],
)  # fmt: skip
def test_a_contradiction_is_one_line(options: list[str], part: str, vit: Vit, photos: Path) -> None:
    done = vit(*FIT, "--data.root", photos, *options)
    assert done.status == 2 and part in done.err.splitlines()[-1]
    assert "Traceback" not in done.err and not Path("runs").exists()


def test_data_alone_cannot_choose(photos: Path) -> None:
    data = ImageData(root=str(photos), batch_size="auto", image_size=16)
    with pytest.raises(UserError, match="batch_size=auto is chosen by `vit fit`"):
        data.train_dataloader()


def plain_trainer(precision: str = "32-true") -> Any:
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    return SimpleNamespace(precision=precision, strategy=strategy, callbacks=[], world_size=1)


SIZES = {"patch_size": 8, "width": 48, "depth": 3, "mlp_dim": 192, "num_heads": 3}


@pytest.mark.parametrize("task", ["plain", "mixing", "masked", "pixels"])
def test_the_formula_is_that_of_the_task(task: str) -> None:
    """A little more than autograd keeps of the task's own loss: the images come on top."""
    module: Any
    if task in ("masked", "pixels"):
        target = "colors_4x4" if task == "masked" else "pixels"
        module = masked_patches("vit_ti16", architecture=SIZES, image_size=64, target=target)
    else:
        mixing = Mixing(mixup=0.5) if task == "mixing" else None
        architecture = {**SIZES, "dropout": 0.1}
        module = image_classifier(
            "vit_ti16", architecture=architecture, num_classes=9, image_size=64, mixing=mixing
        )

    def loss(count: int) -> Callable[[], torch.Tensor]:
        batch = torch.randn(count, 3, 64, 64), torch.zeros(count, dtype=torch.long)
        return lambda: module.training_loss((*batch, torch.arange(count)))

    kept = [kept_bytes(loss(count), module) for count in (4, 8)]
    counted = (kept[1] - kept[0]) / 4
    memory = 2**30
    fixed = 16 * sum(p.numel() for p in module.parameters() if p.requires_grad)
    predicted = (0.92 * memory - fixed) / predicted_batch(plain_trainer(), module, memory)
    gradients = 4 * 32 * 16 * 512 if task == "masked" else 0  # of the answers, one at a time
    assert counted + gradients < predicted < 1.35 * (counted + gradients)


def test_a_trial_puts_random_numbers_back() -> None:
    module = image_classifier(
        "vit_ti16", architecture={**SIZES, "dropout": 0.1}, num_classes=9, image_size=64,
        mixing=Mixing(mixup=0.5),
    )  # fmt: skip
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.get_rng_state()
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, barebones=True)
    with trial(trainer, module) as fits:
        assert fits(3)
        assert not torch.equal(torch.get_rng_state(), state)
    assert torch.equal(torch.get_rng_state(), state)
    after = module.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert all(p.grad is None for p in module.parameters())
