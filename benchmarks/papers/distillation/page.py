"""The table of students and their teacher in docs/finetuning.md."""

import statistics
from typing import Any

from benchmarks.lib.pages import ROOT, filled, generate, load, over, table
from benchmarks.lib.sweep import interval

PAGE = ROOT / "docs" / "finetuning.md"
TEXT = """\
CIFAR-10 (JPEG), {images:,} test images, {budget} CPU seconds of training in each arm, one thread of
a shared {cpu}. Teacher: the hybrid of `cifar10/equal_flops_hybrid` after an hour of that machine
({hour:,.0f} CPU seconds), {teacher:.1f} %. Student: the recipe `cifar10` with plain patches of 8
pixels; with a teacher, its probabilities alone (`kind` soft, `alpha` 1, temperature 2). ± behind an
accuracy is the standard deviation over the seeds, behind a difference half of its 95 % interval.
"""
ARMS = {
    "labels": "labels, no teacher",
    "teacher": "`--teacher`",
    "cache": "`--teacher-cache {crops}`",
    "filled": "the same, the teacher's seconds not counted",
}
SPEED = """
An epoch takes {labels:.0f} CPU seconds without a teacher, {teacher:.0f} with one, and {cached:.0f}
where all answers are in the cache.
"""


def text(content: dict[str, Any]) -> str:
    """Everything between the markers."""
    settings, rows = content["settings"], {row["label"]: row for row in content["rows"]}
    alone = rows["labels"]["accuracies"]
    lines = []
    for arm, name in ARMS.items():
        row = rows[arm]
        gains = [100 * (a - b) for a, b in zip(row["accuracies"], alone, strict=True)]
        against = "-" if arm == "labels" else interval(gains)
        seconds = statistics.mean(row["cpu_seconds"])
        accuracy = over([100 * value for value in row["accuracies"]])
        name = name.format(**settings)
        lines.append((name, accuracy, against, row["epochs"], f"{seconds:.0f}", row["n"]))
    first = TEXT.format(
        images=content["teacher"]["images"]["test"],
        budget=settings["seconds"],
        cpu=content["hardware"]["cpu"],
        hour=content["teacher"]["train_cpu_seconds"],
        teacher=100 * content["teacher"]["mean"]["test/acc1"],
    )
    head = ("student", "accuracy, %", "over labels", "epochs", "CPU s", "seeds")
    speed = SPEED.format(**epochs(rows, settings["crops"]))
    return f"{first}\n{table(head, lines)}\n{speed.rstrip()}"


def epochs(rows: dict[str, dict[str, Any]], crops: int) -> dict[str, float]:
    """CPU seconds of an epoch; `cached`: of one beyond those in which the teacher answers."""
    total = {arm: statistics.mean(row["cpu_seconds"]) for arm, row in rows.items()}
    each = {arm: total[arm] / rows[arm]["epochs"] for arm in ("labels", "teacher")}
    later = total["filled"] - crops * each["teacher"]
    return {**each, "cached": later / (rows["filled"]["epochs"] - crops)}


def main() -> int:
    return generate(PAGE, filled(PAGE, distillation=text(load("papers/distillation/results"))))


if __name__ == "__main__":
    raise SystemExit(main())
