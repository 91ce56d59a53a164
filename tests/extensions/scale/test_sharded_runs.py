"""Runs with --trainer.strategy fsdp2: killed in a save, resumed, and used afterwards."""

import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import vit.runs.fit  # once, in place of in each forked process
from tests.command import TINY, coloured
from tests.killing import killed_at
from tests.processes import together
from vit.cli.main import main
from vit.errors import UserError
from vit.extensions.scale import sharded
from vit.extensions.scale.sharding import ShardedStrategy
from vit.inference.classifier import load
from vit.weights.archives import read_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
assert vit.runs.fit
# Three steps per epoch; every epoch is saved.
RUN = ("-c", "cifar10", "--data.batch_size=null", "--data.global_batch=8", "--save_every=0")
# A large eps: rounding errors of gradients that are zero must not become steps.
ADAMW = "{class_path: torch.optim.AdamW, init_args: {lr: 0.01, eps: 0.001}}"
RUN += ("--trainer.max_epochs=4", f"--model.optimizer={ADAMW}")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("sharded")
    coloured(home / "photos")
    return home


@pytest.fixture(scope="module")
def fit(home: Path) -> Callable[..., list[int | None]]:
    """fit(processes, RUN_DIR) -> exit statuses; `before` is called in each process."""

    def run(processes: int, folder: str, before: Any = None, recipe: Any = RUN) -> Any:
        args = ["fit", *TINY, *recipe, f"--data.root={home / 'photos'}"]
        args += [f"--run_dir={folder}", f"--trainer.devices={processes}"]
        args += ["--trainer.strategy=fsdp2"] if processes > 1 else []
        args += [] if folder in ("alone", "masked") else ["--final_split=none"]  # no report

        def work() -> int:
            os.chdir(home)
            if before is not None:
                before()
            return main(args)

        return together(processes, home / f"{folder}.log", work)

    return run


@pytest.fixture(scope="module")
def alone(home: Path, fit: Any) -> Path:
    """A run of two processes that was not interrupted."""
    assert fit(2, "alone") == [0, 0], said(home / "alone")
    return home / "alone"


def said(run: Path) -> str:
    return Path(f"{run}.log", "0.err").read_text()


def state(run: Path, name: str) -> dict[str, torch.Tensor]:
    return read_checkpoint(run / f"checkpoints/{name}.ckpt")["state_dict"]


def test_the_same_command_goes_on_after_a_kill_in_a_save(home: Path, fit: Any, alone: Path) -> None:
    rank, count = random.randrange(2), random.randrange(2, 30)
    owner = home / "killed"

    def before() -> None:
        if os.environ["RANK"] == str(rank):
            killed_at(os, "fsync", count)  # of several saves

    ends = fit(2, "killed", before)
    assert ends[rank] in (-signal.SIGKILL, 0) and ends[1 - rank] in (0, 1), (rank, count, ends)
    assert fit(2, "killed") == [0, 0], said(owner)
    for name in ("last", "best"):
        a, b = state(owner, name), state(alone, name)
        assert all(torch.equal(a[key], b[key]) for key in b), (name, rank, count)
    one, two = (load(run).model.state_dict() for run in (owner, alone))
    assert all(torch.equal(one[name], value) for name, value in two.items())


def test_a_save_is_finished_after_a_signal(home: Path, fit: Any, alone: Path) -> None:
    run = home / "stopped"

    def before() -> None:
        if os.environ["RANK"] == "1":
            killed_at(sharded, "digest_of", 4, signal.SIGTERM)  # a file in each save

    assert fit(2, "stopped", before) == [143, 143], said(run)
    assert said(run).endswith("stopped; the same command continues it\n")
    assert fit(2, "stopped") == [0, 0], said(run)
    a, b = state(run, "last"), state(alone, "last")
    assert all(torch.equal(a[key], b[key]) for key in b)


def test_four_processes_then_two_then_one_give_one_model(home: Path, fit: Any, alone: Path) -> None:
    run, killed = home / "changed", -signal.SIGKILL

    def before() -> None:
        if os.environ["RANK"] == "0":
            killed_at(sharded, "save_sharded", 3)

    assert fit(4, "changed", before) == [killed, 1, 1, 1], said(run)
    assert fit(2, "changed", before) == [killed, 1], said(run)
    assert (run / "checkpoints/last.ckpt").is_dir()
    assert fit(1, "changed") == [0], said(run)
    assert (run / "checkpoints/last.ckpt").is_file()
    assert fit(1, "one") == [0], said(home / "one")
    one = load(home / "one").model.state_dict()
    for name in ("changed", "alone"):
        for key, value in load(home / name).model.state_dict().items():
            torch.testing.assert_close(value, one[key], rtol=0, atol=1e-5, msg=f"{name} {key}")
    with pytest.raises(UserError, match="is of a run without fsdp2"):
        ShardedStrategy().load_checkpoint(run / "checkpoints/last.ckpt")


def test_a_damaged_last_is_named_and_best_takes_its_place(
    home: Path, fit: Any, alone: Path
) -> None:
    run = Path(shutil.copytree(alone, home / "damaged"))
    (run / "summary.json").unlink()
    file = run / "checkpoints/last.ckpt/shard-00002-model-00001-of-00001.safetensors"
    content = bytearray(file.read_bytes())
    content[random.randrange(len(content))] ^= 1
    file.write_bytes(content)
    assert fit(2, "damaged") == [0, 0], said(run)
    assert f"{file.relative_to(home)} is damaged" in said(run)
    assert "from damaged/checkpoints/best.ckpt" in said(run)
    one, two = (load(place).model.state_dict() for place in (run, alone))
    assert all(torch.equal(one[name], value) for name, value in two.items())


def test_the_run_serves_every_command(
    home: Path, alone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(home)
    assert main(["convert", "alone", "converted", "--to", "timm"]) == 0
    test = ["test", "--trainer.devices=1", "--json"]
    capsys.readouterr()
    assert main([*test, "alone"]) == 0
    finished = capsys.readouterr().out
    unfinished = Path(shutil.copytree(alone, "unfinished"))
    shutil.rmtree(unfinished / "model")
    (unfinished / "summary.json").unlink()
    assert main([*test, "unfinished"]) == 0  # from the folder best.ckpt
    assert capsys.readouterr().out == finished
    assert main(["convert", "unfinished/checkpoints/best.ckpt", "native", "--to", "native"]) == 0
    assert load("native").classes == load("alone").classes


def test_a_run_without_labels_ends_with_its_pictures(home: Path, fit: Any, finishing: None) -> None:
    recipe = ["-c", "pretrain/masked_patches_cifar10", "--data.splits.test_fraction=0.2"]
    ends = fit(2, "masked", recipe=[*recipe, "--trainer.max_steps=2"])
    assert ends == [0, 0], said(home / "masked")
    assert (home / "masked/masked_patches.png").is_file()
