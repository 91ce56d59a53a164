"""Accuracy on CIFAR-10 after a fixed time of training: our ViT and timm's VisionTransformer.

    python -m benchmarks.speed.time_to_accuracy --data.root cifar10/ --seconds 600
    python -m benchmarks.speed.time_to_accuracy --data.root cifar10/ --device cuda --seconds 120

--data.root is a folder with train/ and test/, each with one folder per class, and images of 32 x 32
pixels. Every arm trains on all of train and scores the weights of its last step on all of test:

- vit: `vit fit -c cifar10 --budget ...`, of training alone, on a GPU with --model.compile true
- vit_patches: the same with plain patches of 4 pixels
- vit_hybrid: the same of `-c cifar10/hybrid`
- timm: "default": float32, torch.optim.AdamW, torchvision's files and transforms
- timm_best: "best settings": bfloat16 if the machine supports it, fused AdamW, images in memory,
  and explicit attention on a CPU or torch.compile on a GPU
- timm_recipe: the same with the width, depth, optimizer, schedule, augmentation and loss of our
  recipe, but plain patches instead of a convolutional root, a class token and learned positions

timm and timm_best have width 192 and depth 6. Options after -- go to all arms of vit, and to
timm_recipe if they concern what it shares.

The budget is in wall-clock seconds and covers steps, image loading in every epoch, and compilation.
Arms that keep images in memory decode them before the clock starts; scoring comes after it stops.
All schedules end with the budget. `seconds` and `cpu_seconds` in the results include that decoding,
but no evaluation.

Each run is a separate process; all arms run with one seed before the next seed starts. An
interrupted command reuses finished runs, and restarts an unfinished one. OMP_NUM_THREADS sets the
number of threads. Writes benchmarks/results/time_to_accuracy_cpu.json or _gpu.json after every
seed, keeping rows of other arms with the same settings; the last line of output is that JSON.
"""

import json
import os
import shutil
import statistics
import sys
from argparse import Namespace
from dataclasses import asdict
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from benchmarks.lib.harness import (
    Rows,
    arguments,
    commit,
    finished,
    hardware,
    mean_and_std,
    portable,
    run_fit,
    run_once,
    save,
    target,
    versions,
)
from benchmarks.speed.time_peers import RECIPE, Job

OURS = {
    "vit": ("-c", RECIPE),
    "vit_patches": ("-c", RECIPE, "--model.architecture.stem_depths", "null"),
    "vit_hybrid": ("-c", "cifar10/hybrid"),
}
ARMS = {
    "vit": "vit",
    "vit_patches": "vit, plain patches",
    "vit_hybrid": "vit, 3x3 convolutions first",
    "timm": "timm, default",
    "timm_best": "timm, best settings",
    "timm_recipe": "timm, our sizes and recipe",
}


def fit_arguments(arm: str, options: Namespace, seed: int) -> list[str]:
    """Arguments of `vit fit`, without the run directory."""
    return [
        *(*OURS[arm], "--data.splits.val_fraction", "0", "--budget", f"{options.seconds}s"),
        *("--model.schedule.length.only_training", "true"),
        *("--trainer.accelerator", options.device, "--trainer.devices", "1"),
        *("--data.root", str(options.root)),
        *(("--model.compile", "true") if options.device == "cuda" else ()),
        *("--trainer.limit_val_batches", "0", *options.rest, "--seed_everything", str(seed)),
    ]


def cell(arm: str, seed: int, options: Namespace) -> dict[str, Any]:
    """The summary of one arm and seed, trained if needed; SystemExit if made with other options."""
    folder = options.runs / arm / f"seed-{seed}"
    if finished(folder) is None:
        # An interrupted run is not resumed, because its time must be that of one process.
        shutil.rmtree(folder, ignore_errors=True)
    if arm in OURS:
        summary = run_fit(fit_arguments(arm, options, seed), folder)
        settings = {name: summary[name] for name in ("command", "precision", "model")}
        return summary | {"settings": settings | {"command": portable(settings["command"])}}
    job = asdict(Job(arm, str(options.root), seed, options.seconds, options.device, options.rest))
    command = [sys.executable, "-m", "benchmarks.speed.time_peers", json.dumps(job), str(folder)]
    return run_once(command, folder, job)


def row(arm: str, summaries: Rows) -> dict[str, Any]:
    """One arm: the accuracy of each seed, their mean and deviation, and the mean cost."""
    accuracies = [summary["metrics"]["test/acc1"] for summary in summaries]
    costs = {"images_seen": "images_seen", "steps": "steps", "seconds": "train_seconds"}
    costs |= {"cpu_seconds": "train_cpu_seconds"}
    mean, std = mean_and_std(accuracies)
    return {
        "arm": arm,
        "label": ARMS[arm],
        "n": len(summaries),
        "accuracies": accuracies,
        "mean": mean,
        "std": std,
        **{name: statistics.mean(s[source] for s in summaries) for name, source in costs.items()},
        **{name: summaries[0][name] for name in ("images", "parameters", "settings")},
    }


def parsed(words: list[str]) -> Namespace:
    """The command line."""
    parser = arguments(__doc__, quick=False)
    add = parser.add_argument
    add("--data.root", dest="root", type=Path, required=True, help="folder with train/ and test/")
    add("--seconds", type=int, default=600, help="of training (default 600)")
    add("--seeds", type=int, default=3, help="default 3")
    add("--arms", nargs="+", choices=ARMS, default=list(ARMS), metavar="ARM")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--runs", type=Path, default=Path("runs/time_to_accuracy"))
    add("rest", nargs="*", help="after --: options of vit fit")
    options = parser.parse_args(words)
    kind = "cpu" if options.device == "cpu" else "gpu"
    options.results = target(options, f"results/time_to_accuracy_{kind}")
    return options


def rows_of_other_arms(options: Namespace, settings: dict[str, Any]) -> Rows:
    """Rows of the results file for arms that are not selected, if the settings are the same."""
    if not options.results.is_file():
        return []
    document = json.loads(options.results.read_text())
    if any(document.get(name) != value for name, value in settings.items()):
        return []
    return [row for row in document["rows"] if row["arm"] not in options.arms]


def main(args: list[str]) -> dict[str, Any]:
    options = parsed(args)
    # Unless it is set, `vit fit` may use fewer threads for small models than the other arms.
    os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
    summaries: dict[str, Rows] = {arm: [] for arm in options.arms}
    settings = {
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "budget_seconds": options.seconds,
        "threads": torch.get_num_threads(),
        "folder": options.root.resolve().name,
        "options": options.rest,
        "hardware": hardware(),
        "versions": {**versions(), "timm": version("timm")},
    }
    others = rows_of_other_arms(options, settings)
    document: dict[str, Any] = {}
    for seed in range(options.seeds):
        for arm, runs in summaries.items():
            runs.append(cell(arm, seed, options))
        rows = [row(arm, runs) for arm, runs in summaries.items()] + others
        rows.sort(key=lambda result: list(ARMS).index(result["arm"]))
        facts = {"date": date.today().isoformat(), "commit": commit(), "rows": rows}
        document = {"what": "time to accuracy", **settings, **facts}
        save(document, options.results)
        for r in rows:
            spread = "" if r["std"] is None else f" ± {100 * r['std']:.1f}"
            costs = f"{r['images_seen']:,.0f} images, {r['seconds']:.0f} s"
            print(f"{r['label']:28} {100 * r['mean']:.1f}{spread} %  {costs}", flush=True)
    return document


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
