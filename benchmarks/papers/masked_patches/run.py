"""Masked patch prediction on images without labels, then fine-tuning on few labels, on CIFAR-10.

    python -m benchmarks.papers.masked_patches.run --data cifar10/ [--seeds 3] [--runs DIR]

`--data` has train/ and test/ with one folder per class. The recipe pretrain/masked_patches_cifar10
sees all of train without labels. Then the recipe cifar10/masked_patches trains on 1 and 10 % of the
labels, the same share of each class, from that encoder and from random weights, with equal steps,
batch, learning rate and augmentation. There is no validation set: the weights of the last step are
scored on test.

An interrupted command resumes and reuses finished runs. Other options need another --runs. Options
after -- go to every `vit fit`.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.lib.harness import (
    KEPT,
    Rows,
    arguments,
    draw_images,
    mean_and_std,
    portable,
    run_fit,
    save,
    seeds_row,
    shuffled,
    target,
)

STARTS = ("random weights", "pre-trained")


def write_subset(data: Path, percent: float, manifest: Path) -> int:
    """A CSV of `percent` of the training images of each class, and all test images.

    Deterministic; smaller subsets are contained in larger ones. Returns the number of training
    images.
    """

    def choose(_: int, name: str, paths: list[Path]) -> dict[str, Sequence[Path]]:
        size = max(round(len(paths) * percent / 100), 1)
        return {"train": shuffled(paths, f"0 {name}")[:size]}

    return draw_images(data, manifest, choose)["train"]


def pretrain(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The entry of the pre-training run in the results."""
    words = ["-c", "pretrain/masked_patches_cifar10", "--data.root", str(options.data)]
    words += ["--trainer.max_epochs", "-1", "--final_split", "val"]
    words += ["--trainer.max_steps", str(options.pretrain_steps), *options.rest]
    summary = run_fit(words, folder)
    entry = {name: summary[name] for name in ("images", "metrics", *KEPT)}
    return {"command": portable(summary["command"]), **entry}


def finetune(options: argparse.Namespace, manifest: Path, start: str, seed: int) -> dict[str, Any]:
    """The summary of one run on the labels of a manifest."""
    words = ["-c", "cifar10/masked_patches", "--data.root", str(manifest)]
    words += ["--data.splits.val_fraction", "0", "--trainer.max_epochs", "-1"]
    words += ["--trainer.max_steps", str(options.finetune_steps)]
    words += ["--seed_everything", str(seed), *options.rest]
    if start == "pre-trained":
        words += ["--model.pretrained", str(options.runs / "pretrained")]
    name = start.replace(" ", "_")
    return run_fit(words, options.runs / manifest.stem / name / f"seed-{seed}")


def row(label: str, summaries: Rows) -> dict[str, Any]:
    """Mean and spread over the seeds, and each of them."""
    accuracies = [summary["metrics"]["test/acc1"] for summary in summaries]
    seconds = [summary["train_cpu_seconds"] for summary in summaries]
    return {**seeds_row(label, summaries), "accuracies": accuracies, "cpu_seconds": seconds}


def margin(percent: float, rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Accuracy from the encoder minus accuracy from random weights, by seed."""
    pairs = zip(*(rows[start]["accuracies"] for start in reversed(STARTS)), strict=True)
    gains = [ours - without for ours, without in pairs]
    mean, std = mean_and_std(gains)
    return {"percent": percent, "mean": mean, "std": std, "by_seed": gains}


def main(args: list[str]) -> dict[str, Any]:
    options = parsed(args)
    pretraining = pretrain(options, options.runs / "pretrained")
    manifests = {p: options.runs / f"{p:g}_percent.csv" for p in options.percent}
    images = {percent: write_subset(options.data, percent, f) for percent, f in manifests.items()}
    summaries: dict[tuple[float, str], Rows] = {(p, s): [] for p in manifests for s in STARTS}
    document: dict[str, Any] = {}
    for seed in range(options.seeds):
        for (percent, start), finished in summaries.items():
            finished.append(finetune(options, manifests[percent], start, seed))
        rows = {
            (percent, start): row(
                f"{percent:g} % of the labels ({images[percent]:,}), {start}", finished
            )
            for (percent, start), finished in summaries.items()
        }
        margins = [margin(p, {start: rows[p, start] for start in STARTS}) for p in manifests]
        document = {"pretraining": pretraining, "margins": margins, "rows": [*rows.values()]}
        save(document, target(options, "papers/masked_patches/results"))
    return document


def parsed(words: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = arguments(__doc__, "data", quick=False)
    parser.add_argument("--runs", type=Path, default=Path("runs/masked_patches"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--percent", type=float, nargs="+", default=[1, 10], help="of the labels")
    parser.add_argument("--pretrain-steps", type=int, default=2300, help="each with 128 images")
    parser.add_argument("--finetune-steps", type=int, default=300, help="each with 128 images")
    parser.add_argument("rest", nargs="*", help="after --: options of every `vit fit`")
    return parser.parse_args(words)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
