"""`vit transfer`: its runs, their order and images, how it goes on, and what it refuses."""

import csv
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import vit.extensions.transfer.transfer
from tests.command import Vit, saved
from tests.killing import in_child
from tests.vtab_miniatures import vtab_root
from vit.cli.main import main
from vit.runs.options import Options
from vit.signals import Stopped

__all__ = ["vtab_root"]
SMALL = """\
# Plain SGD in tiny batches.
data: {batch_size: 8, loading: {num_workers: 0}, image_size: 16}
model:
  optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.5, momentum: 0.9}}
trainer: {max_epochs: 9, gradient_clip_val: 1.0, precision: 32-true, accelerator: cpu}
"""
FAST = ("--recipe=small.yaml", "--steps=3", "--out=out")


@pytest.fixture(autouse=True)
def pretrained(vit: Vit) -> None:
    """`pre`, a model directory with patches of 8 pixels, and the recipe small.yaml."""
    saved(Path("pre"), None)
    Path("small.yaml").write_text(SMALL)


Scored = Callable[[dict[str, Any]], list[list[str]]]


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> Scored:
    """scored({"lr-0.01": 0.5, "seed-0": None}): runs without training, whose arguments it collects.

    None diverges; an error is raised.
    """

    def set_scores(scores: dict[str, Any]) -> list[list[str]]:
        calls: list[list[str]] = []

        def run(arguments: list[str], folder: Path) -> str | None:
            calls.append(arguments)
            score = scores[folder.name]
            if score is None:
                return "the loss is not finite since step 2"
            if isinstance(score, BaseException):
                raise score
            split = "val" if folder.name.startswith("lr") else "test"
            times = {"train_seconds": 2.0, "train_cpu_seconds": 3.0}
            folder.mkdir(parents=True, exist_ok=True)
            facts = {"metrics": {f"{split}/acc1": score}, "images": {split: 3}}
            text = json.dumps({**facts, **times})
            (folder / "summary.json").write_text(text)
            return None

        monkeypatch.setattr(vit.extensions.transfer.transfer, "_run", run)
        return calls

    return set_scores


def result() -> dict[str, Any]:
    return json.loads(Path("out/results.json").read_text())


def summary(run: str) -> dict[str, Any]:
    return json.loads(Path("out", run, "summary.json").read_text())


def checkpoint(run: str) -> dict[str, Any]:
    return torch.load(Path("out/mine", run, "checkpoints/last.ckpt"), weights_only=True)


def rows(path: str) -> list[dict[str, str]]:
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file))


def values(calls: list[list[str]], option: str) -> list[str]:
    """The last value of an option in each run, which is the one that counts."""
    return [
        [a for a in call if a.startswith(f"--{option}=")][-1].partition("=")[2] for call in calls
    ]


