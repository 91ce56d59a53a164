"""Accuracy against images per class on CIFAR-10 (JPEG): random weights, probe, fine-tuning, LoRA.

    python benchmarks/few_images.py --data cifar10/ --weights WEIGHTS --runs DIR [--cells N:SEED]

`--data` has train/ and test/ with one folder per class. For each N:SEED, N images per class are
drawn from train by that seed, and `vit fit` runs the shipped recipes on them; all are scored on the
same 2,000 test images. The rule of `-c finetune` was found on images of train that no cell draws
(the last 1,000 of each class), so the test images had no part in it.

An interrupted command goes on where it was, and finished runs are reused. Writes
benchmarks/results/few_images.json after every run; the last line of output is that file's path.
"""

import argparse
import csv
import json
import math
import shlex
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from cells import note_options, run_cell, write_manifest  # noqa: E402
from collect import portable  # noqa: E402

from vit.transfer.cells import finished  # noqa: E402

RESULTS = HERE / "results" / "few_images.json"
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
KEPT = ("train_seconds", "train_cpu_seconds", "steps", "images_seen", "parameters", "precision")


def draw_images(data: Path, images: int, seed: int, file: Path) -> None:
    """A CSV of `images` training images per class, drawn by `seed`, and the test images."""
    rows: list[tuple[str, str, str]] = []
    folders = sorted(path for path in (data / "train").iterdir() if path.is_dir())
    for number, folder in enumerate(folders):
        names = sorted(path.name for path in folder.iterdir())[:DRAWN_FROM]
        order = np.random.default_rng([seed, number]).permutation(len(names))[:images]
        rows += [(str(folder / names[i]), folder.name, "train") for i in order]
        test = sorted((data / "test" / folder.name).iterdir())[:TEST_PER_CLASS]
        rows += [(str(path), folder.name, "test") for path in test]
    write_manifest(rows, file)


def right(run: Path) -> dict[str, bool]:
    """Test image -> whether the run's first answer is its label."""
    with (run / "predictions.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return {row["image"]: row["correct"] == "1" for row in rows}


def paired(first: list[dict[str, bool]], second: list[dict[str, bool]]) -> dict[str, float]:
    """Mean of first - second over images and seeds, in points, and half of its 95 % interval.

    The unit is the test image: its differences are averaged over the seeds first.
    """
    names = sorted(first[0])
    gains = [
        statistics.mean(a[name] - b[name] for a, b in zip(first, second, strict=True))
        for name in names
    ]
    half = 1.96 * statistics.stdev(gains) / math.sqrt(len(gains))
    return {"points": 100 * statistics.mean(gains), "half_interval": 100 * half}


def measured(arm: str, manifest: Path, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The summary of one run, made where it is not there yet."""
    seed = folder.name.rpartition("_")[2]
    arguments = [*ARMS[arm], "--data.root", str(manifest), "--seed_everything", seed]
    if arm != "random":
        arguments += ["--model.pretrained", str(options.weights)]
    arguments += ["--data.image_size", str(options.pixels), "--data.loading.num_workers", "0"]
    note_options(arguments, folder)
    summary = run_cell(arguments, folder)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # some 400 MB
    shutil.rmtree(folder / "model", ignore_errors=True)
    return summary


def document(runs: Path, pixels: int) -> dict[str, Any]:
    """What is finished, by images per class and arm."""
    found: dict[tuple[int, str], list[Path]] = {}
    for arm in ARMS:
        for folder in sorted(runs.glob(f"{arm}_*_*")):
            if folder.is_dir() and finished(folder) is not None:
                found.setdefault((int(folder.name.split("_")[1]), arm), []).append(folder)
    rows, last = [], {}
    for (images, arm), folders in sorted(found.items()):
        summaries = [json.loads((f / "summary.json").read_text()) for f in folders]
        last = summaries[-1]
        answers = [right(folder) for folder in folders]
        accuracies = [100 * statistics.mean(answer.values()) for answer in answers]
        row: dict[str, Any] = {
            "images_per_class": images,
            "arm": arm,
            "seeds": [int(f.name.rpartition("_")[2]) for f in folders],
            "accuracies": [round(a, 2) for a in accuracies],
            "mean": round(statistics.mean(accuracies), 2),
            "std": round(statistics.stdev(accuracies), 2) if len(folders) > 1 else None,
            "losses": [round(s["metrics"]["test/loss"], 4) for s in summaries],
            "trained_parameters": last["trained_parameters"],
            **{name: [s[name] for s in summaries] for name in KEPT[:2]},
            **{name: last[name] for name in KEPT[2:]},
            "command": portable(last["command"]),
        }
        probes = [folder.with_name(folder.name.replace(arm, "probe")) for folder in folders]
        if arm != "probe" and all((p / "predictions.csv").is_file() for p in probes):
            row["against_probe"] = paired(answers, [right(p) for p in probes])
        if "by_size" in last["checkpoint"]:
            row["by_size"] = last["checkpoint"]["by_size"]
        rows.append(row)
    facts = {name: last.get(name) for name in ("hardware", "versions")}
    return {"pixels": pixels, "test_images": 10 * TEST_PER_CLASS, "rows": rows, **facts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--pixels", type=int, default=56)
    parser.add_argument("--cells", nargs="+", default=CELLS, metavar="N:SEED")
    parser.add_argument("--arms", nargs="+", default=["probe", "finetune"], choices=ARMS)
    options = parser.parse_args()
    print(shlex.join(sys.argv), file=sys.stderr)
    for cell in options.cells:
        images, seed = map(int, cell.split(":"))
        manifest = options.runs / f"images_{images}_{seed}.csv"
        draw_images(options.data, images, seed, manifest)
        for arm in options.arms:
            measured(arm, manifest, options, options.runs / f"{arm}_{images}_{seed}")
            text = json.dumps(document(options.runs, options.pixels), indent=2) + "\n"
            RESULTS.write_text(text, encoding="utf-8")
    print(RESULTS)


if __name__ == "__main__":
    main()
