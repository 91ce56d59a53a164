"""Masked patch prediction on images without labels, then fine-tuning on few labels, on CIFAR-10.

    python benchmarks/masked_patches.py --data cifar10/ [--seeds 3] [--runs DIR]

`--data` has train/ and test/ with one folder per class. The recipe pretrain/masked_patches_cifar10
sees all of train without labels. Then the recipe cifar10/masked_patches trains on 1 and 10 % of the
labels, the same share of each class, from that encoder and from random weights, with equal steps,
batch, learning rate and augmentation. There is no validation set: the weights of the last step are
scored on test. With --whole-budget-seeds N, N seeds also train from random weights for the steps of
pre-training and fine-tuning together.

An interrupted command resumes and reuses finished runs. Other options need another --runs;
--encoder uses an existing pre-training run. Writes benchmarks/results/masked_patches_cifar10.json;
the last line of output is that JSON.
"""

import argparse
import json
import random
import shlex
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from cells import note_options, run_cell, write_manifest  # noqa: E402
from collect import KEPT, portable, row  # noqa: E402

SUBSET_SEED = 0
STARTS = ("random weights", "pre-trained", "random weights, whole budget")


def write_subset(data: Path, percent: float, manifest: Path) -> int:
    """A CSV of `percent` of the training images of each class, and all test images.

    Deterministic; smaller subsets are contained in larger ones. Returns the number of training
    images.
    """
    rows: list[tuple[str, str, str]] = []
    for folder in sorted(p for p in (data / "train").iterdir() if p.is_dir()):
        names = sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))
        random.Random(f"{SUBSET_SEED} {folder.name}").shuffle(names)
        kept = names[: max(round(len(names) * percent / 100), 1)]
        rows += [(str(folder / name), folder.name, "train") for name in kept]
        test = sorted(p for p in (data / "test" / folder.name).iterdir())
        rows += [(str(path), folder.name, "test") for path in test]
    write_manifest(rows, manifest)
    return sum(split == "train" for *_, split in rows)


def cell(arguments: list[str], folder: Path) -> dict[str, Any]:
    """The summary of a run, trained if needed; SystemExit if it was made with other options."""
    note_options(arguments, folder)
    return run_cell(arguments, folder)


@dataclass
class Arm:
    """Runs that differ only in their seed."""

    label: str
    folders: list[Path] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)

    def run(self, arguments: list[str], folder: Path) -> None:
        summary = cell(arguments, folder)
        self.folders.append(folder)
        self.accuracies.append(summary["metrics"]["test/acc1"])
        self.cpu_seconds.append(summary["train_cpu_seconds"])

    def as_row(self) -> dict[str, Any]:
        kept = {"accuracies": self.accuracies, "cpu_seconds": self.cpu_seconds}
        return {**row(self.label, self.folders), **kept}


def pretrained(options: argparse.Namespace) -> tuple[Path, dict[str, Any]]:
    """The pre-training run, and its entry in the results."""
    folder = options.encoder or options.runs / "pretrained"
    if options.encoder is None:
        arguments = ["-c", "pretrain/masked_patches_cifar10", "--data.root", str(options.data)]
        arguments += ["--trainer.max_epochs", "-1", "--final_split", "val"]
        arguments += ["--trainer.max_steps", str(options.pretrain_steps)]
        cell([*arguments, *shlex.split(options.pretrain_options)], folder)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    entry = {name: summary[name] for name in ("images", "metrics", *KEPT)}
    return folder, {"command": portable(summary["command"]), **entry}


def margins(arms: dict[float, dict[str, Arm]]) -> list[dict[str, Any]]:
    """Accuracy from the encoder minus accuracy from random weights, by seed."""
    rows = []
    for percent, by_start in arms.items():
        pairs = zip(
            by_start["pre-trained"].accuracies, by_start["random weights"].accuracies, strict=False
        )
        gains = [with_it - without for with_it, without in pairs]
        if gains:
            spread = statistics.stdev(gains) if len(gains) > 1 else None
            mean = statistics.mean(gains)
            rows.append({"percent": percent, "mean": mean, "std": spread, "by_seed": gains})
    return rows


def main(args: list[str]) -> dict[str, Any]:
    options = parsed(args)
    encoder, pretraining = pretrained(options)
    arms: dict[float, dict[str, Arm]] = {}
    manifests = {p: options.runs / f"labels_{p:g}_percent.csv" for p in options.percent}
    for percent, manifest in manifests.items():
        images = write_subset(options.data, percent, manifest)
        arms[percent] = {s: Arm(f"{percent:g} % of the labels ({images:,}), {s}") for s in STARTS}
    document: dict[str, Any] = {}
    for seed in range(options.seeds):
        for percent, by_start in arms.items():
            for start, arm in by_start.items():
                if start == STARTS[2] and seed >= options.whole_budget_seeds:
                    continue
                steps = options.finetune_steps
                steps += pretraining["steps"] if start == STARTS[2] else 0
                arguments = ["-c", "cifar10/masked_patches", "--data.root", str(manifests[percent])]
                arguments += ["--data.splits.val_fraction", "0", "--trainer.max_epochs", "-1"]
                arguments += ["--trainer.max_steps", str(steps), "--seed_everything", str(seed)]
                arguments += shlex.split(options.finetune_options)
                if start == STARTS[1]:
                    arguments += ["--model.pretrained", str(encoder)]
                    arguments += shlex.split(options.pretrained_options)
                name = start.replace(", ", " ").replace(" ", "_")
                folder = options.runs / f"{percent:g}_percent" / name / f"seed-{seed}"
                arm.run(arguments, folder)
        rows = [arm.as_row() for by in arms.values() for arm in by.values() if arm.folders]
        document = {"pretraining": pretraining, "margins": margins(arms), "rows": rows}
        options.results.parent.mkdir(parents=True, exist_ok=True)
        options.results.write_text(json.dumps(document, indent=2) + "\n")
    return document


def parsed(args: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with train/ and test/")
    parser.add_argument("--runs", type=Path, default=Path("runs/masked_patches"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--whole-budget-seeds", type=int, default=0)
    parser.add_argument("--percent", type=float, nargs="+", default=[1, 10], help="of the labels")
    parser.add_argument("--pretrain-steps", type=int, default=2300, help="each with 128 images")
    parser.add_argument("--finetune-steps", type=int, default=300, help="each with 128 images")
    parser.add_argument("--pretrain-options", default="", help="more options of vit fit")
    parser.add_argument("--finetune-options", default="", help="the same, for all fine-tunings")
    parser.add_argument(
        "--pretrained-options", default="", help="the same, for those from the encoder"
    )
    parser.add_argument("--encoder", type=Path, help="a finished pre-training run")
    parser.add_argument(
        "--results", type=Path, default=HERE / "results" / "masked_patches_cifar10.json"
    )
    return parser.parse_args(args)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