def test_the_best_rate_is_retrained_on_all_images(vit: Vit, photos: Path) -> None:
    args = ("transfer", "pre", "--data", f"mine={photos}", *FAST, "--seeds=2")
    done = vit(*args, "--lr-grid=0.3,0.0001", "--json")
    assert done.status == 0, done.err
    assert json.loads(done.out) == result()
    [row] = result()["rows"]
    assert row["images"] == {"train": 33, "slice": 3, "test": 3}
    tried = {trial["lr"]: trial["score"] for trial in row["search"]}
    assert tried == {lr: summary(f"mine/lr-{lr}")["metrics"]["val/acc1"] for lr in (0.0001, 0.3)}
    assert row["lr"] == max(tried, key=lambda lr: (tried[lr], -lr))
    assert row["scores"] == [summary(f"mine/seed-{s}")["metrics"]["test/acc1"] for s in (0, 1)]
    for run, images in (("lr-0.3", 30), ("seed-0", 33), ("seed-1", 33)):
        assert summary(f"mine/{run}")["images"]["train"] == images
        assert summary(f"mine/{run}")["steps"] == 3
        assert summary(f"mine/{run}")["checkpoint"]["weights"] == "last step"
    assert not Path("out/mine/lr-0.3/checkpoints").exists()
    heads = [checkpoint(f"seed-{seed}")["state_dict"]["model.head.weight"] for seed in (0, 1)]
    assert not torch.equal(*heads)
    # A run depends on nothing that ran before it in the process.
    alone = vit("fit", "-c", "out/mine/seed-1/config.yaml", "--run_dir=out/mine/alone")
    assert alone.status == 0, alone.err
    again = checkpoint("alone")["state_dict"]
    assert all(torch.equal(again[n], v) for n, v in checkpoint("seed-1")["state_dict"].items())

    # A folder is split by seed, but all seeds are tested on the same images, which were not used
    # to choose the learning rate.
    parts = {row["path"]: row["split"] for row in rows("out/mine/search.csv")}
    held = {os.path.realpath(path) for path, split in parts.items() if split == "test"}
    assert len(held) == 3 and list(parts.values()).count("val") == 3
    for seed in (0, 1):
        tested = rows(f"out/mine/seed-{seed}/predictions.csv")
        assert {os.path.realpath(Path("out/mine", row["image"])) for row in tested} == held
    final = {row["path"]: row["split"] for row in rows("out/mine/final.csv")}
    assert final == {path: "train" if split == "val" else split for path, split in parts.items()}

    # As after a kill behind the last save of a run; and one seed more.
    times = {s: Path(f"out/mine/{s}/summary.json").stat().st_mtime_ns for s in ("lr-0.3", "seed-0")}
    Path("out/mine/seed-1/summary.json").unlink()
    more = vit(*args[:-1], "--seeds=3", "--lr-grid=0.0001,0.3", "--json")
    assert more.status == 0, more.err
    scores = json.loads(more.out)["rows"][0]["scores"]
    assert scores[:2] == row["scores"] and len(scores) == 3
    assert all(Path(f"out/mine/{s}/summary.json").stat().st_mtime_ns == times[s] for s in times)
    assert "seed 1 was interrupted" in "".join(result()["rows"][0]["notes"])


def test_a_rate_is_scored_on_all_of_train_by_folds(vit: Vit, photos: Path, scored: Scored) -> None:
    scores: dict[str, float | None] = {
        **{"lr-0.01_fold_1": 0.5, "lr-0.01_fold_2": 0.7, "lr-0.02_fold_1": 0.65},
        **{"lr-0.02_fold_2": 0.65, "lr-0.03_fold_1": 0.9, "lr-0.03_fold_2": None, "seed-0": 0.8},
    }
    calls = scored(scores)
    args = ("transfer", "pre", "--data", f"mine={photos}", *FAST, "--seeds=1", "--folds=2")
    done = vit(*args, "--lr-grid=0.01,0.02,0.03", "--json")
    assert done.status == 0, done.err
    [row] = json.loads(done.out)["rows"]
    assert row["lr"] == 0.02 and row["scores"] == [0.8]
    assert [t["score"] for t in row["search"]] == [pytest.approx(0.6), pytest.approx(0.65), None]
    assert row["search"][0]["seconds"] == 4 and row["images"]["slice"] == row["images"]["train"]
    assert "mine: lr 0.03, seed 0 failed: the loss is not finite since step 2" in row["notes"]
    columns = values(calls, "data.columns.split")
    assert columns == ["fold_1", "fold_2"] * 3 + ["split"]
    assert {*values(calls, "data.root")} == {"out/mine/folds.csv"}
    for listed in rows("out/mine/folds.csv"):
        splits = sorted([listed["fold_1"], listed["fold_2"]])
        assert splits == (["test"] * 2 if listed["split"] == "test" else ["train", "val"])
    alone = vit(*args[:-1], "--folds=2", "--out=alone", "--lr-grid=0.01", "--json")
    assert "--folds has no effect, as one learning rate needs no search" in alone.out
    refused = vit(*args, "--val-fraction=0.1")
    assert refused.status == 2 and "leave --val-fraction out" in refused.err
    other = vit(*args[:-1], "--folds=3", "--lr-grid=0.01,0.02,0.03")
    assert other.status == 2 and "choose another --out" in other.err


