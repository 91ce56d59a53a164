"""How much data a ViT, a BiT and a hybrid need at equal compute (arXiv:2010.11929, section 4.3).

    python -m benchmarks.papers.data_size.run --data cifar10/ --runs DIR
    python -m benchmarks.papers.data_size.run --data imagenet21k/ --runs DIR --device cuda \\
        --steps 100000 --models vit=my_vit.yaml bit=my_bit.yaml hybrid=my_hybrid.yaml \\
        -- --data.batch_size 1024

`--data` has train/ and test/ with one folder per class. A twenty-fifth of each class of train is
val, drawn once; of the rest 2, 10, 30 and 100 % of each class are drawn by the seed, the smaller
draws within the larger. As in the paper all runs have the same steps and the same hyperparameters,
without regularisation for the small sets, and the weights that are best on val are scored.

- part: the second and the fourth of every five classes, in the order of their names, are left out
  of training. Accuracy in domain is that on the test images of the others; few-shot accuracy is
  that of ridge regression on the features of the classes left out, from 1, 5, 10 and 25 images of
  each, ten draws, on their test images. With a quarter and half of the steps on all of train, and
  with narrower ViTs on the smallest and the largest draw, once more.
- all: the same models on all classes; accuracy in domain.

The models are the shipped recipes cifar10/equal_flops_*, narrower, so that three seeds take less
than two CPU hours, and again within one per cent of each other in operations of a training step.
500 steps of 64 images are 1.1 epochs of the largest draw of `part`. All of it was fixed before the
first result.

`part` comes before `all`, and in each of them all runs of a seed before the next seed. An
interrupted command goes on where it was.
"""

import argparse
import itertools
import json
import shlex
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.lib.harness import (
    Rows,
    document,
    draw_images,
    finished,
    on_device,
    publish,
    save,
    shuffled,
    target,
    work,
)
from benchmarks.lib.sweep import arguments, curve, schedule, trained
from vit.extensions.evaluation.fewshot import few_shot_accuracy
from vit.extensions.evaluation.frozen import Bench, Frozen, Reading
from vit.models.zoo import config_from_dict

STEPS, BATCH, VALIDATIONS = 500, 64, 5
PERCENT = (2, 10, 30, 100)
SWEEPS = ("part", "all")
SHORTER = (0.25, 0.5)
"""Shares of the steps, on all of train."""
VAL_SHARE = 0.04
SHOTS, DRAWS, POOL = (1, 5, 10, 25), 10, 100
"""Images of a class, draws of them, and how many of a class they are drawn from."""


def _vit(width: int, depth: int, mlp_dim: int) -> list[str]:
    sizes = {"width": width, "depth": depth, "mlp_dim": mlp_dim}
    return [w for k, v in sizes.items() for w in (f"--model.architecture.{k}", str(v))]


MODELS: dict[str, list[str]] = {
    "vit": ["-c", "cifar10/equal_flops_vit", *_vit(64, 4, 232)],
    "bit": ["-c", "cifar10/equal_flops_bit", "--model.architecture.depths", "[1, 1]"],
    "hybrid": ["-c", "cifar10/equal_flops_hybrid", *_vit(64, 2, 208)],
    "vit_48": ["-c", "cifar10/equal_flops_vit", *_vit(48, 4, 176)],
    "vit_32": ["-c", "cifar10/equal_flops_vit", *_vit(32, 4, 120)],
}
"""Those with an underscore are smaller ones of a family."""


@dataclass(frozen=True)
class Cell:
    """A run of each seed."""

    sweep: str
    """part or all: of the classes."""
    model: str
    percent: float
    share: float = 1.0
    """Of the steps."""

    @property
    def name(self) -> str:
        return f"{self.sweep}/{self.model}_{self.percent:g}_{self.share:g}"


def cells(sweep: str, models: Sequence[str], percent: Sequence[float]) -> list[Cell]:
    """All runs of a seed, those that compare the models first."""
    main = [name for name in models if "_" not in name]
    found = [Cell(sweep, name, p) for p in percent for name in main]
    if sweep == "part":
        ends = (min(percent), max(percent))
        found += [Cell(sweep, name, p) for p in ends for name in models if "_" in name]
        found += [Cell(sweep, name, ends[1], share) for share in SHORTER for name in main]
    return found


def left_out(number: int) -> bool:
    """Whether a class is one of those of the ridge regression."""
    return number % 5 in (1, 3)


