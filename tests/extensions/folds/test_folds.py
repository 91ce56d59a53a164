"""`vit folds`: its runs, what the final run has of them, how it goes on, and what it refuses."""

import json
import os
import shutil
import signal
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.optimize import minimize_scalar
from sklearn.metrics import average_precision_score, f1_score

import vit as package
from tests.command import Vit, coloured, saved, table
from tests.killing import in_child, killed_at
from vit.cli.main import main
from vit.data.trained_on import TrainedOn
from vit.extensions.folds import folds
from vit.runs.records import read_summary
from vit.training.image_classifier import ImageClassifier

SMALL = """\
# Small.
data:
  batch_size: 8
  image_size: 16
  augment: {crop: pad}
  loading: {num_workers: 0}
  splits: {test_fraction: 0.25}
model:
  architecture: {patch_size: 8, width: 16, depth: 1, mlp_dim: 32, num_heads: 1}
  optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 0.01}}
trainer: {precision: 32-true, accelerator: cpu, max_epochs: 3, log_every_n_steps: 1}
"""
OPTIONS = ("-c", "small.yaml", "--data", "photos", "--run_dir=run")


def prepared(folder: Path) -> None:
    """`photos`, some of which are in the folder of another class; `small.yaml`; `several.csv`, of
    which a photo has one label, both or none."""
    Path(folder, "small.yaml").write_text(SMALL)
    root, rows = coloured(folder / "photos"), ["path,label,patient"]
    for i, name in enumerate(("red", "blue")):
        for number in ("00", "01", "02", "03"):
            other = root / ("blue", "red")[i] / f"{name}{number}.jpg"
            (root / name / f"{number}.jpg").rename(other)
    for i, path in enumerate(sorted(root.rglob("*.jpg"))):
        labels = ("red",) * (path.parent.name == "red") + ("even",) * (i % 2 == 0)
        rows.append(f"{path.relative_to(folder)},{'|'.join(labels)},{i // 2}")
    Path(folder, "several.csv").write_text("\n".join(rows))


