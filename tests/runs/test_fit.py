"""`vit fit` to the end, and what it leaves behind; then the commands that use a run."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from tests.command import TINY, Vit, coloured, table
from vit import console
from vit.cli.main import main
from vit.recipes import read_options

EPOCHS = ("--trainer.max_epochs=2", "--trainer.log_every_n_steps=1")


@pytest.fixture(scope="module")
def run(finishing: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on the three colours, which tests only read."""
    folder = tmp_path_factory.mktemp("fit")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        args = ("-c", "cifar10", "--data.root", str(coloured(Path("my photos"))), *TINY, *EPOCHS)
        assert main(["fit", *args]) == 0
    return folder / "runs" / "cifar10"


def test_a_run_directory_is_complete(run: Path) -> None:
    files = (
        "config.yaml metrics.csv summary.json predictions.csv curves.png confusion.png worst.png "
        "report.html model/model.safetensors model/config.json checkpoints/best.ckpt "
        "checkpoints/last.ckpt"
    )
    for name in files.split():
        assert (run / name).stat().st_size > 0, name


def test_the_summary_uses_the_names_of_the_metrics_file(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    rows = table(run / "metrics.csv")
    assert {"test/acc1", "test/loss", "val/acc1"} <= set(summary["metrics"]) <= set(rows[0])
    last = [row["test/acc1"] for row in rows if row["test/acc1"]]
    assert [float(x) for x in last] == [pytest.approx(summary["metrics"]["test/acc1"])]
    assert {"lr", "images", "epoch", "seconds", "train/loss"} <= set(rows[0])
    assert summary["images_seen"] == summary["steps"] * 8 > 0
    assert summary["train_seconds"] > 0
    assert summary["train_cpu_seconds"] > 0
    assert 0.2 < summary["peak_memory_gb"] < summary["hardware"]["memory_gb"]


def test_the_accuracy_is_that_of_the_predictions(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    rows = table(run / "predictions.csv")
    assert len(rows) == summary["images"]["test"]
    right = sum(row["label"] == row["predicted"] for row in rows) / len(rows)
    assert summary["metrics"]["test/acc1"] == pytest.approx(right)


def test_the_saved_model_is_the_best_checkpoint(run: Path) -> None:
    from safetensors.torch import load_file

    saved = load_file(run / "model" / "model.safetensors")
    best = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(saved[name], best[f"model.{name}"]) for name in saved)


def test_test_and_validate_give_the_figures_of_the_run_again(run: Path, vit: Vit) -> None:
    summary = json.loads((run / "summary.json").read_text())
    done = vit("test", run, "--json")
    assert done.status == 0, done.err
    again = json.loads(done.out)
    assert again == {k: pytest.approx(v) for k, v in summary["metrics"].items() if "test/" in k}
    done = vit("validate", run, "--json")
    assert json.loads(done.out)["val/acc1"] == pytest.approx(summary["checkpoint"]["score"])


def test_predict_writes_for_spreadsheets_on_demand(run: Path, vit: Vit, photos: Path) -> None:
    Path("list.csv").write_text("path,label\n-held_out.jpg,red\n")
    shutil.copy(photos / "red" / "01.jpg", "-held_out.jpg")
    for option, image in (((), "-held_out.jpg"), (("--spreadsheet",), "'-held_out.jpg")):
        done = vit("predict", run, "--data.root", "list.csv", "--out", "answers.csv", *option)
        assert done.status == 0, done.err
        assert [row["image"] for row in table("answers.csv")] == [image]


def test_new_images_get_the_labels_of_the_run(run: Path, vit: Vit, photos: Path) -> None:
    shutil.copytree(photos / "red", "held_out/red")  # without the first class
    shutil.copytree(photos / "grün", "held_out/grün")
    done = vit("predict", run, "--data.root", "held_out", "--out", "answers.csv")
    assert done.status == 0, done.err
    rows = table("answers.csv")
    assert len(rows) == 24  # a folder without splits is scored whole
    assert {row["label"] for row in rows} == {"red", "grün"}


def test_other_images_are_scored_under_the_name_of_their_split(
    run: Path, vit: Vit, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "PATIENCE", -1.0)
    shutil.copytree(photos, "whole")
    for split in ("train", "val"):
        shutil.copytree(photos, f"parts/{split}")
    rows = [f"whole/{p.relative_to(photos)},{p.parent.name}" for p in photos.rglob("*.jpg")]
    Path("whole.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    with_splits = ["path,label,split", *(f"{row},val" for row in rows)]
    Path("parts.csv").write_text("\n".join(with_splits) + "\n")
    for root, split, other in (
        ("whole", "test", "val"), ("whole.csv", "test", "val"),
        ("parts", "val", "test"), ("parts.csv", "val", "test"),
    ):  # fmt: skip
        done = vit("test", run, "--data.root", root)
        assert done.status == 0, done.err
        assert done.out.startswith(f"{split} accuracy") and f"{other}/" not in done.out
        assert f"{split}  " in done.err and f"{other}  " not in done.err  # the bar
    assert vit("predict", run, "--data.root", "parts").status == 0
    assert (run / "predictions_val.csv").is_file()
    assert "val/acc1" in json.loads(vit("test", run, "--data", "parts", "--json").out)


def test_digits_train_without_any_file_and_without_a_bar(
    vit: Vit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "PATIENCE", -1.0)  # every bar would be shown
    no_bar = "--trainer.enable_progress_bar=false"
    limits = ("--trainer.max_epochs=1", "--trainer.limit_train_batches=1", no_bar)
    done = vit("fit", "-c", "quickstart", *limits, "--run_dir", "here")
    assert done.status == 0 and "img/s" not in done.err, done.err
    assert "1,797 images of 10 classes" in done.err
    assert "(359 images)" in done.out or "of 359 images" in done.out


def test_weights_of_classes_with_any_names(vit: Vit, photos: Path) -> None:
    for before, name in (("red", "0"), ("blue", "1.50"), ("grün", "no")):
        (photos / before).rename(photos / name)
    Path("w.yaml").write_text("model: {loss: {class_weights: {0: 3, no: 2, 1.50: 0.5}}}")
    common = ("fit", "-c", "cifar10", "--data.root", photos, *TINY, "--trainer.max_steps=1")
    typed = "--model.loss.class_weights={0: 3, no: 2, 1.50: 0.5}"
    for options, run in ((("-c", "w.yaml"), "a"), ((typed,), "b")):
        done = vit(*common, *options, "--final_split=none", f"--run_dir={run}")
        assert done.status == 0, done.err
        [loss] = [read_options(Path(run, "config.yaml"))["model"]["loss"]]
        assert loss["class_weights"] == {"0": 3, "no": 2, "1.50": 0.5}
    again = vit("fit", "--run_dir=a").out.splitlines()
    assert again == [
        "not scored: no images for it, or --final_split none",
        "a is finished; to train on, raise --epochs or --steps (a probe takes no steps)",
    ]
    unknown = vit(*common, "--model.loss.class_weights={null: 3}", "--run_dir=c")
    assert unknown.status == 2 and "there is no class 'null'" in unknown.err


def test_several_labels_an_image(vit: Vit, photos: Path, finishing: None) -> None:
    rows = ["path,label"]
    for name in ("red", "grün", "blue"):
        warm = "|warm" if name == "red" else ""
        rows += [f"{name}/{i:02}.jpg,{name}{warm}" for i in range(12)]
    (photos / "list.csv").write_text("\n".join(rows))
    common = ("fit", "-c", "cifar10", "--data.root", photos / "list.csv", *TINY, *EPOCHS)
    done = vit(*common, "--model.loss.kind=softmax")
    assert done.status == 2
    assert "model.loss.kind=sigmoid" in done.err
    weights = "--model.loss.class_weights={warm: 2, blue: 0.5}"
    done = vit(*common, weights, "--run_dir", "several")
    assert done.status == 0, done.err
    assert "test mAP" in done.out
    assert "average precision" in Path("several/report.html").read_text(encoding="utf-8")
    [answer] = json.loads(vit("classify", "several", photos / "red" / "00.jpg", "--json").out)
    probabilities = {entry["class"]: entry["probability"] for entry in answer["top"]}
    assert set(probabilities) == {"red", "grün", "blue", "warm"}
    assert sum(probabilities.values()) != pytest.approx(1, abs=1e-3)  # one question per class
    model = json.loads(Path("several/model/config.json").read_text())
    thresholds = dict(zip(model["classes"], model["extra"]["thresholds"], strict=True))
    best = torch.load("several/checkpoints/best.ckpt", weights_only=True)["vit"]["extra"]
    assert best["thresholds"] == model["extra"]["thresholds"]
    above = {name for name, share in probabilities.items() if share > thresholds[name]}
    assert set(answer["labels"]) == above
    shown = vit("classify", "several", photos / "red" / "00.jpg").out.splitlines()[1]
    assert shown == f"  labels: {', '.join(answer['labels']) or 'none'}"
    scores = json.loads(vit("test", "several", "--json").out)
    assert scores["test/map"] > 0
    f1 = [row["f1"] for row in scores["per_class"] if row["f1"] is not None]
    assert scores["test/f1"] == pytest.approx(sum(f1) / len(f1), abs=1e-6)
    row = table("several/predictions.csv")[0]
    assert set(filter(None, row["predicted_labels"].split("|"))) <= set(probabilities)
    # Other images, of which none has several labels, are asked the same questions.
    rows = ["path,label", *(f"{name}/00.jpg,{name}" for name in ("red", "blue"))]
    (photos / "other.csv").write_text("\n".join(rows))
    others = vit("test", "several", "--data.root", photos / "other.csv", "--json")
    assert others.status == 0, others.err
    assert "test/map" in json.loads(others.out)


def test_averaged_weights_are_what_is_scored_and_saved(vit: Vit, photos: Path) -> None:
    from safetensors.torch import load_file

    ema = "--trainer.callbacks=[{class_path: vit.EMA, init_args: {decay: 0.9}}]"
    done = vit("fit", "-c", "cifar10", "--data.root", photos, *TINY, *EPOCHS, ema)
    assert done.status == 0, done.err
    run = Path("runs/cifar10")
    best = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)
    saved = load_file(run / "model" / "model.safetensors")
    assert best["vit"]["weights"] == "ema"
    assert all(torch.equal(saved[name], best["state_dict"][f"model.{name}"]) for name in saved)
    raw = best["current_model_state"]
    assert any(not torch.equal(saved[name], raw[f"model.{name}"]) for name in saved)
    assert json.loads((run / "summary.json").read_text())["checkpoint"]["weights"] == "ema"


def test_the_last_step_is_validated_wherever_it_is_in_an_epoch(vit: Vit, photos: Path) -> None:
    """An epoch has three steps. The weights of the lowest rate are not left out."""
    args = ("--data.root", photos, *TINY, "--steps=4", "--run_dir=run")
    assert vit("fit", "-c", "cifar10", *args).status == 0
    rows = table(Path("run/metrics.csv"))
    assert [row["step"] for row in rows if row["val/acc1"]] == ["2", "3"]
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["steps"] == 4 and summary["checkpoint"]["step"] in (3, 4)


def test_fast_dev_run_leaves_nothing(vit: Vit, photos: Path) -> None:
    done = vit("fit", "-c", "cifar10", "--data.root", photos, *TINY, "--trainer.fast_dev_run=true")
    assert done.status == 0, done.err
    assert "nothing was kept" in done.out
    assert not Path("runs").exists()


def test_changed_data_are_noted(vit: Vit, photos: Path) -> None:
    args = ("fit", "-c", "cifar10", "--data.root", photos, *TINY, "--trainer.max_epochs=1")
    assert "--epochs " in vit(*args, "--run_dir=run").out
    assert "note" not in vit("test", "run").err
    for i in range(18):
        (photos / "red" / f"new {i}.jpg").write_bytes((photos / "red" / "00.jpg").read_bytes())
    done = vit("test", "run")
    assert done.status == 0 and "note: the images of test are not those" in done.err
