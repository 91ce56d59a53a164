"""Writes the results table of README from the files in benchmarks/results.

python benchmarks/readme.py          rewrites the text between the markers
python benchmarks/readme.py --check  exit status 1 if README is not up to date
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
START, END = "<!-- results: begin -->", "<!-- results: end -->"
TIMED = "python benchmarks/time_to_accuracy.py --data.root cifar10/ --arms "
MASKED = (
    "python benchmarks/masked_patches.py --data cifar10/ --percent 10 "
    "--pretrain-steps 2000 --finetune-steps 150"
)


@dataclass(frozen=True)
class Row:
    """One row of the table: a result, and how to reproduce it."""

    file: str
    """Stem of a file in benchmarks/results."""
    label: str
    """Label of the result in that file."""
    title: str
    command: str
    data: str = "CIFAR-10 (JPEG)"


ROWS = (
    Row("time_to_accuracy_cpu", "vit", "`cifar10`, 600 s, 1 thread", TIMED + "vit"),
    Row(
        "time_to_accuracy_cpu",
        "timm, our sizes and recipe",
        "timm with the sizes and recipe of `cifar10`, 600 s, 1 thread",
        TIMED + "timm_recipe",
    ),
    Row(
        "time_to_accuracy_cpu",
        "timm, best settings",
        "timm, width 192, depth 6, AdamW, bfloat16, 600 s, 1 thread",
        TIMED + "timm_best",
    ),
    Row(
        "accuracy_finetune",
        "100 images per class: the recipe finetune, ViT-S/14 at 112 px, 300 steps",
        "an earlier `finetune`, ViT-S/14 at 112 pixels, 300 steps",
        "vit fit -c finetune --data.root cifar10_100/ --model.pretrained WEIGHTS "
        "--data.image_size 112",
        "CIFAR-10 (JPEG), 100 images per class",
    ),
    Row(
        "masked_patches_cifar10",
        "10 % of the labels (5,000), random weights",
        "random weights, 150 steps",
        MASKED,
        "CIFAR-10 (JPEG), 10 % of the labels",
    ),
    Row(
        "masked_patches_cifar10",
        "10 % of the labels (5,000), pre-trained",
        "150 steps after 2,000 steps of masked-patch pre-training",
        MASKED,
        "CIFAR-10 (JPEG), 10 % of the labels",
    ),
)


def line(row: Row) -> str:
    """One line of the table."""
    result = results(row.file)[row.label]
    # time_to_accuracy_*.json has plain numbers, the other files one number per metric.
    timed = isinstance(result["mean"], float)
    mean = result["mean"] if timed else result["mean"]["test/acc1"]
    std = result["std"] if timed else result["std"]["test/acc1"]
    spread = "" if std is None else f" ± {100 * std:.1f}"
    cells = (
        row.title,
        row.data,
        f"{100 * mean:.1f}{spread}",
        result["n"],
        f"{result['images']['train']:,}",
        f"{result['seconds' if timed else 'train_seconds']:,.0f}",
        f"`{row.command}`",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def results(file: str) -> dict[str, dict[str, Any]]:
    """The rows of a results file by their labels."""
    content = json.loads((ROOT / "benchmarks" / "results" / f"{file}.json").read_text())
    rows = content if isinstance(content, list) else content["rows"]
    # time_to_accuracy_*.json records the machine once for all rows.
    common = {} if isinstance(content, list) else {"hardware": content.get("hardware")}
    return {row["label"]: {**common, **row} for row in rows}


def table() -> str:
    """The table, and the machines of its results."""
    head = (
        "| run | data | test accuracy, % | n | training images | seconds | command |\n"
        "|---|---|---|---|---|---|---|"
    )
    hardware = [results(row.file)[row.label]["hardware"] for row in ROWS]
    machines = sorted({f"{each['cores']} cores {each['cpu']}" for each in hardware})
    return "\n".join([head, *map(line, ROWS), "", f"Measured on {', '.join(machines)}."])


def main() -> int:
    readme = ROOT / "README.md"
    text = readme.read_text()
    before, rest = text.split(START)
    _, after = rest.split(END)
    new = f"{before}{START}\n{table()}\n{END}{after}"
    if "--check" in sys.argv:
        return int(new != text)
    readme.write_text(new)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
