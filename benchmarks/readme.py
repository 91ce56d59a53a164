"""The results in README.md and docs/results.md.

python -m benchmarks.readme [--check]     --figure draws docs/images/readme.jpg, too
"""

import statistics
import sys
import textwrap
from collections import Counter
from typing import Any, NamedTuple

from PIL import Image

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


def number() -> str:
    """Accuracy and time of few images, against random weights and the best of other packages."""
    few, peers = load("papers/few_images/results"), load("papers/few_images/peers")
    arms = {row["arm"]: row for row in few["rows"] if row["images_per_class"] == 100}
    tuned, random = arms["finetune"], arms["random"]
    others = [row for row in peers if row["cell"].startswith("100:") and row["peer"] != "vit"]
    best = max(others, key=lambda row: row["accuracy"])
    minutes = statistics.mean(tuned["train_cpu_seconds"]) / 60
    name = {"timm-card": "timm with the settings of its author's model card"}
    return filled_lines(
        f"**{plus_minus(tuned['mean'], tuned['std'])} % from 100 images per class, after "
        f"{minutes:.0f} minutes on one CPU core**: ten classes of CIFAR-10 (JPEG) at "
        f"{few['pixels']} pixels, {few['test_images']:,} test images, {len(tuned['seeds'])} draws, "
        f"a pretrained ViT-S/14. In the same time {name.get(best['peer'], best['peer'])} reaches "
        f"{best['accuracy']:.1f} %, and training from random weights {random['mean']:.1f} % "
        "([finetuning](docs/finetuning.md#results))."
    )


def filled_lines(text: str, indent: str = "") -> str:
    """The text in lines of at most 110 letters."""
    options = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(text, 110, subsequent_indent=indent, **options)


def headlines() -> str:
    """One line for each subject, from its results."""
    families = Counter(row["answer"] for row in load("results/families")["rows"])
    speed = load("results/models_cuda_nvidia_h200")
    rates = {(r["model"], r["what"], r["setting"]): r["images_per_second"] for r in speed["rows"]}

    def pair(model: str, what: str) -> str:
        ours, theirs = (rates[model, what, f"{name}, bf16, compiled"] for name in ("vit", "timm"))
        return f"{ours:,.0f} images/s (timm {theirs:,.0f})"

    timed = {row["label"]: row for row in load("results/time_to_accuracy_cpu")["rows"]}
    ours, recipe, best = (
        plus_minus(100 * row["mean"], row["std"] and 100 * row["std"])
        for row in map(timed.get, ("vit", "timm, our sizes and recipe", "timm, best settings"))
        if row is not None
    )
    lines = (
        f"**Parity**: of {families.total()} rows of families of timm and transformers, "
        f"{families['equal']} load with equal outputs, {families['assumed']} with a stated "
        f"assumption, and {families['refused']} are refused with the reason "
        "([families](docs/families.md), [parity](docs/parity.md)).",
        f"**Speed**, {speed['device']}, bfloat16, compiled: ViT-B/16 trains at "
        f"{pair('vit_b16', 'training')}, ViT-L/16 at {pair('vit_l16', 'training')}, ViT-H/14 at "
        f"{pair('vit_h14', 'training')} ([speed](docs/speed.md)).",
        f"**CIFAR-10 (JPEG) from random weights in ten minutes on one CPU core**: {ours} %; timm's "
        f"model by the same recipe {recipe} %, timm at its best settings {best} % "
        "([speed](docs/speed.md)).",
        "**The paper's Table 6**: PyTorch's own count of operations gives all 18 rows within 3.6 % "
        "([compute](docs/compute.md)).",
    )
    return "\n".join(filled_lines(f"- {line}", "  ") for line in lines)


def figure() -> None:
    """The first photo of the page on inspection."""
    folder = ROOT / "docs" / "images"
    with Image.open(folder / "inspection_photos.jpg") as image:
        image.crop((0, 22, image.width, 228)).save(folder / "readme.jpg", quality=92)


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
    readme, page = ROOT / "README.md", ROOT / "docs" / "results.md"
    first = generate(readme, filled(readme, number=number(), results=headlines()))
    return first or generate(page, filled(page, results=text, experiments=experiments()))


if __name__ == "__main__":
    if "--figure" in sys.argv:
        figure()
    raise SystemExit(main())