def test_an_existing_val_is_the_slice_and_then_trained_on(vit: Vit, photos: Path) -> None:
    for split, numbers in (("val", range(2)), ("test", range(2, 5)), ("train", range(5, 12))):
        for name in ("red", "grün", "blue"):
            (photos / split / name).mkdir(parents=True)
            for i in numbers:
                shutil.move(photos / name / f"{i:02}.jpg", photos / split / name)
    for name in ("red", "grün", "blue"):
        (photos / name).rmdir()
    args = ("transfer", "pre", "--data", f"mine={photos}", *FAST, "--seeds=1")
    args = (*args, "--lr-grid=0.1,1e38", "--", "--trainer.log_every_n_steps=1")
    done = vit(*args)
    assert done.status == 0, done.err
    assert "| mine | 1e+38 | failed |" in done.out
    assert "lr 1e+38, seed 0 failed: the loss is not finite since step" in done.out
    assert summary("mine/lr-0.1")["images"] == {"train": 21, "val": 6, "test": 9}
    assert summary("mine/seed-0")["images"] == {"train": 27, "val": 0, "test": 9}
    assert result()["rows"][0]["images"] == {"train": 27, "slice": 6, "test": 9}
    again = vit(*args)
    assert again.out == done.out and "parameters" not in again.err  # nothing was trained


def test_several_labels_are_compared_by_average_precision(vit: Vit, photos: Path) -> None:
    listed = ["path,label"]
    for name in ("red", "grün", "blue"):
        warm = "|warm" if name == "red" else ""
        listed += [f"{name}/{i:02}.jpg,{name}{warm}" for i in range(12)]
    (photos / "list.csv").write_text("\n".join(listed))
    args = ("transfer", "pre", "--data", photos / "list.csv", *FAST, "--seeds=1")
    done = vit(*args, "--lr-grid=0.1", "--", "--model.loss.kind=sigmoid")
    assert done.status == 0, done.err
    [row] = result()["rows"]
    assert row["metric"] == "map"
    assert row["scores"] == [summary("list/seed-0")["metrics"]["test/map"]]
    assert "| list (mAP) |" in done.out


def test_slice_and_test_images_are_whole_groups(vit: Vit, photos: Path, scored: Scored) -> None:
    listed = ["path,label,video"]
    for name in ("red", "grün", "blue"):
        listed += [f"{name}/{i:02}.jpg,{name},{name} {i // 2}" for i in range(12)]
    (photos / "list.csv").write_text("\n".join(listed))
    calls = scored({"lr-0.1": 0.1, "lr-0.2": 0.2, "seed-0": 0.5})
    args = ("transfer", "pre", "--data", photos / "list.csv", *FAST, "--seeds=1")
    done = vit(*args, "--lr-grid=0.1,0.2", "--", "--data.columns.group=video")
    assert done.status == 0, done.err
    table = rows("out/list/search.csv")
    sets = [{row["group"] for row in table if row["split"] == s} for s in ("train", "val", "test")]
    assert [len(groups) for groups in sets] == [14, 2, 2] and len(set.union(*sets)) == 18
    assert {row["group"] for row in rows("out/list/final.csv")} == set.union(*sets)
    assert values(calls, "data.columns.group") == ["group"] * 3


def test_a_catalog_set_keeps_its_test_images(vit: Vit, scored: Scored) -> None:
    calls = scored({"lr-0.1": 0.1, "lr-0.2": 0.2, "seed-0": 0.5})
    args = ("transfer", "pre", "--data=digits", *FAST, "--seeds=1", "--val-fraction=0.2")
    done = vit(*args, "--lr-grid=0.1,0.2")
    assert done.status == 0, done.err
    images = result()["rows"][0]["images"]
    assert (images["train"] + images["test"], images["test"]) == (1797, 359)
    assert images["slice"] / images["train"] == pytest.approx(0.2, abs=0.005)
    assert os.listdir("out/digits") and not Path("out/digits/final.csv").exists()
    assert values(calls, "data.dataset") == ["digits"] * 3
    assert values(calls, "data.splits.val_fraction") == ["0.2", "0.2", "0"]
    assert values(calls, "final_split") == ["val", "val", "test"]


