"""`vit transfer`: its runs, their order and images, and refused inputs."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.command import Vit
from vit.cli.main import main
from vit.transfer import cells

SMALL = """\
# Plain SGD in tiny batches.
data: {batch_size: 8, loading: {num_workers: 0}, image_size: 16}
model:
  optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.5, momentum: 0.9}}
trainer: {max_epochs: 9, gradient_clip_val: 1.0, precision: 32-true, accelerator: cpu}
"""
FAST = ("--recipe=small.yaml", "--steps=3", "--out=out")


@pytest.fixture
def pretrained(vit: Vit) -> Path:
    return small_model()


def small_model() -> Path:
    """A model directory with patches of 8 pixels, and the recipe small.yaml."""
    from vit.checkpoints.native import save_native
    from vit.models.config import ViTConfig
    from vit.models.zoo import build_model
    from vit.preprocessing import Preprocess

    config = ViTConfig(
        image_size=16, patch_size=8, width=16, depth=1, mlp_dim=32, num_heads=1, num_classes=5
    )
    torch.manual_seed(0)
    preprocess = Preprocess(image_size=(16, 16), crop_fraction=1.0).to_dict()
    save_native(Path("pre"), build_model(config), classes=None, preprocess=preprocess, extra={})
    Path("small.yaml").write_text(SMALL)
    return Path("pre")


Calls = list[list[str]]


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Runs cells in this process, which is faster; collects their arguments."""
    calls: Calls = []

    class Done:
        def __init__(self, code: int) -> None:
            self.code = code

        def wait(self) -> int:
            return self.code

    def start(arguments: list[str], log: Any) -> Done:
        from contextlib import redirect_stderr, redirect_stdout

        calls.append(arguments)
        with open(log.name, "a") as file, redirect_stdout(file), redirect_stderr(file):
            return Done(main(["fit", *arguments]))

    monkeypatch.setattr(cells, "start", start)
    return calls


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Calls]:
    """scored({"lr-0.01": 0.5, "seed-0": None}): cells without training; None diverges."""
    return without_training(monkeypatch)


def without_training(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Calls]:
    def set_scores(scores: dict[str, float | None]) -> Calls:
        calls: Calls = []

        class Done:
            def __init__(self, arguments: list[str], log: Any) -> None:
                folder = Path(arguments[arguments.index("--run_dir") + 1])
                score = scores[folder.name]
                self.code = 0 if score is not None else 2
                if score is None:
                    log.write(b"vit: the loss is not finite since step 2: lower it\n")
                    return
                split = "val" if folder.name.startswith("lr") else "test"
                summary = {
                    "metrics": {f"{split}/acc1": score},
                    "train_seconds": 2.0,
                    "train_cpu_seconds": 3.0,
                    "command": "vit fit",
                    "finished": True,
                }
                (folder / "summary.json").write_text(json.dumps(summary))

            def wait(self) -> int:
                return self.code

        def start(arguments: list[str], log: Any) -> Done:
            calls.append(arguments)
            return Done(arguments, log)

        monkeypatch.setattr(cells, "start", start)
        return calls

    return set_scores


def result() -> dict[str, Any]:
    return json.loads(Path("out/results.json").read_text())


def summary(cell: str) -> dict[str, Any]:
    return json.loads((Path("out") / cell / "summary.json").read_text())


def rows(path: str) -> list[dict[str, str]]:
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file))


def value(arguments: list[str], option: str) -> str:
    """The last value of an option, which is the one that counts."""
    at = len(arguments) - 1 - arguments[::-1].index(option)
    return arguments[at + 1]


