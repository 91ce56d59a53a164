"""How often the interval of `vit folds`, and that of one val, holds the accuracy on other images.

    python -m benchmarks.papers.folds.run --runs DIR
    python -m benchmarks.papers.folds.run --runs DIR --data CIFAR --per-class 20 \\
        --results FILE -- -c finetune --pretrained WEIGHTS --data.image_size 56

For each of the draws, some images per class are drawn: `vit folds` trains five folds and a final
run on them, and `vit fit` a run with a fifth as val. All are scored on the images that are not
drawn (at most 60 per class), which are the truth. By default the images are scikit-learn's digits
(1,797 of 8 x 8 pixels), by the recipe quickstart with two layers, in 15 epochs. `--quick` makes two
draws.

An interrupted command goes on where it was.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.stats import t
from sklearn.datasets import load_digits

from benchmarks.lib.harness import arguments, document, finished, publish, write_manifest
from vit.extensions.folds.folds import Folds
from vit.extensions.reports.intervals import wilson_interval
from vit.extensions.transfer.transfer import train
from vit.runs import finishers
from vit.runs.evaluate import Subject

FOLDS = 5
MOST = 60
"""Images of each class that are the truth."""
TINY = [
    *("-c", "quickstart", "--data.batch_size=20", "--model.schedule.warmup_steps=10"),
    *("--epochs=15", "--model.architecture.depth=2", "--trainer.check_val_every_n_epoch=5"),
    *("--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"),
]
"""Options of a fit on the digits."""


def write_digits(folder: Path) -> Path:
    """A folder per digit, of PNG; written once."""
    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        path = folder / str(label) / f"{number:04}.png"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((pixels * 15.9).astype("uint8")).convert("RGB").save(path)
    return folder


def draw(data: Path, per_class: int, seed: int, file: Path) -> None:
    """A CSV of the images that are drawn, in train, and of others, in test."""
    rows: list[tuple[Path, str, str]] = []
    for number, folder in enumerate(sorted(path for path in data.iterdir() if path.is_dir())):
        paths = sorted(folder.iterdir())
        order = np.random.default_rng([seed, number]).permutation(len(paths))
        rows += [(paths[i], folder.name, "train") for i in order[:per_class]]
        rows += [(paths[i], folder.name, "test") for i in order[per_class:][:MOST]]
    write_manifest(rows, file)


def accuracy(run: Path) -> float:
    """Of a run on the images that are not drawn; measured once."""
    file = run / "truth.json"
    if not file.is_file():
        file.write_text(json.dumps(Subject(run, "test", []).evaluate()[1]))
    return json.loads(file.read_text())["test/acc1"]


def one(folder: Path, manifest: Path, words: list[str], seed: int) -> dict[str, Any]:
    """The row of a draw: scores, intervals, and the accuracies that they are about."""
    words = [*words, "--data", str(manifest), "--seed", str(seed)]
    result, _ = Folds(arguments=words, folds=FOLDS, run=folder / "folds").train()
    single = folder / "single"
    train([*words, f"--data.splits.val_fraction={1 / FOLDS}", "--final_split=val",
           f"--run_dir={single}"])  # fmt: skip
    summary = finished(single)
    assert summary is not None
    scores, count = [row["score"] for row in result["folds"]], summary["images"]["val"]
    share = summary["metrics"]["val/acc1"]
    half = t.ppf(0.975, FOLDS - 1) * statistics.stdev(scores) / math.sqrt(FOLDS)
    right = round(result["pooled"] * result["images"])
    return {
        "seed": seed,
        "folds": {"score": result["mean"], "interval": result["interval"]},
        "uncorrected": {
            "score": result["mean"],
            "interval": [result["mean"] - half, result["mean"] + half],
        },
        "pooled": {"score": result["pooled"], "interval": wilson_interval(right, result["images"])},
        "single": {"score": share, "interval": wilson_interval(round(share * count), count)},
        "true": {
            "folds": statistics.mean(accuracy(Path(row["run"])) for row in result["folds"]),
            "final": accuracy(folder / "folds"),
            "single": accuracy(single),
        },
        "steps": result["steps"],
    }


OF = {"folds": "folds", "uncorrected": "folds", "pooled": "folds", "single": "single"}
"""Interval -> the accuracy that it is about."""


def _inside(bounds: Sequence[Sequence[float]], values: Sequence[float]) -> int:
    return sum(bool(low <= v <= high) for (low, high), v in zip(bounds, values, strict=True))


def summarised(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Interval -> how often it holds its accuracy and the final run's, its mean width, and the mean
    and root mean square of score - accuracy, in points."""
    table: dict[str, dict[str, float]] = {}
    for name, of in OF.items():
        bounds = [row[name]["interval"] for row in rows]
        true, final = ([row["true"][kind] for row in rows] for kind in (of, "final"))
        errors = [100 * (row[name]["score"] - value) for row, value in zip(rows, true, strict=True)]
        table[name] = {
            "holds": _inside(bounds, true),
            "holds_final": _inside(bounds, final),
            "width": 100 * statistics.mean(high - low for low, high in bounds),
            "bias": statistics.mean(errors),
            "rms": math.sqrt(statistics.mean(error**2 for error in errors)),
        }
    return table


def main() -> None:
    parser = arguments(__doc__, "runs")
    parser.add_argument("--data", type=Path, help="class folders (default: digits)")
    parser.add_argument("--per-class", type=int, default=10, metavar="N")
    parser.add_argument("--draws", type=int, default=20, metavar="N")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options: argparse.Namespace = parser.parse_args(sys.argv[1:at])
    words, runs = sys.argv[at + 1 :] or TINY, options.runs.resolve()
    finishers.rows = lambda table: {}  # 140 reports would take longer than the runs
    data = options.data or write_digits(runs / "digits")
    rows = []
    for seed in range(2 if options.quick else options.draws):
        manifest = runs / f"draw_{seed}.csv"
        draw(data, options.per_class, seed, manifest)
        rows.append(one(runs / f"draw_{seed}", manifest, words, seed))
        print(json.dumps(rows[-1]), file=sys.stderr)
    facts = {"per_class": options.per_class, "folds": FOLDS, "options": words}
    content = document("folds", rows, **facts, summary=summarised(rows))
    publish(content, options, "papers/folds/results")


if __name__ == "__main__":
    main()
