"""Accuracy against images per class on CIFAR-10 (JPEG): random weights, probe, fine-tuning, LoRA.

    python -m benchmarks.papers.few_images.run --data cifar10/ --weights WEIGHTS --runs DIR

`--data` has train/ and test/ with one folder per class. For each N:SEED, N images per class are
drawn from train by that seed, and `vit fit` runs the shipped recipes on them; all are scored on the
same 2,000 test images. The rule of `-c finetune` was found on images of train that no cell draws
(the last 1,000 of each class), so the test images had no part in it.

An interrupted command goes on where it was, and finished runs are reused.
"""

import argparse
import csv
import math
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.harness import (
    arguments,
    draw_images,
    finished,
    mean_and_std,
    portable,
    run_fit,
    save,
    target,
)

TEST_PER_CLASS = 200
DRAWN_FROM = 4_000
"""Of the 5,000 training images per class; the rest tuned the rule."""
ARMS: dict[str, list[str]] = {
    "probe": ["-c", "probe"],
    "finetune": ["-c", "finetune"],
    "lora": ["-c", "lora"],
    "random": [
        *("-c", "finetune", "--model.pretrained", "null", "--model.name", "vit_s16"),
        *("--model.architecture.patch_size", "14", "--model.optimizer.lr", "0.001"),
    ],
}
CELLS = ("20:0", "100:0", "20:1", "100:1", "20:2", "100:2", "5:0", "500:0")
SHARED = ("steps", "images_seen", "parameters", "trained_parameters", "precision")


def draw(data: Path, images: int, seed: int, file: Path) -> None:
    """A CSV of `images` training images per class, drawn by `seed`, and the test images."""

    def choose(number: int, _: str, paths: list[Path]) -> dict[str, Sequence[Path]]:
        order = np.random.default_rng([seed, number]).permutation(len(paths[:DRAWN_FROM]))
        return {"train": [paths[i] for i in order[:images]]}

    draw_images(data, file, choose, TEST_PER_CLASS)


def right(run: Path) -> dict[str, bool]:
    """Test image -> whether the run's first answer is its label."""
    with (run / "predictions.csv").open(newline="", encoding="utf-8") as stream:
        return {row["image"]: row["correct"] == "1" for row in csv.DictReader(stream)}


def paired(first: list[dict[str, bool]], second: list[dict[str, bool]]) -> dict[str, float]:
    """Mean of first - second over images and seeds, in points, and half of its 95 % interval.

    The unit is the test image: its differences are averaged over the seeds first.
    """
    gains = [
        statistics.mean(a[name] - b[name] for a, b in zip(first, second, strict=True))
        for name in sorted(first[0])
    ]
    half = 1.96 * statistics.stdev(gains) / math.sqrt(len(gains))
    return {"points": 100 * statistics.mean(gains), "half_interval": 100 * half}


def train(arm: str, manifest: Path, options: argparse.Namespace, folder: Path) -> None:
    """One run, made where it is not there yet."""
    seed = folder.name.rpartition("_")[2]
    words = [*ARMS[arm], "--data.root", str(manifest), "--seed_everything", seed]
    if arm != "random":
        words += ["--model.pretrained", str(options.weights)]
    words += ["--data.image_size", str(options.pixels), "--data.loading.num_workers", "0"]
    run_fit(words, folder)
    for name in ("checkpoints", "model"):  # some 400 MB
        shutil.rmtree(folder / name, ignore_errors=True)


def row(images: int, arm: str, folders: list[Path]) -> dict[str, Any]:
    """The runs of one arm with so many images per class."""
    summaries = [summary for folder in folders if (summary := finished(folder))]
    last, answers = summaries[-1], [right(folder) for folder in folders]
    accuracies = [100 * statistics.mean(answer.values()) for answer in answers]
    mean, std = mean_and_std(accuracies)
    result: dict[str, Any] = {
        "images_per_class": images,
        "arm": arm,
        "seeds": [int(folder.name.rpartition("_")[2]) for folder in folders],
        "accuracies": [round(accuracy, 2) for accuracy in accuracies],
        "mean": round(mean, 2),
        "std": None if std is None else round(std, 2),
        "losses": [round(summary["metrics"]["test/loss"], 4) for summary in summaries],
        **{name: [s[name] for s in summaries] for name in ("train_seconds", "train_cpu_seconds")},
        **{name: last[name] for name in SHARED},
        "command": portable(last["command"]),
    }
    probes = [folder.with_name(folder.name.replace(arm, "probe")) for folder in folders]
    if arm != "probe" and all((probe / "predictions.csv").is_file() for probe in probes):
        result["against_probe"] = paired(answers, [right(probe) for probe in probes])
    if "by_size" in last["checkpoint"]:
        result["by_size"] = last["checkpoint"]["by_size"]
    return result | {name: last[name] for name in ("hardware", "versions")}


def document(runs: Path, pixels: int) -> dict[str, Any]:
    """What is finished, by images per class and arm."""
    folders: dict[tuple[int, str], list[Path]] = {}
    for arm in ARMS:
        for folder in sorted(runs.glob(f"{arm}_*_*")):
            if folder.is_dir() and finished(folder) is not None:
                folders.setdefault((int(folder.name.split("_")[1]), arm), []).append(folder)
    rows = [row(*key, each) for key, each in sorted(folders.items())]
    machine = [{name: r.pop(name) for name in ("hardware", "versions")} for r in rows]
    return {"pixels": pixels, "test_images": 10 * TEST_PER_CLASS, "rows": rows, **machine[-1]}


def main() -> None:
    parser = arguments(__doc__, "data", "weights", "runs", quick=False)
    parser.add_argument("--pixels", type=int, default=56)
    parser.add_argument("--cells", nargs="+", default=CELLS, metavar="N:SEED")
    parser.add_argument("--arms", nargs="+", default=["probe", "finetune"], choices=ARMS)
    options = parser.parse_args()
    for cell in options.cells:
        images, seed = map(int, cell.split(":"))
        manifest = options.runs / f"images_{images}_{seed}.csv"
        draw(options.data, images, seed, manifest)
        for arm in options.arms:
            train(arm, manifest, options, options.runs / f"{arm}_{images}_{seed}")
            content = document(options.runs, options.pixels)
            save(content, target(options, "papers/few_images/results"))


if __name__ == "__main__":
    main()