def draw(data: Path, sweep: str, percent: float, seed: int, file: Path) -> None:
    """A CSV of the images of a run; sweep "few-shot" is of those of the ridge regression."""

    def choose(number: int, name: str, paths: list[Path]) -> dict[str, Sequence[Path]] | None:
        if sweep != "all" and left_out(number) == (sweep == "part"):
            return None
        count = max(round(VAL_SHARE * len(paths)), 1)
        paths = shuffled(paths, f"0 {name}")
        rest = shuffled(paths[count:], f"{seed} {name}")
        if sweep == "few-shot":
            return {"train": rest[:POOL]}
        size = max(round(len(rest) * percent / 100), 1)
        return {"train": rest[:size], "val": paths[:count]}

    draw_images(data, file, choose)


def few_shot(run: Path, images: Path, device: str) -> dict[str, float]:
    """Shots -> mean accuracy over the draws, of ridge regression on the features of a run."""
    reading = Reading(batch_size=256, num_workers=0)
    frozen = Frozen.load(str(run / "model"), "pre_logits", reading, device=device)
    bench = Bench.open(frozen, "left-out classes", root=str(images))
    train, test = bench.features("train"), bench.features("test")
    sets = (train.values, train.labels), (test.values, test.labels)
    shots = [count for count in SHOTS if count <= min(bench.data.counts)]
    found = few_shot_accuracy(*sets, bench.data.classes, shots=shots, seeds=range(DRAWS))
    return {str(count): statistics.mean(values) for count, values in found.items()}


def result(cell: Cell, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """The row of a run, which is made where it is not there yet."""
    data, runs = options.data.resolve(), options.runs.resolve()
    manifest = runs / cell.sweep / f"images_{cell.percent:g}_{seed}.csv"
    folder = runs / f"{cell.name}_{seed}"
    file = folder.with_name(f"{folder.name}_row.json")
    if finished(folder) is None:
        draw(data, cell.sweep, cell.percent, seed, manifest)
    arguments = [*options.models[cell.model], "--data.root", str(manifest)]
    arguments += ["--data.batch_size", str(BATCH), "--seed_everything", str(seed)]
    arguments += schedule(round(options.steps * cell.share), VALIDATIONS, options.device)
    summary = trained([*arguments, *options.rest], folder)
    if file.is_file():
        return json.loads(file.read_text(encoding="utf-8"))
    row = {**vars(cell), "seed": seed, **figures(summary, folder)}
    if cell.sweep == "part":
        images = runs / f"few-shot_{seed}.csv"
        draw(data, "few-shot", 100, seed, images)
        row["few_shot"] = few_shot(folder, images, options.device)
    save(row, file)
    for name in ("checkpoints", "model"):
        shutil.rmtree(folder / name, ignore_errors=True)
    return row


def figures(summary: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What a finished run has reached, and what it cost."""
    counted = work(config_from_dict(summary["model"]))
    losses, scores = curve(folder, "train/loss"), curve(folder, "val/acc1")
    return {
        "images": summary["images"],
        "steps": summary["steps"],
        "images_seen": summary["images_seen"],
        "accuracy": summary["metrics"]["test/acc1"],
        "best_val": max(scores),
        "last_val": scores[-1],
        "last_val_loss": curve(folder, "val/loss")[-1],
        "last_train_loss": statistics.mean(losses[-max(len(losses) // 10, 1) :]),
        "parameters": counted.params,
        "flops": counted.flops,
        "training_flops": counted.training_flops,
        "precision": summary["precision"],
        "cpu_seconds": summary["cpu_seconds"],
    }


def content(rows: Rows, options: argparse.Namespace) -> dict[str, Any]:
    """The results file."""
    names = ("steps", "seeds", "percent", "device")
    settings = {name: getattr(options, name) for name in names}
    settings |= {"batch": BATCH, "validations": VALIDATIONS, "shots": SHOTS, "draws": DRAWS}
    settings |= {"models": {name: shlex.join(words) for name, words in options.models.items()}}
    settings |= {"options": options.rest}
    return document("data size", rows, settings=settings, data=options.data.resolve().name)


def main() -> None:
    parser = arguments(__doc__, STEPS)
    parser.add_argument("--percent", type=float, nargs="+", default=PERCENT, help="of train")
    parser.add_argument("--models", nargs="+", metavar="NAME=RECIPE", help="instead of our own")
    options = parser.parse_args()
    given = [word.partition("=") for word in options.models or ()]
    own = {"vit": MODELS["vit_32"]} if options.quick else MODELS
    options.models = {name: ["-c", recipe] for name, _, recipe in given} or own
    if options.quick:
        options.seeds, options.steps, options.percent = 1, 4, [50, 100]
    name = on_device("papers/data_size/results", options.device)
    rows: Rows = []
    for sweep, seed in itertools.product(SWEEPS, range(options.seeds)):
        for cell in cells(sweep, [*options.models], options.percent):
            rows.append(result(cell, seed, options))
            save(content(rows, options), target(options, name))
    publish(content(rows, options), options, name)


if __name__ == "__main__":
    main()
