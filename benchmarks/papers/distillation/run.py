"""Whether a student learns more from a teacher at equal CPU time, with its answers cached or not.

    OMP_NUM_THREADS=1 python -m benchmarks.papers.distillation.run --data cifar10/ --runs DIR

`--data` has train/ and test/ with one folder per class. The teacher is the hybrid of the recipe
cifar10/equal_flops_hybrid after an hour; the student has plain patches of 8 pixels, a fifth of the
teacher's operations, and the optimizer, crops and schedule of the recipe cifar10. Arms:

- labels: no teacher.
- teacher: its probabilities alone at temperature 2, as of the recipe distill; it answers every
  image in every epoch.
- cache: the same with --teacher-cache 2; its answers count.
- filled: the same for as many epochs as `labels`, as if the answers had been there.

The length of an arm is a whole number of epochs, by the CPU seconds that an epoch with and one
without a teacher take in two trials before. All of it was fixed before the first result. An
interrupted command goes on where it was.
"""

from argparse import Namespace
from typing import Any

from benchmarks.lib.harness import Rows, arguments, document, publish, seeds_row
from benchmarks.lib.sweep import trained

NAME, CROPS = "papers/distillation/results", 2
PLAIN = ("--model.architecture.stem_depths", "null", "--model.architecture.patch_size", "8")
SOFT = tuple(
    word
    for name, value in (("kind", "soft"), ("alpha", "1"), ("temperature", "2"))
    for word in (f"--model.loss.teacher.{name}", value)
)
QUICK = ("--trainer.limit_train_batches", "2")


def run(given: Namespace, name: str, seed: int, *words: str) -> dict[str, Any]:
    """The summary of a run, which is made if it is not there."""
    data = ("--data.root", str(given.data), "--data.splits.val_fraction", "0")
    quick = QUICK if given.quick else ()
    words = (*words[:2], *data, *words[2:], *quick, "--seed_everything", str(seed))
    return trained([*words], given.runs / name)


def train_teacher(given: Namespace) -> dict[str, Any]:
    length = "--model.schedule.length.only_training"
    limit = ("--budget", f"{given.teacher_seconds}s", length, "true")
    noise = ("--data.augment.crop", "simple", "--model.mixing.mixup", "0.2")
    return run(given, "teacher", 0, "-c", "cifar10/equal_flops_hybrid", *limit, *noise)


def train_student(given: Namespace, arm: str, epochs: int, name: str, seed: int) -> dict[str, Any]:
    words = ["-c", "cifar10", "--trainer.max_epochs", str(epochs), *PLAIN]
    if arm != "labels":
        words += ["--teacher", str(given.runs / "teacher"), *SOFT]
    if arm in ("cache", "filled"):
        words += ["--teacher-cache", str(CROPS)]
    return run(given, name, seed, *words)


def lengths(seconds: float, alone: float, taught: float) -> dict[str, int]:
    """Epochs of each arm that take `seconds` of the CPU, from those of one epoch."""
    cached = CROPS + round((seconds - CROPS * taught) / alone)
    epochs = {"labels": round(seconds / alone), "teacher": round(seconds / taught)}
    epochs |= {"cache": cached, "filled": epochs["labels"]}
    return {arm: max(count, 1) for arm, count in epochs.items()}


def main() -> None:
    parser = arguments(__doc__, "data", "runs")
    parser.add_argument("--seconds", type=int, default=480, help="CPU seconds of a student")
    parser.add_argument("--teacher-seconds", type=int, default=3600)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    if given.quick:
        given.seconds, given.teacher_seconds, given.seeds = 1, 1, 1
    teacher = train_teacher(given)
    trials = {arm: train_student(given, arm, 1, f"trial-{arm}", 0) for arm in ("labels", "teacher")}
    alone, taught = (trial["train_cpu_seconds"] for trial in trials.values())
    epochs = lengths(given.seconds, alone, taught)
    runs: dict[str, Rows] = {arm: [] for arm in epochs}
    for seed in range(given.seeds):
        for arm, count in epochs.items():
            runs[arm].append(train_student(given, arm, count, f"{arm}-{seed}", seed))
    rows = [
        {
            **seeds_row(arm, summaries),
            "epochs": epochs[arm],
            "accuracies": [summary["metrics"]["test/acc1"] for summary in summaries],
            "cpu_seconds": [summary["train_cpu_seconds"] for summary in summaries],
        }
        for arm, summaries in runs.items()
    ]
    facts = {
        "settings": {"seconds": given.seconds, "crops": CROPS, "seeds": given.seeds},
        "teacher": seeds_row("teacher", [teacher]),
        "epoch_cpu_seconds": {"labels": alone, "teacher": taught},
    }
    publish(document("distillation at equal CPU time", rows, **facts), given, NAME)


if __name__ == "__main__":
    main()
