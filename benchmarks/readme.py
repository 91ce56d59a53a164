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
    rows = []
    for file in sorted((ROOT / "benchmarks" / "results").glob("accuracy_*.json")):
        rows += [line(row) for row in json.loads(file.read_text())]
    return "\n".join([head, *rows])


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
