"""What the benchmarks share: arms that take turns, runs of `vit fit`, and results files.

Other scripts have the counts, steps and clocks of `vit` from here, so that they stay as they are
where a module of the package moves.
"""

import argparse
import csv
import json
import os
import random
import re
import resource
import shlex
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.lib.pages import ROOT, results_path, span
from vit.cli.process import keep_memory
from vit.extensions.compute.flops import Work, counted
from vit.extensions.compute.timing import (
    Call,
    Clock,
    Times,
    finisher,
    in_turns,
    inference,
    training,
)
from vit.extensions.evaluation.paired import mean_difference
from vit.extensions.transfer.divided import read_predictions
from vit.hardware import cpu_features, cpu_name, hardware, has_bfloat16, versions
from vit.models.zoo import ModelConfig, build_model, model_config
from vit.training.optimizers.param_groups import param_groups
from vit.weights.building import build_empty
from vit.writing import write_text

__all__ = [
    "ROOT",
    "Call",
    "ModelConfig",
    "Times",
    "build_model",
    "finisher",
    "hardware",
    "has_bfloat16",
    "in_turns",
    "inference",
    "keep_memory",
    "model_config",
    "param_groups",
    "results_path",
    "span",
    "training",
    "versions",
    "work",
]

KEPT = ("train_seconds", "train_cpu_seconds", "images_seen", "steps", "parameters")
FIT = (sys.executable, "-m", "vit", "fit")
PLACES = {
    "data": "folder with train/ and test/, in each a folder per class",
    "runs": "where the runs are kept",
    "weights": "file of weights",
    "photos": "folder of photos",
    "out": "where everything is kept",
}
Rows = list[dict[str, Any]]


@cache
def work(config: ModelConfig) -> Work:
    """Operations of a model of the package, for images of `config.size`."""
    return counted(build_empty(config), config.size, config.in_channels)


def arguments(
    doc: str | None, *places: str, rounds: int | None = None, quick: bool = True
) -> argparse.ArgumentParser:
    """The options that every measuring script has, and those of PLACES that it needs."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.set_defaults(quick=False)
    if quick:
        parser.add_argument("--quick", action="store_true", help="smallest sizes; writes no file")
    parser.add_argument("--results", type=Path, help="where to write instead")
    for place in places:
        parser.add_argument(f"--{place}", type=Path, required=True, help=PLACES[place])
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds, help=f"default {rounds}")
    return parser


def take_turns(
    title: str,
    calls: Mapping[Any, Call],
    rounds: int,
    device: torch.device | str = "cpu",
    shortest: float = 0.05,
    clock: Clock | None = None,
) -> dict[Any, Times]:
    """Alternating times of the calls, with a progress bar: CPU time, wall-clock time on a GPU.

    A turn takes at least `shortest` seconds.
    """
    device = torch.device(device)
    return in_turns(
        calls,
        rounds=rounds,
        clock=clock or ("cpu" if device.type == "cpu" else "wall"),
        shortest=shortest,
        finish=finisher(device),
        title=title,
    )


def ratio(ratios: Sequence[float]) -> dict[str, float]:
    """Median and range of the ratios of the rounds."""
    return {
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
    }


def answer(command: Sequence[object]) -> Any:
    """The JSON on the last line that a process of one thread prints; SystemExit if it fails."""
    printed, _ = timed(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return json.loads(printed.splitlines()[-1])


def timed(command: Sequence[object], **options: Any) -> tuple[str, dict[str, float]]:
    """What a process prints, and its seconds and CPU seconds; SystemExit if it fails."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, **options)
    if done.returncode:
        raise SystemExit(f"{shlex.join(words)} has failed:\n{done.stderr[-2000:]}")
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout, {"seconds": seconds, "cpu_seconds": used}


def free_port() -> int:
    """A port of this machine that nobody listens to."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def finished(folder: Path) -> dict[str, Any] | None:
    """The summary of a finished run; None for any other."""
    file = folder / "summary.json"
    summary = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return summary if summary.get("finished") else None


def run_fit(arguments: list[str], folder: Path) -> dict[str, Any]:
    """The summary of `vit fit ARGUMENTS --run_dir folder`, which continues an interrupted run."""
    return run_once([*FIT, *arguments, "--run_dir", str(folder)], folder, arguments)


def run_once(command: Sequence[str], folder: Path, settings: Any) -> dict[str, Any]:
    """The summary that `command` writes into `folder`; a finished run is reused.

    Its output is in FOLDER.log. SystemExit if it fails, or if the run has other `settings`.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    note = folder.parent / f"{folder.name}.json"
    if note.is_file() and json.loads(note.read_text()) != settings:
        raise SystemExit(
            f"{folder} was made with other options (see {note}); choose another --runs"
        )
    note.write_text(json.dumps(settings))
    print(f"{folder} ...", end=" ", file=sys.stderr, flush=True)
    if (summary := finished(folder)) is not None:
        print("reused", file=sys.stderr)
        return summary
    log, began = folder.parent / f"{folder.name}.log", time.monotonic()
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            process.wait()
        except KeyboardInterrupt:  # which the process also gets, and saves
            process.wait()
            raise
    summary = finished(folder)
    if process.returncode or summary is None:
        last = log.read_text(errors="replace").strip().rpartition("\n")[2]
        raise SystemExit(f"{folder} stopped (exit status {process.returncode}): {last}; see {log}")
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    return summary


