"""What one stable run that is cooled down from several steps saves (`--cooldown`).

    python -m benchmarks.speed.schedules --data cifar10/ --runs DIR [--toy]

Lengths of 75, 150 and 300 steps of `-c cifar10` of half the width, each planned with the recipe's
linear decay, against one stable run which is cooled down over the last fifth of each length.
`share` is the CPU seconds of all that was trained over those of the three planned runs.

Three seeds. `difference` is that of accuracy on test to the planned run of that length, with an
interval over images and seeds; a finished run is reused.
"""

from pathlib import Path

from benchmarks.lib.harness import (
    against,
    arguments,
    document,
    draw_images,
    publish,
    run_fit,
    shuffled,
)

SEEDS = 3
COOLED = 0.2
RECIPE = (
    *("-c", "cifar10", "--model.architecture.width=64", "--model.architecture.mlp_dim=256"),
    *("--data.splits.val_fraction=0", "--trainer.limit_val_batches=0"),
    *("--trainer.accelerator=cpu", "--data.loading.num_workers=0"),
)
Arms = dict[str, list[Path]]
"""Arm -> run of each seed."""


def cost(run: Path, words: list[str]) -> float:
    """CPU seconds of a training, which is made if it is not there."""
    return run_fit(words, run)["train_cpu_seconds"]


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


def main() -> None:
    parser = arguments(__doc__, "data", "runs", quick=False)
    parser.add_argument("--toy", action="store_true", help="few images and steps")
    options = parser.parse_args()
    data: Path = options.data
    if options.toy:
        data = options.runs / "few.csv"
        draw_images(
            options.data, data, lambda _, name, paths: {"train": shuffled(paths, name)[:4]}, 5
        )
    lengths = (5, 10) if options.toy else (75, 150, 300)
    runs, share = cooled([*RECIPE, f"--data={data}"], lengths, options.runs)
    rows = [
        {"steps": length, **row, "share": share}
        for length, arms in runs.items()
        for row in against("planned", arms)
    ]
    publish(document("schedules", rows), options, None if options.toy else "results/schedules_cpu")


if __name__ == "__main__":
    main()
