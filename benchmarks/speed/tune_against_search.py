"""`vit tune` against the default recipe, the grid of `vit transfer`, and a random search.

    python -m benchmarks.speed.tune_against_search --data cifar10/ --photos ANTS_AND_BEES \\
        --weights DINOV2 --runs DIR [--budget 10m] [--image-size 56] [--draws 3] \\
        [--per-class 20 200] [--toy]

Three draws of each set: photos, of which the seed holds out test, and 20 and 200 images per class
of CIFAR-10 (JPEG); all images at one size where `--image-size` names it. The grid is as long as the
runs of `vit tune`. The random search trains cells of the same space in full, in an order that the
seed draws, for as many CPU seconds of training as the cells of `vit tune` took, and compares them
on the same val. Each method's choice is trained with three seeds; `difference` is that to the
default's runs on test, by images, as `vit tune` prints it. `--toy`: one small set, one draw.
"""

import json
import random
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.harness import (
    Rows,
    against,
    arguments,
    document,
    draw_images,
    publish,
    run_fit,
    shuffled,
    timed,
)
from vit.extensions.tune.space import Encoder, ordered, words
from vit.weights.pretrained import inspect_pretrained

VIT = (sys.executable, "-m", "vit")
SEEDS = 3
TESTS = 100
"""Test images per class of CIFAR."""
TOY = ("--trainer.accelerator=cpu", "--data.loading.num_workers=0")


def cpu_seconds(runs: Sequence[Path]) -> float:
    """CPU seconds of trainings."""
    summaries = [json.loads((run / "summary.json").read_text()) for run in runs]
    return sum(summary["train_cpu_seconds"] for summary in summaries)


def sources(options: Namespace) -> dict[str, tuple[int, str]]:
    """Name -> seed and images of each draw of each set."""
    found: dict[str, tuple[int, str]] = {}
    for seed in range(1 if options.toy else options.draws):
        for count in [4] if options.toy else options.per_class:

            def choose(_: int, name: str, paths: list[Path]) -> Any:
                return {"train": shuffled(paths, f"{seed} {name}")[:count]}  # noqa: B023

            file: Path = options.runs / f"cifar10-{count}-draw{seed}.csv"
            draw_images(options.data, file, choose, 5 if options.toy else TESTS)
            found[file.stem] = seed, str(file)
        if not options.toy and options.photos:
            found[f"photos-draw{seed}"] = seed, str(options.photos)
    return found


def tuned(out: Path, shared: list[str], seed: int, options: Namespace) -> dict[str, list[Path]]:
    """Runs of the winner and of the default, on test."""
    budget = ["--budget", options.budget, "--pretrained", str(options.weights)]
    command = [*VIT, "tune", shared[0], *budget, "--seed", str(seed), "--run_dir", str(out)]
    timed([*command, "--", *shared[1:]])
    names = {kind: [kind, *(f"{kind}_seed{s}" for s in (1, 2))] for kind in ("best", "default")}
    runs = {kind: [out / name for name in each] for kind, each in names.items()}
    whole = {
        k: [run for run in each if (run / "summary.json").is_file()] for k, each in runs.items()
    }
    return {"tune": whole["best"], "default": whole["default"] or whole["best"]}


def searched(out: Path, shared: list[str], seed: int, options: Namespace, tune: Path) -> list[Path]:
    """Runs of the best cell of a random search that took as long as the cells in `tune`."""
    cells = [path.parent for path in (tune / "cells").glob("*/summary.json")]
    limit, facts = cpu_seconds(cells), json.loads((tune / "options.json").read_text())
    size = facts["data"]["image_size"]
    patch = inspect_pretrained(options.weights).config.patch_size  # pyright: ignore
    encoders = [Encoder(str(options.weights), "", tuple(np.broadcast_to(size, 2).tolist()), patch)]
    steps = json.loads((tune / "summary.json").read_text())["steps"]
    # A teacher would be a run beside the search.
    order = [pair for pair in ordered(encoders, 0).items() if "teacher" not in pair[1]]
    random.Random(seed).shuffle(order)
    cut = f"--data.splits.val_fraction={facts['data']['splits']['val_fraction']}"
    on_val = [cut, "--trainer.limit_val_batches=0", "--final_split=val"]
    shared = [*shared, f"--data.splits.seed={seed}"]
    scores: dict[str, float] = {}
    used = 0.0
    for name, cell in order:
        if used >= limit:
            break
        summary = run_fit([*shared, *words(cell, encoders, steps), *on_val], out / "search" / name)
        used += summary["train_cpu_seconds"]
        scores[name] = summary["metrics"]["val/acc1"]
    best = dict(order)[max(scores, key=lambda name: scores[name])]
    runs = [out / f"seed{s}" for s in range(SEEDS)]
    for number, run in enumerate(runs):
        run_fit([*shared, *words(best, encoders, steps), f"--seed_everything={seed + number}"], run)
    return runs


def transferred(
    out: Path, shared: list[str], seed: int, options: Namespace, tune: Path
) -> list[Path]:
    """Final runs of `vit transfer`'s grid, each as long as the runs in `tune`."""
    data = f"set={shared[0].removeprefix('--data=')}"
    steps = ["--steps", json.loads((tune / "summary.json").read_text())["steps"]]
    command = [*VIT, "transfer", options.weights, "--data", data, "--seeds", SEEDS, "--out", out]
    timed([*command, *steps, "--", *shared[1:], f"--data.splits.seed={seed}"])
    return [out / "set" / f"seed-{s}" for s in range(SEEDS)]


def main() -> None:
    parser = arguments(__doc__, "data", "weights", "runs", quick=False)
    parser.add_argument("--photos", type=Path, help="class folders; left out where not given")
    parser.add_argument("--budget", default="10m")
    parser.add_argument("--image-size", type=int, metavar="N", help="pixels of all images")
    parser.add_argument("--draws", type=int, default=3, metavar="N")
    parser.add_argument("--per-class", type=int, nargs="+", default=[20, 200], metavar="N")
    parser.add_argument("--toy", action="store_true", help="one small set, one draw")
    options = parser.parse_args()
    rows: Rows = []
    for name, (seed, data) in sources(options).items():
        sized = [f"--data.image_size={options.image_size}"] if options.image_size else []
        shared = [f"--data={data}", *sized, *(TOY if options.toy else ())]
        out = options.runs / name
        runs = tuned(out / "tune", shared, seed, options)
        runs["random search"] = searched(out / "random", shared, seed, options, out / "tune")
        runs["grid of transfer"] = transferred(
            out / "transfer", shared, seed, options, out / "tune"
        )
        for row in against("default", runs):
            rows.append({"set": name, **row})
            print(rows[-1], file=sys.stderr)
    publish(document("tune against search", rows), options, None)


if __name__ == "__main__":
    main()
