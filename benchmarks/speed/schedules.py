"""What smaller images first (`data.sizes`) and one stable run with cooldowns (`--cooldown`) save.

    python -m benchmarks.speed.schedules --data cifar10/ --weights DINOV2 --runs DIR [--toy]

- sizes: 300 steps of `-c cifar10` of half the width, and fine-tuning on 40 images per class of
  CIFAR-10 (JPEG) at 56 pixels. Beside the run of one size stands one of the smaller sizes first,
  and one of one size with fewer steps, as many as took the CPU seconds of the run of sizes.
- cooldown: lengths of 75, 150 and 300 steps of the same, each planned with the recipe's linear
  decay, against one stable run which is cooled down over the last fifth of each length. `share` is
  the CPU seconds of all that was trained over those of the three planned runs.

Three seeds. `difference` is that of accuracy on test to the run of one size, or to the planned run
of that length, with an interval over images and seeds; a finished run is reused.
"""

import sys
from argparse import Namespace
from pathlib import Path

from benchmarks.lib.harness import (
    Rows,
    arguments,
    document,
    draw_images,
    hits,
    mean_and_std,
    publish,
    run_fit,
    shuffled,
)
from vit.extensions.evaluation.paired import mean_difference

SEEDS = 3
PER_CLASS, TESTS = 40, 100
"""Images of fine-tuning in train and in test, of each class of CIFAR."""
COOLED = 0.2
QUIET = ("--trainer.accelerator=cpu", "--trainer.limit_val_batches=0")
WHOLE = ("--data.splits.val_fraction=0",)
TOY = ("--data.loading.num_workers=0",)
Arms = dict[str, list[Path]]
"""Arm -> run of each seed."""


def cost(run: Path, words: list[str]) -> float:
    """CPU seconds of a training, which is made if it is not there."""
    return run_fit(words, run)["train_cpu_seconds"]


def of_sizes(words: list[str], steps: int, sizes: str, out: Path) -> tuple[Arms, dict[str, float]]:
    """Runs of one size, of sizes, and of one size for as long; CPU seconds of each arm."""
    arms: Arms = {"one size": [], "smaller first": [], "one size, as long": []}
    seconds = dict.fromkeys(arms, 0.0)
    for seed in range(SEEDS):
        shared = [*words, f"--seed_everything={seed}"]
        every = {
            "one size": [f"--trainer.max_steps={steps}"],
            "smaller first": [f"--trainer.max_steps={steps}", f"--data.sizes={sizes}"],
        }
        for arm in arms:
            if arm not in every:
                shorter = round(steps * seconds["smaller first"] / seconds["one size"])
                every[arm] = [f"--trainer.max_steps={shorter}"]
            run = out / arm.replace(" ", "_").replace(",", "") / f"seed-{seed}"
            seconds[arm] += cost(run, [*shared, *every[arm]])
            arms[arm].append(run)
    return arms, seconds


def cooled(words: list[str], lengths: tuple[int, ...], out: Path) -> tuple[dict[int, Arms], float]:
    """Planned and cooled runs of each length; share of the CPU seconds of the planned ones."""
    runs: dict[int, Arms] = {length: {"planned": [], "cooled": []} for length in lengths}
    planned = together = 0.0
    for seed in range(SEEDS):
        shared = [*words, f"--seed_everything={seed}"]
        before = 0.0
        for length, arms in runs.items():
            run = out / f"planned-{length}" / f"seed-{seed}"
            planned += cost(run, [*shared, f"--trainer.max_steps={length}"])
            arms["planned"].append(run)
            down = round(COOLED * length)
            # A trunk of its own for each length costs what it adds to the one before it: a stable
            # run of fewer steps is, bit for bit, the beginning of a longer one.
            trunk, end = (out / f"{name}-{length}" / f"seed-{seed}" for name in ("stable", "end"))
            constant = "--model.schedule.decay=constant"
            trained = cost(trunk, [*shared, constant, f"--trainer.max_steps={length - down}"])
            together += trained - before
            before = trained
            together += cost(end, ["--resume", str(trunk), f"--cooldown={down}"])
            arms["cooled"].append(end)
    return runs, together / planned


def compared(setting: str, arms: Arms) -> Rows:
    """A row per arm; but in the first, the difference of its accuracy to that one."""
    first, rows = [hits(run) for run in next(iter(arms.values()))], []
    for arm, runs in arms.items():
        right = [hits(run) for run in runs]
        mean, std = mean_and_std([float(each.mean()) for each in right])
        row = {"setting": setting, "arm": arm, "accuracy": mean, "std": std, "n": len(runs)}
        pairs = [*zip(first, right, strict=True)]
        rows.append({**row, "difference": mean_difference(pairs) if rows else None})
        print(f"{setting}, {arm}: {mean:.4f}, {rows[-1]['difference']}", file=sys.stderr)
    return rows


def settings(options: Namespace) -> dict[str, tuple[list[str], int, str]]:
    """Setting -> options, steps, sizes of the trainings on smaller images."""
    few: Path = options.runs / "few.csv"

    def choose(_: int, name: str, paths: list[Path]) -> dict[str, list[Path]]:
        return {"train": shuffled(paths, name)[: 4 if options.toy else PER_CLASS]}

    draw_images(options.data, few, choose, 5 if options.toy else TESTS)
    whole = f"--data={few if options.toy else options.data}"
    narrow = ("--model.architecture.width=64", "--model.architecture.mlp_dim=256")
    scratch = ["-c", "cifar10", whole, *narrow, *WHOLE, *QUIET]
    tuned = ["-c", "finetune", f"--data={few}", f"--pretrained={options.weights}"]
    tuned += [f"--image-size={28 if options.toy else 56}", *QUIET]
    steps = (4, 4) if options.toy else (300, 100)
    if options.toy:
        scratch, tuned = [*scratch, *TOY], [*tuned, *TOY]
    return {
        "cifar10": (scratch, steps[0], "[16,24]"),
        "finetune": (tuned, steps[1], "[14]" if options.toy else "[28,42]"),
    }


def main() -> None:
    parser = arguments(__doc__, "data", "weights", "runs", quick=False)
    parser.add_argument("--toy", action="store_true", help="few images and steps")
    parser.add_argument("--parts", nargs="+", default=["finetune", "cifar10", "cooldown"])
    options = parser.parse_args()
    rows: Rows = []
    of = settings(options)
    for part in options.parts:
        if part in of:
            arms, seconds = of_sizes(*of[part], options.runs / part)
            first = seconds["one size"]
            rows += [{**row, "share": seconds[row["arm"]] / first} for row in compared(part, arms)]
        else:
            lengths = (5, 10) if options.toy else (75, 150, 300)
            runs, share = cooled(of["cifar10"][0], lengths, options.runs / part)
            for length, arms in runs.items():
                rows += [{**row, "share": share} for row in compared(f"{length} steps", arms)]
    publish(document("schedules", rows), options, None if options.toy else "results/schedules_cpu")


if __name__ == "__main__":
    main()