def test_the_best_rate_is_retrained_on_all_images(
    vit: Vit, photos: Path, pretrained: Path, in_process: Calls
) -> None:
    args = ("transfer", pretrained, "--data", f"mine={photos}", *FAST, "--seeds=2")
    done = vit(*args, "--lr-grid=0.0001,0.3", "--json")
    assert done.status == 0, done.err
    assert json.loads(done.out) == result()
    [row] = result()["rows"]
    assert row["images"] == {"train": 33, "slice": 3, "test": 3}
    tried = {trial["lr"]: trial["score"] for trial in row["search"]}
    assert tried == {lr: summary(f"mine/lr-{lr}")["metrics"]["val/acc1"] for lr in (0.0001, 0.3)}
    best = max(tried, key=lambda lr: (tried[lr], -lr))
    assert row["lr"] == best
    assert row["scores"] == [summary(f"mine/seed-{s}")["metrics"]["test/acc1"] for s in (0, 1)]
    assert [float(value(call, "--model.optimizer.lr")) for call in in_process[2:]] == [best] * 2
    for cell, images in (("lr-0.3", 30), ("seed-0", 33), ("seed-1", 33)):
        assert summary(f"mine/{cell}")["images"]["train"] == images
        assert summary(f"mine/{cell}")["steps"] == 3
        assert summary(f"mine/{cell}")["checkpoint"]["weights"] == "last step"
    assert "[4/4] mine seed 1" in done.err
    assert done.err.count(" left") == 3
    assert not Path("out/mine/lr-0.3/checkpoints").exists()
    weights = [
        torch.load(f"out/mine/seed-{s}/checkpoints/last.ckpt", weights_only=True)["state_dict"]
        for s in (0, 1)
    ]
    assert not torch.equal(weights[0]["model.head.weight"], weights[1]["model.head.weight"])

    # A folder is split by seed, but all seeds are tested on the same images, which were not used
    # to choose the learning rate.
    tested = [
        {row["image"] for row in rows(f"out/mine/seed-{seed}/predictions.csv")} for seed in (0, 1)
    ]
    parts = {row["path"]: row["split"] for row in rows("out/mine/search.csv")}
    held = {path for path, split in parts.items() if split == "test"}
    assert len(held) == 3
    assert {os.path.relpath(path, photos) for path in held} == {
        os.path.relpath(Path("out/mine") / name, photos) for name in tested[0]
    }
    assert tested[0] == tested[1]
    final = {row["path"]: row["split"] for row in rows("out/mine/final.csv")}
    assert final == {path: "train" if split == "val" else split for path, split in parts.items()}
    assert list(parts.values()).count("val") == 3


def test_an_existing_val_is_the_slice_and_then_trained_on(
    vit: Vit, photos: Path, pretrained: Path, in_process: Calls
) -> None:
    for split, numbers in (("val", range(2)), ("test", range(2, 5)), ("train", range(5, 12))):
        for name in ("red", "grün", "blue"):
            (photos / split / name).mkdir(parents=True)
            for i in numbers:
                shutil.move(photos / name / f"{i:02}.jpg", photos / split / name)
    for name in ("red", "grün", "blue"):
        (photos / name).rmdir()
    args = ("transfer", pretrained, "--data", f"mine={photos}", *FAST, "--seeds=1")
    options = ("--lr-grid=0.1,1e38", "--val-fraction=0.5", "--", "--trainer.log_every_n_steps=1")
    done = vit(*args, *options)
    assert done.status == 0, done.err
    assert "| mine | 1e+38 | failed |" in done.out
    assert "lr 1e+38, seed 0 failed: the loss is not finite since step" in done.out
    assert summary("mine/lr-0.1")["images"] == {"train": 21, "val": 6, "test": 9}
    assert summary("mine/seed-0")["images"] == {"train": 27, "val": 0, "test": 9}
    assert result()["rows"][0]["images"] == {"train": 27, "slice": 6, "test": 9}
    assert "--val-fraction has no effect, as val is given" in done.err


def test_several_labels_are_compared_by_average_precision(
    vit: Vit, photos: Path, pretrained: Path, in_process: Calls
) -> None:
    listed = ["path,label"]
    for name in ("red", "grün", "blue"):
        warm = "|warm" if name == "red" else ""
        listed += [f"{name}/{i:02}.jpg,{name}{warm}" for i in range(12)]
    (photos / "list.csv").write_text("\n".join(listed))
    args = ("transfer", pretrained, "--data", photos / "list.csv", *FAST, "--seeds=1")
    done = vit(*args, "--lr-grid=0.1", "--", "--model.loss.kind=sigmoid")
    assert done.status == 0, done.err
    [row] = result()["rows"]
    assert row["metric"] == "map"
    assert row["scores"] == [summary("list/seed-0")["metrics"]["test/map"]]
    assert "| list (mAP) |" in done.out