def write_manifest(rows: Iterable[tuple[Path, str, str]], file: Path) -> None:
    """A CSV of images (path, label, split), with paths from its own folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(("path", "label", "split"))
        writer.writerows((os.path.relpath(path, file.parent), *rest) for path, *rest in rows)


def class_folders(data: Path, split: str = "train") -> list[Path]:
    """The folders of the classes of a split, in the order of their names."""
    return sorted(path for path in (data / split).iterdir() if path.is_dir())


Choice = Callable[[int, str, list[Path]], dict[str, Sequence[Path]] | None]
"""Number and name of a class, and its images in train -> what each split gets; None: no class."""


def draw_images(data: Path, file: Path, choose: Choice, tests: int | None = None) -> Counter[str]:
    """A CSV of chosen images, and of the first `tests` of each chosen class in test, or all.

    Returns how many there are of each split.
    """
    rows: list[tuple[Path, str, str]] = []
    for number, folder in enumerate(class_folders(data)):
        chosen = choose(number, folder.name, sorted(folder.iterdir()))
        if chosen is not None:
            chosen["test"] = sorted((data / "test" / folder.name).iterdir())[:tests]
            rows += [(p, folder.name, split) for split, paths in chosen.items() for p in paths]
    write_manifest(rows, file)
    return Counter(split for *_, split in rows)


def shuffled(paths: Sequence[Path], key: str) -> list[Path]:
    """The paths in an order that the key draws."""
    order = [*paths]
    random.Random(key).shuffle(order)
    return order


def against(reference: str, arms: Mapping[str, Sequence[Path]]) -> Rows:
    """A row per arm: accuracy on test over its runs, of one seed each, and `difference` to that of
    `reference`, by images and seeds, which is None for that one."""
    rows: Rows = []
    answers = {arm: [*map(read_predictions, runs)] for arm, runs in arms.items()}
    for arm, runs in answers.items():
        accuracies = [float(each.hits().mean()) for each in runs]
        mean, std = mean_and_std(accuracies)
        pairs = [*zip(answers[reference], runs, strict=False)]
        difference = None if arm == reference else mean_difference(pairs)
        row = {"arm": arm, "accuracy": mean, "std": std, "n": len(runs), "of_seeds": accuracies}
        rows.append({**row, "difference": difference})
    return rows


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard deviation, which one value does not have."""
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None


def seeds_row(label: str, summaries: Rows) -> dict[str, Any]:
    """One row from the summaries of runs that differ only in their seed."""
    first = summaries[0]
    scores = {
        name: mean_and_std([summary["metrics"][name] for summary in summaries])
        for name in first["metrics"]
        if name.startswith(first["split"] + "/")
    }
    return {
        "label": label,
        "command": portable(first["command"]),
        "n": len(summaries),
        "images": first["images"],
        "mean": {name: mean for name, (mean, _) in scores.items()},
        "std": {name: std for name, (_, std) in scores.items()},
        **{name: statistics.mean(s[name] for s in summaries) for name in KEPT},
        **{name: first[name] for name in ("precision", "hardware", "versions")},
        "commit": commit(),
        "date": date.today().isoformat(),
    }


def portable(command: str) -> str:
    """The command without local directories."""
    words = shlex.split(command)
    return shlex.join(Path(word).name if word.startswith("/") else word for word in words)


def commit() -> str:
    """The commit of this checkout."""
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True).stdout.strip() or "unknown"


def document(what: str, rows: Rows, **facts: Any) -> dict[str, Any]:
    """A results file: the rows, and where, when and with what they were measured."""
    return {
        "what": what,
        **facts,
        "date": date.today().isoformat(),
        "commit": commit(),
        "hardware": {**hardware(), "features": cpu_features()},
        "versions": versions(),
        "rows": rows,
    }


def installed(*packages: str) -> dict[str, str]:
    """Versions of those that are there."""
    return {name: version(name) for name in packages if find_spec(name)}


def results_name(what: str, device: str = "cpu") -> str:
    """The name of this machine's results, after the device and its processor or GPU."""
    name = cpu_name() + cpu_features() if device == "cpu" else torch.cuda.get_device_name()
    name = re.sub(r"\(.*?\)|processor|@", " ", name.lower())
    return f"results/{'_'.join([what, device, *re.findall('[a-z0-9]+', name)])}"


def on_device(name: str, device: str) -> str:
    """The name of results, with the device behind it unless that is the CPU."""
    return name if device == "cpu" else f"{name}_{device}"


def target(options: argparse.Namespace, name: str | None) -> Path | None:
    """Where results go: to --results, with --quick nowhere, else to the file of that name."""
    standard = None if options.quick or name is None else results_path(name)
    return options.results or standard


def earlier(file: Path | None, settings: dict[str, Any]) -> dict[str, Any]:
    """What a results file holds, if it is there. SystemExit if it was made with other settings."""
    if file is None or not file.is_file():
        return {}
    content = json.loads(file.read_text(encoding="utf-8"))
    if any(content["settings"].get(name, value) != value for name, value in settings.items()):
        raise SystemExit(f"{file} was made with other settings; name another --results")
    return content


def save(content: Any, path: Path | None) -> None:
    """Writes a results file, if there is one to write."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(content, indent=1) + "\n")


def publish(content: Any, options: argparse.Namespace, name: str | None) -> None:
    """Writes to the target of the options; the last line of output is the JSON."""
    save(content, target(options, name))
    print(json.dumps(content))
