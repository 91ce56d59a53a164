"""Many small runs of `vit.fit` in one process, and what their seeds say: for data_size, ablations.

A run that is finished is reused, an interrupted one goes on where it was, so that the same command
starts and continues a sweep.
"""

import argparse
import csv
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from scipy.stats import linregress, t

from benchmarks.lib.harness import Rows, finished, keep_memory, save
from benchmarks.lib.harness import arguments as measuring
from vit import signals
from vit.runs.fit import fit
from vit.runs.options import Options

QUIET = ("--trainer.enable_progress_bar", "false", "--data.loading.num_workers", "0")
SEEN, NOT_SEEN, NOISE = "seen", "not seen", "within noise"
ONE_SEED, NO_SEED = "one seed", "not complete"
EVERY = 30.0
"""Seconds from one count of a run's CPU time to the next."""


def arguments(doc: str | None, steps: int) -> argparse.ArgumentParser:
    """Options of a sweep; those after -- go to every run."""
    parser = measuring(doc, "data", "runs")
    parser.add_argument("--steps", type=int, default=steps, help=f"default {steps}")
    parser.add_argument("--seeds", type=int, default=3, help="default 3")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("rest", nargs="*", help="after --: options of every `vit fit`")
    return parser


def schedule(steps: int, validations: int, device: str) -> list[str]:
    """Options of a run of so many steps, a tenth of them warm-up."""
    return [
        *QUIET,
        *("--trainer.accelerator", device, "--trainer.devices", "1"),
        *("--trainer.max_epochs", "-1", "--trainer.max_steps", str(steps)),
        *("--trainer.check_val_every_n_epoch", "null"),
        *("--trainer.log_every_n_steps", str(max(steps // 400, 1))),
        *("--trainer.val_check_interval", str(max(steps // validations, 1))),
        *("--model.schedule.warmup_steps", str(steps // 10)),
    ]


def trained(arguments: list[str], folder: Path) -> dict[str, Any]:
    """The summary of `vit fit ARGUMENTS --run_dir folder`, with the CPU seconds of all of it.

    SystemExit if the run was made with other arguments.
    """
    keep_memory()  # as the command does
    with counted(folder, arguments) as known:
        if finished(folder) is None:
            fit(Options([*arguments, "--run_dir", str(folder)]))
    summary = finished(folder)
    assert summary is not None, folder
    print(f"{folder}: {known['cpu_seconds']:.0f} CPU s", file=sys.stderr, flush=True)
    return {**summary, "cpu_seconds": known["cpu_seconds"]}


@contextmanager
def counted(folder: Path, arguments: list[str]) -> Iterator[dict[str, Any]]:
    """Adds the CPU seconds of its body to `cpu_seconds`, which is kept in FOLDER.json.

    They are written every half minute too: a process that is killed has used them.

    SystemExit if the folder was made with other arguments.
    """
    note = folder.parent / f"{folder.name}.json"
    known = {"arguments": arguments, "cpu_seconds": 0.0}
    if note.is_file():
        known = json.loads(note.read_text(encoding="utf-8"))
    if known["arguments"] != arguments:
        raise SystemExit(f"{folder} was made with other options; choose another --runs")
    save(known, note)
    earlier, began, ended = known["cpu_seconds"], time.process_time(), Event()

    def count() -> None:
        over = False
        while not over:
            over = ended.wait(EVERY)
            known["cpu_seconds"] = earlier + time.process_time() - began
            save(known, note)

    clock = Thread(target=count, daemon=True)
    clock.start()
    try:
        with signals.handled():
            yield known
    finally:
        ended.set()
        clock.join()


def curve(folder: Path, name: str) -> list[float]:
    """The values of a column of metrics.csv, in the order of the steps."""
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as stream:
        return [float(row[name]) for row in csv.DictReader(stream) if row.get(name)]


def by_seed(rows: Rows, value: Callable[[dict[str, Any]], Any], /, **wanted: Any) -> dict[int, Any]:
    """Seed -> value of the rows with these fields."""
    chosen = (row for row in rows if all(row[name] == field for name, field in wanted.items()))
    return {row["seed"]: value(row) for row in chosen}


def minus(first: dict[int, float], second: dict[int, float]) -> list[float]:
    """Differences for the seeds that have both."""
    return [first[seed] - second[seed] for seed in first if seed in second]


def interval(values: Sequence[float], form: str = "+.1f") -> str:
    """Mean over the seeds, and half of its 95 % interval."""
    if not values:
        return "-"
    half = f" ± {half_interval(values):{form.strip('+')}}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{form}}{half}"


def half_interval(values: Sequence[float]) -> float:
    """Half of the 95 % interval of a mean over seeds (Student); infinite for a single one."""
    if len(values) < 2:
        return math.inf
    error = statistics.stdev(values) / math.sqrt(len(values))
    return float(t.ppf(0.975, len(values) - 1)) * error


def verdict(values: Sequence[float]) -> str:
    """Whether the mean over seeds is above 0, as is claimed, by its 95 % interval."""
    if len(values) < 2:
        return ONE_SEED if values else NO_SEED
    mean, half = statistics.mean(values), half_interval(values)
    return SEEN if mean > half else NOT_SEEN if mean < -half else NOISE


def power(x: Sequence[float], y: Sequence[float]) -> dict[str, float]:
    """Exponent b of y = a x^b by least squares of the logarithms, and half its 95 % interval."""
    found: Any = linregress([math.log(v) for v in x], [math.log(v) for v in y])
    half = float(t.ppf(0.975, len(x) - 2)) * found.stderr if len(x) > 2 else math.inf
    return {"exponent": float(found.slope), "half_interval": half, "points": len(x)}