def test_a_catalog_set_keeps_its_test_images(
    vit: Vit, pretrained: Path, scored: Callable[..., Calls]
) -> None:
    calls = scored({"lr-0.1": 0.1, "lr-0.2": 0.2, "seed-0": 0.5})
    args = ("transfer", pretrained, "--data=digits", *FAST, "--seeds=1", "--val-fraction=0.2")
    done = vit(*args, "--lr-grid=0.1,0.2")
    assert done.status == 0, done.err
    images = result()["rows"][0]["images"]
    assert (images["train"] + images["test"], images["test"]) == (1797, 359)
    assert images["slice"] / images["train"] == pytest.approx(0.2, abs=0.005)
    assert not Path("out/digits/final.csv").exists()
    wanted = [(0.2, "val"), (0.2, "val"), (0.0, "test")]
    for call, (fraction, split) in zip(calls, wanted, strict=True):
        assert value(call, "--data.dataset") == "digits"
        assert float(value(call, "--data.splits.val_fraction")) == fraction
        assert value(call, "--final_split") == split


def test_options_of_fit_pass_through_and_averaging_is_scored(
    vit: Vit, photos: Path, pretrained: Path, in_process: Calls
) -> None:
    from safetensors.torch import load_file

    Path("more.yaml").write_text("# More.\nmodel: {loss: {label_smoothing: 0.25}}\n")
    args = ("transfer", pretrained, "--data", f"mine={photos}", *FAST, "--seeds=1")
    ema = "--trainer.callbacks+={class_path: vit.training.callbacks.EMA, init_args: {decay: 0.9}}"
    done = vit(*args, "--lr-grid=0.5", "--image-size=24", "--", "-c", "more.yaml", ema)
    assert done.status == 0, done.err
    saved = json.loads(Path("out/mine/seed-0/model/config.json").read_text())
    assert saved["extra"]["recipe"]["model"]["loss"]["label_smoothing"] == 0.25
    assert saved["extra"]["recipe"]["data"]["image_size"] == 24
    last = torch.load("out/mine/seed-0/checkpoints/last.ckpt", weights_only=True)
    weights = load_file("out/mine/seed-0/model/model.safetensors")
    average, raw = last["state_dict"], last["current_model_state"]
    assert all(torch.equal(weights[name], average[f"model.{name}"]) for name in weights)
    assert any(not torch.equal(weights[name], raw[f"model.{name}"]) for name in weights)


def test_the_paper_sets_the_protocol_of_its_data_sets(
    vit: Vit, photos: Path, pretrained: Path, scored: Callable[..., Calls]
) -> None:
    grid = (0.001, 0.003, 0.01, 0.03)
    calls = scored({**{f"lr-{lr}": lr for lr in grid}, "seed-0": 0.5, "seed-1": 0.6, "seed-2": 0.7})
    done = vit(
        "transfer", pretrained, "--data", f"cifar10={photos},other={photos}",
        "--recipe=small.yaml", "--out=out",
    )  # fmt: skip
    assert done.status == 0, done.err
    cifar, other = calls[:7], calls[7:]
    for part, steps, warmup in ((cifar, "10000", "500"), (other, "500", "100")):
        assert [float(value(c, "--model.optimizer.lr")) for c in part] == [*grid, 0.03, 0.03, 0.03]
        assert [value(call, "--seed_everything") for call in part] == list("0000012")
        assert {value(call, "--trainer.max_steps") for call in part} == {steps}
        assert {value(call, "--model.schedule.warmup_steps") for call in part} == {warmup}
    row = result()["rows"][0]
    assert (row["mean"], row["n"]) == (pytest.approx(0.6), 3)
    assert row["std"] == pytest.approx(0.1)  # of 0.5, 0.6, 0.7 by hand
    assert row["seconds"] == 14 and row["cpu_seconds"] == 21


def test_of_equal_rates_the_smaller_wins_and_one_that_diverges_is_no_crash(
    vit: Vit, photos: Path, pretrained: Path, scored: Callable[..., Calls]
) -> None:
    calls = scored({"lr-0.1": 0.5, "lr-0.2": 0.5, "lr-0.9": None, "seed-0": 0.5, "seed-1": None})
    args = ("transfer", pretrained, "--data", f"mine={photos}", *FAST, "--seeds=2")
    done = vit(*args, "--lr-grid=0.9,0.2,0.1")
    assert done.status == 0, done.err
    [row] = result()["rows"]
    assert (row["lr"], row["n"], row["std"]) == (0.1, 1, None)
    assert "- mine: lr 0.9, seed 0 failed: the loss is not finite since step 2\n" in done.out
    assert "| mine | 0.9 | failed |" in done.out
    assert "50.00 failed" in done.out
    before = len(calls)
    assert vit(*args, "--lr-grid=0.9,0.2,0.1").status == 0
    assert len(calls) == before  # diverged runs are not repeated


