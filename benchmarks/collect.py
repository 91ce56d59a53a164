"""Collects finished runs into one results file: mean and spread over seeds, machine, versions.

    python benchmarks/collect.py RESULTS.json "label" RUN [RUN ...]

Adds or replaces the row `label` of RESULTS.json. One row is one command with several seeds.
"""

import argparse
import json
import re
import shlex
import statistics
import subprocess
from datetime import date
from pathlib import Path
from typing import Any

from vit.hardware import cpu_features, cpu_name, hardware, versions

RESULTS = Path(__file__).parent / "results"
KEPT = ("train_seconds", "train_cpu_seconds", "images_seen", "steps", "parameters")


def row(label: str, runs: list[Path]) -> dict[str, Any]:
    """One row from the summaries of runs that differ only in their seed."""
    summaries = [json.loads((run / "summary.json").read_text()) for run in runs]
    first = summaries[0]
    scores = {
        name: [summary["metrics"][name] for summary in summaries]
        for name in first["metrics"]
        if name.startswith(first["split"] + "/")
    }
    return {
        "label": label,
        "command": portable(first["command"]),
        "n": len(runs),
        "images": first["images"],
        "mean": {name: statistics.mean(values) for name, values in scores.items()},
        "std": {
            name: statistics.stdev(values) if len(values) > 1 else None
            for name, values in scores.items()
        },
        **{name: statistics.mean([s[name] for s in summaries]) for name in KEPT},
        "precision": first["precision"],
        "hardware": first["hardware"],
        "versions": first["versions"],
        "commit": commit(),
        "date": date.today().isoformat(),
    }


def portable(command: str) -> str:
    """The command without local directories."""
    words = shlex.split(command)
    return shlex.join(Path(word).name if word.startswith("/") else word for word in words)


def commit() -> str:
    """The commit of this checkout."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip() or "unknown"


def machine_slug(device: str) -> str:
    """Device and model of the processor or GPU, for the name of a results file."""
    import torch

    name = cpu_name() + cpu_features() if device == "cpu" else torch.cuda.get_device_name()
    name = re.sub(r"\(.*?\)|processor|@", " ", name.lower())
    return "_".join([device, *re.findall("[a-z0-9]+", name)])


def document(what: str, rows: list[dict[str, Any]], **facts: Any) -> dict[str, Any]:
    """What a results file holds: the rows, and where, when and with what they were measured."""
    return {
        "what": what,
        **facts,
        "date": date.today().isoformat(),
        "commit": commit(),
        "hardware": {**hardware(), "features": cpu_features()},
        "versions": versions(),
        "rows": rows,
    }


def results_file(what: str, device: str = "cpu") -> Path:
    """The results file of this machine."""
    return RESULTS / f"{what}_{machine_slug(device)}.json"


def write(measured: dict[str, Any], path: Path | None) -> None:
    """Writes a document unless `path` is None."""
    if path is not None:
        path.write_text(json.dumps(measured, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("label")
    parser.add_argument("runs", type=Path, nargs="+")
    options = parser.parse_args()
    rows = json.loads(options.results.read_text()) if options.results.is_file() else []
    new = row(options.label, options.runs)
    rows = [old for old in rows if old["label"] != options.label] + [new]
    options.results.write_text(json.dumps(rows, indent=2) + "\n")
    print(json.dumps(new))


if __name__ == "__main__":
    main()