@pytest.fixture
def here(vit: Vit) -> None:
    prepared(Path())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with `run` of one label, and `several` of several in groups, both finished; the
    current one meanwhile."""
    before, folder = Path.cwd(), tmp_path_factory.mktemp("finished")
    os.chdir(folder)
    prepared(folder)
    assert main(["folds", *OPTIONS, "--folds=3"]) == 0
    group = ("--data.columns.group=patient", "--data.label_separator=|")
    several = ("--data=several.csv", *group, "--run-dir=several", "--folds", "3")
    assert main(["folds", "-c", "small.yaml", *several]) == 0
    yield folder
    os.chdir(before)


def extra(run: Path) -> dict[str, Any]:
    return json.loads((run / "model/config.json").read_text())["extra"]


def outputs(run: Path) -> tuple[np.ndarray, list[dict[str, str]]]:
    """Logits `n k` of out_of_fold.csv, and its rows."""
    rows = table(run / "out_of_fold.csv")
    return np.array([[*row.values()][3:] for row in rows], dtype=np.float64), rows


def weights(run: str) -> dict[str, torch.Tensor]:
    return torch.load(Path(run, "checkpoints/last.ckpt"), weights_only=True)["state_dict"]


def test_each_image_but_those_of_test_is_left_out_once(finished: Path) -> None:
    rows = table(finished / "run/splits.csv")
    assert len(rows) == 36 and sum(row["split"] == "test" for row in rows) == 9
    for row in rows:
        splits = [row[f"fold_{fold}"] for fold in (1, 2, 3)]
        if row["split"] == "test":
            assert splits == ["test"] * 3
        else:
            assert sorted(splits) == ["train", "train", "val"]
    left_out = [(row["path"], int(row["fold"])) for row in outputs(finished / "run")[1]]
    asked = [(r["path"], f) for f in (1, 2, 3) for r in rows if r[f"fold_{f}"] == "val"]
    assert left_out == asked
    learned = [len(TrainedOn.read(finished / f"run/{run}/model/trained_on").here)
               for run in ("folds/1", "folds/2", "folds/3", ".")]  # fmt: skip
    assert learned == [18, 18, 18, 27]


def test_outputs_of_an_image_are_those_of_the_run_that_left_it_out(finished: Path) -> None:
    logits, rows = outputs(finished / "run")
    for fold in (1, 2, 3):
        run = finished / f"run/folds/{fold}"
        scaled = logits / extra(run).get("temperature", 1.0)
        shares = np.exp(scaled) / np.exp(scaled).sum(1, keepdims=True)
        chosen = [i for i, row in enumerate(rows) if row["fold"] == str(fold)]
        answers = package.load(run).predict([rows[i]["path"] for i in chosen], top=3)
        for i, answer in zip(chosen, answers, strict=True):
            given = dict(zip([*rows[i]][3:], shares[i], strict=True))
            assert dict(answer.top) == pytest.approx(given, abs=1e-5)


def test_the_final_run_has_the_median_length_and_all_images(finished: Path) -> None:
    run, result = finished / "run", json.loads((finished / "run/folds.json").read_text())
    steps = [read_summary(run / f"folds/{fold}")["checkpoint"]["step"] for fold in (1, 2, 3)]
    summary = read_summary(run)
    assert summary["steps"] == statistics.median(steps) == result["steps"]
    assert summary["images"] == {"train": 27, "val": 0, "test": 9}
    assert json.loads((run / "plan.json").read_text())["steps"] == result["steps"]
    rates = [float(row["lr"]) for row in table(run / "metrics.csv") if row["lr"]]
    factors = [(1 + np.cos(np.pi * step / len(rates))) / 2 for step in range(len(rates))]
    assert len(rates) == summary["steps"] and rates == pytest.approx([0.01 * f for f in factors])


def test_the_scores_are_those_of_the_runs(finished: Path) -> None:
    run, result = finished / "run", json.loads((finished / "run/folds.json").read_text())
    scores = [read_summary(run / f"folds/{f}")["metrics"]["val/acc1"] for f in (1, 2, 3)]
    assert [row["score"] for row in result["folds"]] == scores
    assert result["mean"] == pytest.approx(sum(scores) / 3)
    half = 4.302652729911275 * np.sqrt(np.var(scores, ddof=1) * (1 / 3 + 9 / 18))  # t, 2 degrees
    whole = np.clip([result["mean"] - half, result["mean"] + half], 0, 1)
    assert result["interval"] == pytest.approx(whole)
    logits, rows = outputs(run)
    names = [*rows[0]][3:]
    right = [names[i] == row["label"] for i, row in zip(logits.argmax(1), rows, strict=True)]
    assert result["pooled"] == pytest.approx(np.mean(right))
    assert result["pooled"] == pytest.approx(result["mean"])  # folds are of one size here


def test_the_temperature_is_the_minimum_over_the_outputs(finished: Path) -> None:
    logits, rows = outputs(finished / "run")
    at = [[*rows[0]][3:].index(row["label"]) for row in rows]

    def loss(log_t: float) -> float:
        scaled = logits / np.exp(log_t)
        return float((np.log(np.exp(scaled).sum(1)) - scaled[range(len(at)), at]).mean())

    best = float(np.exp(minimize_scalar(loss, bounds=(-3, 3), method="bounded").x))  # pyright: ignore
    assert extra(finished / "run")["temperature"] == pytest.approx(best, rel=1e-3)
    measured = read_summary(finished / "run")["confidence"]
    assert measured["images"] == 27 and measured["temperature"] == pytest.approx(best, rel=1e-3)
    assert "each by a network that was fitted without it" in measured["measured_on"]


def test_thresholds_have_the_best_f1_over_the_outputs(finished: Path) -> None:
    run = finished / "several"
    logits, rows = outputs(run)
    names, facts = [*rows[0]][3:], extra(run)
    labels = np.array([[name in row["label"].split("|") for name in names] for row in rows])
    assert facts["multilabel"] and names == ["even", "red"] and not labels.any(1).all()
    for scores, truth, threshold in zip(logits.T, labels.T, facts["thresholds"], strict=True):
        every = [f1_score(truth, scores >= cut) for cut in scores]
        # Thresholds are of the probabilities before the temperature.
        chosen = scores > np.log(threshold / (1 - threshold))
        assert f1_score(truth, chosen) == pytest.approx(max(every))
    result = json.loads((run / "folds.json").read_text())
    assert result["thresholds"] == facts["thresholds"] and result["metric"] == "map"
    pooled = np.mean([average_precision_score(labels[:, i], logits[:, i]) for i in range(2)])
    assert result["pooled"] == pytest.approx(pooled, abs=1e-6)


def test_a_group_is_in_one_fold(finished: Path) -> None:
    rows, fold_of = table(finished / "several/splits.csv"), dict[str, set[tuple[str, ...]]]()
    for row in rows:
        cells = tuple(row[name] for name in ("split", "fold_1", "fold_2", "fold_3"))
        fold_of.setdefault(row["group"], set()).add(cells)
    assert len(fold_of) == 18 and all(len(places) == 1 for places in fold_of.values())


def test_images_that_the_weights_know_are_left_out_by_no_fold(vit: Vit, here: None) -> None:
    learned = [*sorted(Path("photos").rglob("*.jpg"))][::3]
    for path in learned:
        copy = Path("some") / path.relative_to("photos")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    whole = ("--data.splits.val_fraction=0", "--data.splits.test_fraction=0")
    start = ("--data", "some", "--run_dir=first", *whole, "--trainer.max_epochs=1")
    assert vit("fit", "-c", "small.yaml", *start).status == 0
    options = (*OPTIONS, "--folds=3", "--pretrained=first", "--trainer.max_epochs=1")
    done = vit("folds", *options)
    assert done.status == 0, done.err
    assert "12 of 27 images were in the training of first: no fold leaves them out" in done.err
    allowed = ("--data.splits.seen=allow", "--run_dir=allowed")
    assert vit("folds", *options, *allowed).status == 0
    assert len(outputs(Path("allowed"))[1]) > 15
    names = {str(path.relative_to("photos")) for path in learned}
    rows = table(Path("run/splits.csv"))
    for row in rows:
        splits = [row[f"fold_{fold}"] for fold in (1, 2, 3)]
        known = any(row["path"].endswith(name) for name in names)
        assert row["split"] == "train" or not known  # nor is one of test known
        assert ("val" in splits) == (row["split"] == "train" and not known)
    left_out = outputs(Path("run"))[1]
    assert (
        len(left_out) == 15
        and "were in the training of first" not in done.err.split("no fold leaves them out")[1]
    )


def test_folds_of_a_probe_take_no_step(vit: Vit, here: None) -> None:
    options = ("--data", "photos", "--pretrained", saved(Path("encoder"), classes=None))
    workers = "--data.loading.num_workers=0"
    done = vit("folds", "-c", "probe", *options, "--run_dir=run", "--folds=3", workers)
    assert done.status == 0, done.err
    assert json.loads(Path("run/folds.json").read_text())["steps"] == 0
    assert read_summary(Path("run"))["steps"] == 0
    assert len(outputs(Path("run"))[1]) == read_summary(Path("run"))["images"]["train"]


def test_several_labels_of_which_each_image_has_one_are_listed_as_such(
    vit: Vit, here: None
) -> None:
    rows = ["path,red,blue"]
    for path in sorted(Path("photos").rglob("*.jpg")):
        rows.append(f"{path},{int(path.parent.name == 'red')},{int(path.parent.name == 'blue')}")
    Path("ones.csv").write_text("\n".join(rows))
    options = ("--data=ones.csv", "--run_dir=run", "--folds=3", "--trainer.max_epochs=1")
    done = vit("folds", "-c", "small.yaml", *options)
    assert done.status == 0, done.err
    cells = {row["label"] for row in table(Path("run/splits.csv"))}
    assert cells == {"red|", "blue|", ""} and extra(Path("run"))["multilabel"]


@pytest.fixture
def another(finished: Path, vit: Vit) -> Iterator[Path]:
    """The finished `run`, of which a test may change anything, in its folder."""
    run, whole = finished / "run", finished / "whole"
    os.chdir(finished)
    shutil.copytree(run, whole)
    yield run
    shutil.rmtree(run)
    whole.rename(run)


def test_a_final_run_that_is_trained_on_is_no_run_of_its_folds(another: Path, vit: Vit) -> None:
    steps = 2 * read_summary(another)["steps"]
    done = vit("fit", "--run_dir=run", "--steps", steps)
    assert done.status == 0 and "and this is another" in done.err
    assert "no images to measure on" in done.err and "temperature" not in extra(another)
    result = (another / "folds.json").read_bytes()
    again = vit("folds", *OPTIONS, "--folds=3")
    assert again.status == 2 and f"was trained on to {steps} steps" in again.err
    assert (another / "folds.json").read_bytes() == result


def test_folds_that_are_killed_are_no_ordinary_run(another: Path, vit: Vit) -> None:
    for name in ("model", "checkpoints", "folds/3"):
        shutil.rmtree(another / name)
    for name in ("summary.json", "out_of_fold.csv"):
        (another / name).unlink()
    done = vit("fit", "--run_dir=run")
    assert done.status == 2 and "repeat the `vit folds` of this run" in done.err, done.err


def test_test_is_scored_by_the_final_run_alone(finished: Path, vit: Vit) -> None:
    os.chdir(finished)
    for fold in (1, 2, 3):
        summary = read_summary(Path(f"run/folds/{fold}"))
        assert summary["split"] == "val"
        assert not [name for name in summary["metrics"] if name.startswith("test/")]
    scored = json.loads(vit("test", "run", "--json").out)
    result = json.loads(Path("run/folds.json").read_text())
    assert scored == pytest.approx(result["test"], abs=1e-6) and scored["test/acc1"] > 0
    assert read_summary(Path("run"))["split"] == "test"
    again = vit("folds", *OPTIONS, "--folds=3", "--json")  # checked by its schema
    assert json.loads(again.out) == result and "val acc" not in again.err


@pytest.mark.usefixtures("here")
def test_fit_with_folds_is_the_same_command(finished: Path, vit: Vit) -> None:
    done = vit("fit", *OPTIONS, "--folds", "3")
    assert done.status == 0, done.err
    assert "mean " in done.out and "test accuracy" in done.out and "95 % interval" in done.out
    result = json.loads(Path("run/folds.json").read_text())
    assert result == json.loads((finished / "run/folds.json").read_text())
    ours, others = weights("run"), weights(str(finished / "run"))
    assert all(torch.equal(ours[name], others[name]) for name in ours)


KILLS = [
    (ImageClassifier, "training_step", 3),  # of the first fold
    (ImageClassifier, "training_step", 11),  # of the second one, as the first is finished
    (folds, "write_outputs", 1),
    (ImageClassifier, "training_step", 2),  # of the final run
    (folds, "write_json", 2),
]


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_folds_that_are_killed_end_in_the_same_weights(finished: Path) -> None:
    args = ["folds", *OPTIONS, "--folds=3", "--save_every=0"]

    def attempt(owner: Any, name: str, count: int) -> int:
        killed_at(owner, name, count)
        return main(args)

    for kill in KILLS:
        assert in_child(lambda kill=kill: attempt(*kill)) == -signal.SIGKILL, kill
    assert main(args) == 0
    for run in ("run/folds/1", "run/folds/2", "run/folds/3", "run"):
        ours, others = weights(run), weights(str(finished / run))
        assert all(torch.equal(ours[name], others[name]) for name in ours), run
    result = json.loads(Path("run/folds.json").read_text())
    assert result == json.loads((finished / "run/folds.json").read_text())


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--folds=1",), "--folds 1 must be at least 2"),
        (("--folds=10",), "--folds 10: each class needs as many images, and 'blue' has 9"),
        (("--final_split=val",), "--final_split: `vit folds` sets it for each run; remove it"),
        (("--budget=1m",), "--model.schedule.length: `vit folds` sets it"),
        (("--data.splits.val_fraction=0.2",), "--data.splits.val_fraction: `vit folds` sets it"),
        (("--cooldown=2",), "--model.schedule.cooldown_steps: `vit folds` sets it"),
        (("--trainer.fast_dev_run=1",), "--trainer.fast_dev_run: `vit folds` sets it"),
        (("more",), "'more' is not an option"),
        (("--fold=3",), "there is no option --fold"),
        (("--data=digits",), "these are no files, but in shards or in memory"),
        (("--task=mae", "-c", "pretrain/mae_cifar10"), "has no score to cross-validate"),
    ],
    ids=str,
)
def test_mistakes_are_one_line_before_any_training(
    vit: Vit, options: tuple[str, ...], why: str
) -> None:
    words = [word for word in OPTIONS if "--data=digits" not in options or "photos" not in word]
    words = [word for word in words if "--data=digits" not in options or word != "--data"]
    done = vit("folds", *words, *options)
    last = done.err.splitlines()[-1]
    assert done.status == 2 and last.startswith("vit: ") and why in last, done.err
    assert not Path("run/folds").exists()


@pytest.mark.usefixtures("here")
def test_other_images_or_options_and_other_runs_are_refused(finished: Path, vit: Vit) -> None:
    shutil.copytree(finished / "run", "run")
    plan = json.loads(Path("run/plan.json").read_text())
    shutil.rmtree("photos")
    shutil.copytree(finished / "photos", "photos")
    text = json.dumps(plan).replace(str(finished), str(Path.cwd()))
    Path("run/plan.json").write_text(text)
    changed = vit("folds", *OPTIONS, "--folds=3", "--lr=0.1")
    assert changed.status == 2 and "run was started with other options" in changed.err
    assert "choose another --run_dir" in changed.err
    fewer = vit("folds", *OPTIONS, "--folds=2")
    assert fewer.status == 2 and "folds (was 3, is 2)" in fewer.err
    Image.new("RGB", (9, 9)).save("photos/red/04.jpg")
    replaced = vit("folds", *OPTIONS, "--folds=3")
    assert replaced.status == 2 and "contents" in replaced.err
    whole = Path(finished, "photos/red/04.jpg").read_bytes()
    Path("photos/red/04.jpg").write_bytes(whole[:-9] + b"\0" + whole[-8:])  # of the same size
    replaced = vit("folds", *OPTIONS, "--folds=3")
    assert replaced.status == 2 and "contents" in replaced.err
    Path("other").mkdir()
    Path("other/notes.txt").touch()
    refused = vit("folds", *OPTIONS[:-1], "--run_dir=other")
    assert refused.status == 2 and "run_dir=other is not empty" in refused.err
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLD_SIZE", "2")
        refused = vit("folds", *OPTIONS)
    assert refused.status == 2 and "start `vit folds` alone" in refused.err