def test_options_of_fit_pass_through(vit: Vit, photos: Path, scored: Scored) -> None:
    Path("more.yaml").write_text("# More.\nmodel: {loss: {label_smoothing: 0.25}}\n")
    calls = scored({"seed-0": 0.5})
    args = ("transfer", "pre", "--data", f"mine={photos}", *FAST, "--seeds=1")
    ema = "--trainer.callbacks+={class_path: vit.EMA, init_args: {decay: 0.9}}"
    done = vit(*args, "--lr-grid=0.5", "--image-size=24", "--", "-c", "more.yaml", ema)
    assert done.status == 0, done.err
    config = Options(calls[0]).recorded()
    assert config["model"]["loss"]["label_smoothing"] == 0.25
    assert config["data"]["image_size"] == 24
    assert config["trainer"]["callbacks"][-1]["class_path"].endswith("EMA")


def test_the_paper_sets_the_protocol_of_its_data(vit: Vit, photos: Path, scored: Scored) -> None:
    grid = (0.001, 0.003, 0.01, 0.03)
    calls = scored({**{f"lr-{lr}": lr for lr in grid}, "seed-0": 0.5, "seed-1": 0.6, "seed-2": 0.7})
    data = f"cifar10={photos},other={photos}"
    done = vit("transfer", "pre", "--data", data, "--recipe=small.yaml", "--out=out")
    assert done.status == 0, done.err
    for part, steps, warmup in ((calls[:7], "10000", "500"), (calls[7:], "500", "100")):
        rates = [*grid, 0.03, 0.03, 0.03]
        assert values(part, "model.optimizer.lr") == [str(rate) for rate in rates]
        assert values(part, "seed_everything") == list("0000012")
        assert set(values(part, "trainer.max_steps")) == {steps}
        assert set(values(part, "model.schedule.warmup_steps")) == {warmup}
    row = result()["rows"][0]
    assert (row["mean"], row["n"]) == (pytest.approx(0.6), 3)
    assert row["std"] == pytest.approx(0.1)  # of 0.5, 0.6, 0.7 by hand
    assert row["seconds"] == 14 and row["cpu_seconds"] == 21


@pytest.fixture
def vtab(vtab_root: Path, tmp_path: Path) -> Path:
    """A task of each group of VTAB-1k."""
    for name in ("svhn", "eurosat", "kitti"):
        shutil.copytree(vtab_root / name, tmp_path / "vtab" / name)
    (tmp_path / "vtab" / "images").symlink_to(vtab_root / "images")
    return tmp_path / "vtab"


def test_vtab_is_trained_by_the_papers_protocol(vit: Vit, vtab: Path, scored: Scored) -> None:
    calls = scored({"seed-0": 0.5, "seed-1": 0.6, "seed-2": 0.7})
    done = vit("transfer", "pre", f"--data=vtab={vtab}", "--out=out", "--image-size=384")
    assert done.status == 0, done.err
    assert values(calls, "data.root") == [
        str(vtab / name) for name in ("svhn", "eurosat", "kitti") for _ in range(3)
    ]
    assert values(calls, "seed_everything") == list("012012012")
    assert set(values(calls, "final_split")) == {"test"}
    config = Options(calls[0]).recorded()
    assert config["trainer"]["max_steps"] == 2_500
    assert config["model"]["optimizer"]["init_args"]["lr"] == 0.01
    data = config["data"]
    assert (data["image_size"], data["inputs"]["resize"]) == (384, "squash")
    augment = data["augment"]
    assert (augment["crop"], augment["resize_squash"], augment["flip"]) == ("none", True, False)
    of_group = {"mean": pytest.approx(0.6), "std": pytest.approx(0.1), "n": 3, "tasks": 1}
    sizes = {"natural": 7, "specialized": 4, "structured": 8, "all": 19}
    expected = {group: {**of_group, "of": size} for group, size in sizes.items()}
    expected["all"]["tasks"] = 3
    assert result()["vtab"] == expected
    assert "| structured | 1 of 8 | 60.00 ± 10.00 |" in done.out
    assert all(row["images"]["train"] == 1_000 for row in result()["rows"])