def test_a_set_on_which_all_runs_diverge_is_reported_after_the_others(
    vit: Vit, photos: Path, pretrained: Path, scored: Callable[..., Calls]
) -> None:
    scored({"lr-0.1": None, "lr-0.2": None})
    args = ("transfer", pretrained, "--data", f"mine={photos}", *FAST, "--lr-grid=0.1,0.2")
    done = vit(*args)
    assert done.status == 2
    assert "vit: mine: all runs diverged; give lower rates by --lr-grid" in done.err
    assert "| mine | - | failed | 0 |" in done.out


def test_finished_cells_are_not_run_again(
    vit: Vit, photos: Path, pretrained: Path, scored: Callable[..., Calls]
) -> None:
    calls = scored({"lr-0.1": 0.1, "lr-0.2": 0.2, "seed-0": 0.5, "seed-1": 0.6})
    args = ("transfer", pretrained, "--data", f"mine={photos}", *FAST, "--seeds=2")
    args += ("--lr-grid=0.1,0.2",)
    first = vit(*args)
    out = Path("out/mine")
    assert len(calls) == 4
    # States after a kill: while it trained, before the final score, within a write.
    (out / "lr-0.2" / "summary.json").unlink()
    (out / "seed-0" / "summary.json").write_text('{"metrics": {}, "finished": false}')
    (out / "seed-1" / "summary.json").write_text('{"metrics": {"te')
    again = vit(*args)
    assert again.out == first.out
    started = [Path(value(call, "--run_dir")).name for call in calls[4:]]
    assert started == ["lr-0.2", "seed-0", "seed-1"]
    assert calls[4:] == calls[1:4]  # which `vit fit` continues
    assert again.err.count("reused") == 1


def test_what_a_run_cannot_do_ends_the_command_and_names_its_log(
    vit: Vit, photos: Path, pretrained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash = (sys.executable, "-c", "import sys; print('torch.OutOfMemoryError: no'); sys.exit(1)")
    monkeypatch.setattr(cells, "FIT", crash)
    args = ("transfer", pretrained, "--data", f"mine={photos}", *FAST)
    done = vit(*args, "--lr-grid=0.1")
    assert done.status == 1
    assert "(exit status 1): torch.OutOfMemoryError: no; see out/mine/seed-0/log.txt" in done.err
    assert "this continues: vit transfer pre --data 'mine=" in done.err


@pytest.mark.slow
def test_after_a_kill_it_resumes_with_the_missing_runs(
    vit: Vit, photos: Path, pretrained: Path
) -> None:
    """With real processes, all killed while the second seed trains."""
    args = ["transfer", "pre", "--data", f"mine={photos}", "--recipe=small.yaml", "--out=out"]
    args += ["--lr-grid=0.1", "--seeds=2", "--steps=150", "--", "--trainer.log_every_n_steps=1"]
    command = [sys.executable, "-m", "vit", *args]
    first = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    second_seed = Path("out/mine/seed-1")
    wait_for_long(lambda: (second_seed / "config.yaml").is_file(), first)
    found = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True)
    pairs = [line.split() for line in found.stdout.splitlines()]
    [child] = [int(pid) for pid, parent in pairs if int(parent) == first.pid]
    first.kill()
    os.kill(child, signal.SIGKILL)
    first.wait()
    assert not (second_seed / "summary.json").exists()
    before = (Path("out/mine/seed-0/summary.json").stat().st_mtime_ns, os.listdir("out/mine"))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    after = (Path("out/mine/seed-0/summary.json").stat().st_mtime_ns, os.listdir("out/mine"))
    assert before == after
    scores = [summary(f"mine/seed-{seed}")["metrics"]["test/acc1"] for seed in (0, 1)]
    assert result()["rows"][0]["scores"] == scores
    assert summary("mine/seed-1")["steps"] == 150
    assert "reused" in done.stderr


def wait_for_long(condition: Callable[[], bool], process: subprocess.Popen[Any]) -> None:
    while not condition():
        assert process.poll() is None
        time.sleep(0.02)
