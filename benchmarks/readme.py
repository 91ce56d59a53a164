"""The results tables of README.md."""

from typing import Any, NamedTuple

from benchmarks.lib.pages import ROOT, filled, generate, load, over, plus_minus, table
from benchmarks.papers.self_training.page import STUDENT, TEACHER, values

TIMED = "python -m benchmarks.speed.time_to_accuracy --data.root cifar10/ --arms "
MASKED = (
    "python -m benchmarks.papers.masked_patches.run --data cifar10/ --percent 10 "
    "--pretrain-steps 2000 --finetune-steps 150"
)
TENTH = "CIFAR-10 (JPEG), 10 % of the labels"


class Row(NamedTuple):
    """A result by its file and its label there, and how to reproduce it."""

    file: str
    label: str
    title: str
    command: str
    data: str = "CIFAR-10 (JPEG)"

    def result(self) -> dict[str, Any]:
        """Mean, deviation, n, images, seconds and hardware, whichever file they are in."""
        content = load(self.file)
        shared = {} if isinstance(content, list) else content
        rows = content if isinstance(content, list) else content["rows"]
        row = next(row for row in rows if row["label"] == self.label)
        if isinstance(row["mean"], dict):  # one number per metric
            row |= {name: row[name]["test/acc1"] for name in ("mean", "std")}
        return {"hardware": shared.get("hardware"), "seconds": row.get("train_seconds"), **row}


ROWS = (
    Row("results/time_to_accuracy_cpu", "vit", "`cifar10`, 600 s, 1 thread", TIMED + "vit"),
    Row(
        "results/time_to_accuracy_cpu",
        "timm, our sizes and recipe",
        "timm with the sizes and recipe of `cifar10`, 600 s, 1 thread",
        TIMED + "timm_recipe",
    ),
    Row(
        "results/time_to_accuracy_cpu",
        "timm, best settings",
        "timm, width 192, depth 6, AdamW, bfloat16, 600 s, 1 thread",
        TIMED + "timm_best",
    ),
    Row(
        "papers/few_images/accuracy_finetune",
        "100 images per class: the recipe finetune, ViT-S/14 at 112 px, 300 steps",
        "an earlier `finetune`, ViT-S/14 at 112 pixels, 300 steps",
        "vit fit -c finetune --data.root cifar10_100/ --model.pretrained WEIGHTS "
        "--data.image_size 112",
        "CIFAR-10 (JPEG), 100 images per class",
    ),
    Row(
        "papers/masked_patches/results",
        "10 % of the labels (5,000), random weights",
        "random weights, 150 steps",
        MASKED,
        TENTH,
    ),
    Row(
        "papers/masked_patches/results",
        "10 % of the labels (5,000), pre-trained",
        "150 steps after 2,000 steps of masked-patch pre-training",
        MASKED,
        TENTH,
    ),
)


def experiments() -> str:
    """A row for each command that is an experiment of its own, and one figure of it."""
    vtab, students, errors = (
        load(f"papers/{name}/results") for name in ("vtab", "self_training", "robustness")
    )
    mean = vtab["vtab"]["all"]
    accuracies = [[*values(students, key).values()] for key in (TEACHER, (STUDENT, 1))]
    teacher, student = map(over, accuracies)
    clean, corrupted = (f"{100 * errors[name]:.1f}" for name in ("clean_error", "mean_error"))
    rows = (
        (
            "`vit transfer MODEL --data vtab=ROOT`",
            "19 miniatures in the layout of VTAB-1k, which are no scores of VTAB",
            f"mean accuracy {plus_minus(100 * mean['mean'], 100 * mean['std'])}",
            "`python -m benchmarks.papers.vtab.run --out DIR`",
        ),
        (
            "`vit selftrain -c cifar10/noisy_student --data CSV --unlabelled DIR`",
            "CIFAR-10 (JPEG) at 16 pixels, 10 % of the labels",
            f"accuracy of the teacher {teacher}, of its first student {student}",
            "`python -m benchmarks.papers.self_training.run --data cifar10/ --runs DIR`",
        ),
        (
            "`vit robustness RUN --data cifar10/`",
            f"generated pictures of {errors['images']} test images of {errors['data']}",
            f"error {clean}, with corruption {corrupted}",
            "`python -m benchmarks.papers.robustness.run --data cifar10/ --out DIR`",
        ),
    )
    return table(("command", "measured on", "result, %", "reproduced by"), rows)


def main() -> int:
    results = [row.result() for row in ROWS]
    lines = [
        (
            row.title,
            row.data,
            plus_minus(100 * result["mean"], result["std"] and 100 * result["std"]),
            result["n"],
            f"{result['images']['train']:,}",
            f"{result['seconds']:,.0f}",
            f"`{row.command}`",
        )
        for row, result in zip(ROWS, results, strict=True)
    ]
    head = ("run", "data", "test accuracy, %", "n", "training images", "seconds", "command")
    hardware = [result["hardware"] for result in results]
    machines = sorted({f"{each['cores']} cores {each['cpu']}" for each in hardware})
    text = f"{table(head, lines)}\n\nMeasured on {', '.join(machines)}."
    page = ROOT / "README.md"
    return generate(page, filled(page, results=text, experiments=experiments()))


if __name__ == "__main__":
    raise SystemExit(main())