def test_a_rate_for_a_task_of_vtab_is_chosen_on_200_images(vit: Vit, vtab: Path) -> None:
    for name in ("svhn", "eurosat"):
        shutil.rmtree(vtab / name)
    args = ("transfer", "pre", f"--data=vtab={vtab}", *FAST, "--seeds=1", "--lr-grid=0.1,0.2")
    done = vit(*args)
    assert done.status == 0, done.err
    assert result()["rows"][0]["images"] == {"train": 1_000, "slice": 200, "test": 100}
    assert summary("vtab/kitti/lr-0.1")["images"] == {"train": 800, "val": 200, "test": 100}
    assert summary("vtab/kitti/seed-0")["images"] == {"train": 1_000, "val": 0, "test": 100}
    again = vit(*args)
    assert again.out == done.out and "parameters" not in again.err  # nothing was trained
    tested = vit("test", "out/vtab/kitti/seed-0", "--json")
    assert json.loads(tested.out)["test/acc1"] == result()["rows"][0]["mean"]
    (vtab / "kitti" / "val200.txt").write_text("../images/1.png 0\n")
    done = vit(*args, "--out=other")
    assert done.status == 2 and "val200.txt has 1 lines, not 200" in done.err
    assert len(done.err.splitlines()) == 1 and not Path("other").exists()


def test_a_set_on_which_all_runs_diverge_is_reported_after_the_others(
    vit: Vit, photos: Path, scored: Scored
) -> None:
    scored({"lr-0.1": None, "lr-0.2": None})
    done = vit("transfer", "pre", "--data", f"mine={photos}", *FAST, "--lr-grid=0.1,0.2")
    assert done.status == 2 and "mine: all runs diverged" in done.err
    assert "| mine | - | failed | 0 |" in done.out


def test_a_stop_says_how_to_go_on(vit: Vit, photos: Path, scored: Scored) -> None:
    scored({"lr-0.1": 0.5, "lr-0.2": Stopped(signal.SIGTERM)})
    args = ("transfer", "pre", "--data", f"mine={photos}", *FAST, "--lr-grid=0.1,0.2")
    done = vit(*args)
    assert done.status == 143
    assert "this continues: vit transfer pre --data 'mine=" in done.err
    assert not Path("out/results.md").exists()


def test_runs_of_two_processes_follow_each_other(photos: Path) -> None:
    args = ["transfer", "pre", "--data", f"mine={photos}", "--recipe=small.yaml", "--out=out"]
    args += ["--lr-grid=0.1", "--seeds=2", "--steps=2", "--", "--trainer.devices=2"]
    Path("second.py").write_text("from vit.cli.main import entry; entry()")

    def work() -> int:
        sys.argv = ["second.py", *args]  # as which the second process is started
        sys.modules["__main__"].__spec__ = None
        return main(args)

    assert in_child(work) == 0
    assert [summary(f"mine/seed-{seed}")["processes"] for seed in (0, 1)] == [2, 2]


MISTAKES = [
    (["--data=cifar11"], ["--data cifar11", "did you mean 'cifar10'"]),
    (["--data=,"], ["--data is empty"]),
    (["--data=vtab=pre"], ["pre has no task of VTAB-1k"]),
    (["--data=../x=."], ["'../x' cannot name its folder"]),
    (["--recipe=pretrain/masked_patches_cifar10"], ["masked_patches_cifar10", "without labels"]),
    (["--lr-grid=0.1,-1"], ["--lr-grid", "-1"]),
    (["--val-fraction=1"], ["val_fraction=1"]),
    (["--image-size=20"], ["image_size=20", "patch"]),
    (["--out=/dev/null/x"], ["--out /dev/null/x"]),
    (["--", "--trainer.max_steps=3"], ["--trainer.max_steps: `vit transfer` sets it"]),
    (["--", "--model.loss.label_smothing=3"], ["model.loss", "'label_smothing' is not accepted"]),
]


