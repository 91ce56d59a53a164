"""DINOv2's encoder trained on with other images: neighbours and probe before and after.

    python -m benchmarks.papers.self_supervised.continued --data cifar10/ --runs DIR --weights W

`--data` has train/ and test/ with one folder per class. The recipe is dinov2_continue with images
of 56 pixels, two global crops and four local ones of 28, and 4,096 prototypes, on the images of
train without their labels; nothing is chosen here, so that all seeds are scored alike. Features are
those of papers/pretraining: of the images of 10 % of train, with labels, for those of test. Other
images of test are the labelled ones beside the run. An interrupted command goes on where it was.
"""

import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.lib.harness import (
    Rows,
    arguments,
    class_folders,
    document,
    earlier,
    save,
    target,
    write_manifest,
)
from benchmarks.lib.sweep import schedule, trained
from benchmarks.papers.self_supervised.run import Trial
from vit.hardware import cpu_name

SIDE = 56
SIZES = {
    "--data.image_size": SIDE,
    "--data.crops.local": 4,
    "--data.crops.local_size": 28,
    "--model.heads.prototypes": 4_096,
    "--model.teacher.momentum": 0.99,  # the run is short
    "--data.batch_size": 64,
}
SMALL = {"--model.heads.prototypes": 64, "--model.heads.hidden": 16, "--data.batch_size": 2}
LOOKS = 5
YARDSTICK = slice(400, 600)
"""Images of each class of test, behind those of the scores."""


def yardstick(data: Path, runs: Path) -> Path:
    """A CSV of labelled images that take no part in the scores."""
    file, rows = runs / "yardstick.csv", []
    for folder in class_folders(data, "test"):
        images = sorted(folder.iterdir())
        rows += [(path, folder.name, "train") for path in images[YARDSTICK] or images[-20:]]
    write_manifest(rows, file)
    return file


def main(words: list[str] | None = None) -> dict[str, Any]:
    parser = arguments(__doc__, "data", "runs")
    parser.add_argument("--weights", type=Path, required=True, help="of a DINOv2 ViT")
    parser.add_argument("--steps", type=int, default=500, help="default 500")
    parser.add_argument("--seeds", type=int, default=3, help="default 3")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    trial, labelled = Trial(options), yardstick(options.data.resolve(), options.runs.resolve())
    file = target(options, "papers/self_supervised/continued")
    sizes = SIZES | (SMALL if options.quick else {})
    facts = {"sizes": sizes, "steps": options.steps, "looks": LOOKS}
    rows: Rows = earlier(file, settings=facts).get("rows", [])
    if not rows:
        rows.append({"seed": None, "steps": 0, **trial.scored(options.weights, size=SIDE)})
        save(document("continued", rows, settings=facts), file)
    for seed in range(options.seeds):
        if any(row["seed"] == seed for row in rows):
            continue
        run = options.runs.resolve() / f"continued_{seed}"
        texts = ["-c", "pretrain/dinov2_continue", "--data.root", str(options.data.resolve())]
        texts += ["--model.pretrained", str(options.weights.resolve()), "--final_split", "none"]
        texts += ["--model.yardstick", str(labelled), "--model.looks", str(LOOKS)]
        texts += [word for name, value in sizes.items() for word in (name, str(value))]
        texts += ["--seed_everything", str(seed), *schedule(options.steps, 1, "cpu")]
        summary = trained(texts, run)
        row = {"seed": seed, "steps": summary["steps"], "kept": summary["checkpoint"]["step"]}
        row |= {"cpu_seconds": round(summary["cpu_seconds"], 1), "cpu": cpu_name()}
        rows.append({**row, **trial.scored(run, size=SIDE)})
        print(rows[-1], file=sys.stderr, flush=True)
        save(document("continued", rows, settings=facts), file)
    return document("continued", rows, settings=facts)


if __name__ == "__main__":
    main()
