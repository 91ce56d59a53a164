"""Writes the tables of README from the files in benchmarks/results.

python benchmarks/readme.py          rewrites what stands between the markers
python benchmarks/readme.py --check  exit status 1 if README is not up to date
"""

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
START, END = "<!-- results: begin -->", "<!-- results: end -->"


def line(row: dict[str, Any]) -> str:
    """One row of the table."""
    mean, std = row["mean"]["test/acc1"], row["std"]["test/acc1"]
    spread = "" if std is None else f" ± {100 * std:.1f}"
    cells = (
        row["label"],
        f"{100 * mean:.1f}{spread}",
        row["n"],
        f"{row['images']['train']:,}",
        f"{row['train_seconds']:,.0f}",
        f"{row['train_cpu_seconds']:,.0f}",
        f"{row['hardware']['cores']} cores {row['hardware']['cpu']}, {row['precision']}",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def table() -> str:
    """All results files, one line a row."""
    head = (
        "| run | test accuracy, % | n | training images | seconds | CPU seconds | machine |\n"
        "|---|---|---|---|---|---|---|"
    )
    rows = [line(row) for name in files() for row in rows_of(name)]
    return "\n".join([head, *rows])


def files() -> list[Path]:
    """Accuracies of single recipes first, then those of experiments."""
    results = ROOT / "benchmarks" / "results"
    experiments = ("masked_patches_cifar10", "equal_flops_cifar10")
    names = ("time_to_accuracy_cpu", "time_to_accuracy_gpu", "accuracy_finetune", *experiments)
    return [file for name in names if (file := results / f"{name}.json").is_file()]


def rows_of(file: Path) -> list[dict[str, Any]]:
    """A results file is a list of rows, or an experiment that has one."""
    content = json.loads(file.read_text())
    if isinstance(content, list):
        return content
    if content.get("what") == "time to accuracy":
        return [timed_row(content, row) for row in content["rows"]]
    name = file.stem.removesuffix("_cifar10").replace("_", " ").capitalize()
    return [{**row, "label": f"{name}: {row['label']}"} for row in content["rows"]]


def timed_row(document: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """A row of benchmarks/time_to_accuracy.py, as benchmarks/collect.py would have written it."""
    count = document["threads"]
    threads = "1 thread" if count == 1 else f"{count} threads"
    data = "CIFAR-10" if document["folder"] is None else "CIFAR-10 (JPEG)"
    hardware = dict(document["hardware"])
    if document["device"] != "cpu":
        threads, hardware["cpu"] = document["device"], f"{hardware['cpu']}, {document['device']}"
    return {
        "label": f"{data}, {document['budget_seconds']} s, {threads}: {row['label']}",
        "mean": {"test/acc1": row["mean"]},
        "std": {"test/acc1": row["std"]},
        "n": row["n"],
        "images": row["images"],
        "train_seconds": row["seconds"],
        "train_cpu_seconds": row["cpu_seconds"],
        "precision": row["settings"]["precision"],
        "hardware": hardware,
    }


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