@pytest.mark.parametrize(("args", "parts"), MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing(
    vit: Vit, scored: Scored, args: list[str], parts: list[str]
) -> None:
    calls, before = scored({}), sorted(os.listdir())
    more = [] if "--lr-grid" in args[0] else ["--lr-grid=0.1,0.2"]
    done = vit("transfer", "pre", *FAST, "--data=digits", *more, *args)
    lines = [line for line in done.err.splitlines() if not line.startswith("precision")]
    assert done.status == 2, done.err
    assert len(lines) == 1 and all(part in lines[0] for part in parts), done.err
    assert calls == [] and sorted(os.listdir()) == before


def test_model_data_and_environment_are_checked(
    vit: Vit, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = vit("transfer", "nowhere.npz", "--data=digits", *FAST)
    assert done.status == 2 and "nowhere.npz" in done.err
    (photos / "red").rename(photos / "red|pink")
    done = vit("transfer", "pre", "--data", f"mine={photos}", *FAST)
    assert done.status == 2 and "cannot be listed: ['red|pink']" in done.err
    (photos / "red|pink").rename(photos / "red")
    for split in ("train", "val"):
        for name in ("red", "grün"):
            shutil.copytree(photos / name, photos / split / name)
    for name in ("red", "grün", "blue"):
        shutil.rmtree(photos / name)
    done = vit("transfer", "pre", "--data", f"mine={photos}", *FAST)
    assert done.status == 2 and "has no test images" in done.err
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "not by torchrun" in vit("transfer", "pre", "--data=digits", *FAST).err
    assert not Path("out").exists()


def test_other_runs_in_the_same_folder_are_refused(vit: Vit, photos: Path, scored: Scored) -> None:
    calls = scored({"seed-0": 0.5, "seed-1": 0.5})
    args = ("transfer", "pre", "--data", f"mine={photos}", *FAST, "--lr-grid=0.1", "--seeds=1")
    assert vit(*args).status == 0

    def refused(*options: str) -> str:
        done = vit(*args, *options)
        assert done.status == 2
        assert "out was started with other options, weights or images" in done.err
        return done.err.splitlines()[-1]

    assert "mine.plan.steps (was 3, is 4)" in refused("--steps=4")
    assert "lr (was 0.1, is 0.2)" in refused("--lr-grid=0.2")
    assert "mine.data.image_size (was 16, is 24)" in refused("--image-size=24")
    Path("small.yaml").write_text(SMALL.replace("0.9", "0.8"))
    assert "momentum (was 0.9, is 0.8)" in refused()
    Path("small.yaml").write_text(SMALL)
    shutil.copy(photos / "red" / "00.jpg", photos / "red" / "new.jpg")
    assert "mine.images." in refused()
    (photos / "red" / "new.jpg").unlink()
    assert vit(*args).status == 0
    shutil.copy(photos / "red" / "07.jpg", photos / "red" / "00.jpg")  # another under its name
    assert "mine.contents." in refused()
    assert len(calls) == 2


def test_other_weights_at_the_same_path_are_refused(vit: Vit, photos: Path, scored: Scored) -> None:
    calls = scored({"seed-0": 0.5, "seed-1": 0.5})
    args = ("transfer", "pre", "--data", f"mine={photos}", *FAST, "--lr-grid=0.1")
    assert vit(*args, "--seeds=1").status == 0
    shutil.copytree("pre", "same")
    saved(Path("pre"), None, seed=1)
    for seeds in ("--seeds=1", "--seeds=2"):  # an old table, and a mean over two models
        done = vit(*args, seeds)
        [*_, line] = done.err.splitlines()
        assert done.status == 2 and not done.out and len(calls) == 1
        was = r"mine\.weights\.model\.pretrained \(was \w+ at .*/pre, is \w+ at .*/pre\)"
        assert re.search(was, line), line
    shutil.rmtree("pre")
    shutil.move("same", "pre")
    assert vit(*args, "--seeds=2").status == 0 and len(calls) == 3


@pytest.mark.parametrize(
    ("more", "size"),
    [
        ((), [16, 16]),
        (("--image-size=32",), 32),
        (("--", "--image-size=24"), 24),
        (("--recipe=small.yaml", "--", "--data.image_size=40"), 40),
    ],
)
def test_a_model_of_small_images_is_fine_tuned_at_their_size(
    vit: Vit, scored: Scored, more: tuple[str, ...], size: Any
) -> None:
    calls = scored({"seed-0": 0.5})
    options = ("--data=digits", "--lr-grid=0.1", "--seeds=1", "--steps=3", "--out=out")
    cut = more.index("--") if "--" in more else len(more)
    rest = (*(more[cut + 1 :]), "--trainer.precision=32-true", "--trainer.accelerator=cpu")
    done = vit("transfer", "pre", *options, *more[:cut], "--", *rest)
    assert done.status == 0, done.err
    assert ("pre was trained at 16 x 16 pixels" in done.err) == (not more)
    found = Options(calls[0]).config.data.image_size
    assert (list(found) if isinstance(found, tuple | list) else found) == size
