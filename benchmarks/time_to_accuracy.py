"""Accuracy on CIFAR-10 after a fixed time of training: our ViT and timm's VisionTransformer.

    python benchmarks/time_to_accuracy.py --data.root cifar10/ --seconds 600
    python benchmarks/time_to_accuracy.py --device cuda --seconds 120 --until 0.9 0.94 \\
        -- --model.compile true

--data.root is a folder with train/ and test/, each with one folder per class, and images of 32 x 32
pixels; without it torchvision downloads CIFAR-10. Every arm trains on all of train and scores the
weights of its last step on all of test:

- vit: `vit fit -c cifar10 --trainer.max_time ...`
- timm: "default": float32, torch.optim.AdamW, torchvision's files and transforms
- timm_best: "best settings": bfloat16 if the machine supports it, fused AdamW, images in memory,
  and explicit attention on a CPU or torch.compile on a GPU
- timm_recipe: the same with the width, depth, optimizer, schedule, augmentation and loss of our
  recipe, but plain patches instead of a convolutional root, a class token and learned positions

timm and timm_best have width 192 and depth 6. Options after -- go to vit, and to timm_recipe if
they concern what it shares.

The budget is in wall-clock seconds and covers steps, image loading in every epoch, and compilation.
Arms that keep images in memory decode them before the clock starts; scoring comes after it stops.
All schedules end with the budget. `seconds` and `cpu_seconds` in the results include that decoding,
but no evaluation.

With --until, every arm scores the test images after every epoch with the clock stopped, and the
results have the time of the first epoch that reaches each accuracy. Saving vit's checkpoints
counts.

Each run is a separate process; all arms run with one seed before the next seed starts. An
interrupted command resumes and reuses finished runs, but restarts an unfinished one.
OMP_NUM_THREADS sets the number of threads. Writes benchmarks/results/time_to_accuracy_cpu.json or
_gpu.json after every seed, keeping rows of other arms with the same settings; the last line of
output is that JSON.
"""

import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from argparse import ArgumentError, ArgumentParser, Namespace
from dataclasses import asdict, replace
from datetime import date, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import torch  # noqa: E402
from cells import note_options, run_cell  # noqa: E402
from collect import commit, portable  # noqa: E402
from lightning.pytorch.callbacks import Timer  # noqa: E402
from PIL import Image  # noqa: E402
from time_peers import RECIPE, SIZE, Job  # noqa: E402

from vit.compute.timing import finisher  # noqa: E402
from vit.errors import UserError  # noqa: E402
from vit.hardware import hardware, versions  # noqa: E402
from vit.transfer.cells import CellFailed, Diverged  # noqa: E402

ARMS = {
    "vit": "vit",
    "timm": "timm, default",
    "timm_best": "timm, best settings",
    "timm_recipe": "timm, our sizes and recipe",
}


class EpochTests(Timer):
    """Time limit of a `vit fit` that scores the test images after every epoch.

    Its clock, which the schedule follows, is stopped meanwhile. The test images replace the
    validation images; the rows of metrics.csv with val/acc1 also get training_seconds and the time
    of all evaluations.

    Args:
        seconds: Seconds of training.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(timedelta(seconds=seconds), verbose=False)
        self._evaluated = self._cpu = 0.0
        self._since: tuple[float, float] | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            data = trainer.datamodule
            data.splits = replace(data.splits, val=data.image_set("test"), val_origin="given")

    def time_elapsed(self, stage: Any = "train") -> float:
        """Elapsed seconds for Timer and schedule; those of training exclude evaluation."""
        return super().time_elapsed(stage) - (self._spent()[0] if stage == "train" else 0)

    def _spent(self) -> tuple[float, float]:
        """Seconds and CPU seconds of all evaluations, including the current one."""
        if self._since is None:
            return self._evaluated, self._cpu
        wall, cpu = time.monotonic() - self._since[0], time.process_time() - self._since[1]
        return self._evaluated + wall, self._cpu + cpu

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        super().on_validation_start(trainer, pl_module)
        finisher(pl_module.device)()
        self._since = time.monotonic(), time.process_time()

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        wall, cpu = self._spent()
        times = {"training_seconds": self.time_elapsed()}
        times |= {"evaluation_seconds": wall, "evaluation_cpu_seconds": cpu}
        pl_module.log_dict(times)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        super().on_validation_end(trainer, pl_module)
        self._evaluated, self._cpu = self._spent()
        self._since = None


def fit_arguments(options: Namespace, seed: int) -> list[str]:
    """Arguments of `vit fit`, without the run directory."""
    arguments = ["-c", RECIPE, "--data.splits.val_fraction", "0", "--trainer.max_epochs", "-1"]
    arguments += ["--trainer.accelerator", options.device, "--trainer.devices", "1"]
    arguments += [] if options.root is None else ["--data.root", str(options.root)]
    if options.until:
        limit = {"class_path": "time_to_accuracy.EpochTests"}
        limit |= {"init_args": {"seconds": options.seconds}}
        arguments += [f"--trainer.callbacks+={json.dumps(limit)}"]
    else:
        minutes, seconds = divmod(options.seconds, 60)
        hours, minutes = divmod(minutes, 60)
        days, hours = divmod(hours, 24)
        arguments += ["--trainer.max_time", f"{days:02}:{hours:02}:{minutes:02}:{seconds:02}"]
        arguments += ["--trainer.limit_val_batches", "0"]
    return [*arguments, *options.rest, "--seed_everything", str(seed)]


def run_vit(arguments: list[str], folder: Path) -> dict[str, Any]:
    """The summary of a `vit fit`, with the scores of its epochs and without their time."""
    summary = run_cell(arguments, folder)
    names = ("command", "precision", "model")
    settings = {name: summary[name] for name in names}
    settings["command"] = portable(settings["command"])
    with (folder / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("training_seconds")]
    summary = {**summary, "settings": settings}
    summary["scores"] = [(float(r["training_seconds"]), float(r["val/acc1"])) for r in rows]
    if rows:
        # The last epoch's, because `vit fit` may have selected the best by these scores.
        summary["metrics"] = {"test/acc1": summary["scores"][-1][1]}
        summary["train_seconds"] -= float(rows[-1]["evaluation_seconds"])
        summary["train_cpu_seconds"] -= float(rows[-1]["evaluation_cpu_seconds"])
    return summary


def run_peer(job: Job, folder: Path) -> dict[str, Any]:
    """The summary of a timm arm; a finished run is reused."""
    file = folder / "summary.json"
    print(f"{folder} ...", end=" ", file=sys.stderr, flush=True)
    began, how = time.monotonic(), "reused"
    if not file.is_file():
        folder.mkdir(parents=True)
        command = [
            sys.executable,
            str(HERE / "time_peers.py"),
            json.dumps(asdict(job)),
            str(folder),
        ]
        log = folder / "log.txt"
        with log.open("wb") as output:
            code = subprocess.call(command, stdout=output, stderr=subprocess.STDOUT)
        if code:
            lines = log.read_text(errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "no message")
            raise UserError(f"{folder} stopped (exit status {code}): {last.strip()}; see {log}")
        how = f"{time.monotonic() - began:.0f} s"
    print(how, file=sys.stderr)
    return json.loads(file.read_text(encoding="utf-8"))


def cell(arm: str, seed: int, options: Namespace) -> dict[str, Any]:
    """The summary of one arm and seed, trained if needed; SystemExit if made with other options."""
    folder = options.runs / arm / f"seed-{seed}"
    root = None if options.root is None else str(options.root)
    job = Job(arm, root, seed, options.seconds, bool(options.until), options.device, options.rest)
    arguments = fit_arguments(options, seed)
    settings = {"arguments": arguments if arm == "vit" else asdict(job)}
    note_options({**settings, "threads": options.threads}, folder)
    if not (folder / "summary.json").is_file():
        # An interrupted run is not resumed, because its time must be that of one process.
        shutil.rmtree(folder, ignore_errors=True)
    return run_vit(arguments, folder) if arm == "vit" else run_peer(job, folder)


def first_at(scores: list[tuple[float, float]], accuracy: float) -> float | None:
    """Seconds of training to the first epoch that reaches an accuracy; None if none does."""
    return next((seconds for seconds, score in scores if score >= accuracy), None)


def row(arm: str, summaries: list[dict[str, Any]], until: list[float]) -> dict[str, Any]:
    """One arm: the accuracy of each seed, their mean and deviation, and the mean cost."""
    accuracies = [summary["metrics"]["test/acc1"] for summary in summaries]

    def mean(name: str) -> float:
        return statistics.mean(summary[name] for summary in summaries)

    result = {
        "arm": arm,
        "label": ARMS[arm],
        "n": len(summaries),
        "accuracies": accuracies,
        "mean": statistics.mean(accuracies),
        "std": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        "images": summaries[0]["images"],
        "images_seen": mean("images_seen"),
        "steps": mean("steps"),
        "seconds": mean("train_seconds"),
        "cpu_seconds": mean("train_cpu_seconds"),
        "parameters": summaries[0]["parameters"],
        "settings": summaries[0]["settings"],
    }
    if until:
        result["seconds_to"] = {
            f"{value:g}": [first_at(summary["scores"], value) for summary in summaries]
            for value in until
        }
    return result


def table(rows: list[dict[str, Any]], until: list[float]) -> str:
    """The rows as a text table."""
    names = [f"seconds to {100 * value:g} %" for value in until]
    lines = [f"{'':28}  accuracy, %  images seen  seconds  CPU seconds  " + "  ".join(names)]
    for result in rows:
        spread = "" if result["std"] is None else f" ± {100 * result['std']:.1f}"
        cells = [f"{result['label']:28}", f"{100 * result['mean']:.1f}{spread}".rjust(11)]
        widths = {"images_seen": 11, "seconds": 7, "cpu_seconds": 11}
        cells += [f"{result[name]:{width},.0f}" for name, width in widths.items()]
        reached = result.get("seconds_to", {}).values()
        for name, seconds in zip(names, reached, strict=True):
            text = ", ".join("-" if s is None else f"{s:.1f}" for s in seconds)
            cells.append(text.rjust(len(name)))
        lines.append("  ".join(cells))
    return "\n".join(line.rstrip() for line in lines)


def check_data(root: Path) -> None:
    """Raises UserError if some arm cannot read the folder."""
    classes = {}
    for split in ("train", "test"):
        folder = root / split
        if not folder.is_dir():
            raise UserError(f"{root} has no folder {split}/; --data.root needs train/ and test/")
        classes[split] = sorted(p.name for p in folder.iterdir() if p.is_dir())
    if classes["train"] != classes["test"] or not classes["train"]:
        odd = sorted(set(classes["train"]) ^ set(classes["test"])) or ["no folder"]
        raise UserError(f"{root}: train/ and test/ must have the same classes; see {odd[0]}")
    first = root / "train" / classes["train"][0]
    files = sorted(p for p in first.iterdir() if p.is_file() and not p.name.startswith("."))
    if not files:
        raise UserError(f"{first} has no images")
    try:
        with Image.open(files[0]) as image:
            size = image.size
    except OSError as error:
        raise UserError(f"{files[0]} is not a readable image") from error
    if size != (SIZE, SIZE):
        width, height = size
        raise UserError(f"{files[0]} has {width} x {height} pixels; all must have {SIZE} x {SIZE}")


def parsed(args: list[str]) -> Namespace:
    """The command line, checked."""
    at = args.index("--") if "--" in args else len(args)
    summary = (__doc__ or "").split("\n\n")[0]
    parser = ArgumentParser("time_to_accuracy.py", description=summary, exit_on_error=False)
    parser.add_argument("--data.root", dest="root", type=Path, help="folder with train/ and test/")
    parser.add_argument(
        "--seconds", type=int, default=600, help="seconds of training (default 600)"
    )
    parser.add_argument("--seeds", type=int, default=3, help="default 3")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), metavar="ARM")
    parser.add_argument("--until", nargs="+", type=float, default=[], metavar="ACCURACY")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--runs", type=Path, default=Path("runs/time_to_accuracy"))
    parser.add_argument("--results", type=Path)
    try:
        options = parser.parse_args(args[:at])
    except ArgumentError as error:
        raise UserError(f"{error}; see `time_to_accuracy.py --help`") from error
    options.rest = args[at + 1 :]
    for name in ("seconds", "seeds"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name} {getattr(options, name)} must be at least 1")
    for value in options.until:
        if not 0 < value <= 1:
            raise UserError(f"--until {value:g}: accuracies are in (0, 1], such as 0.94")
    if options.root is not None:
        check_data(options.root)
    if options.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no GPU here")
    if options.results is None:
        kind = "cpu" if options.device == "cpu" else "gpu"
        options.results = HERE / "results" / f"time_to_accuracy_{kind}.json"
    return options


def rows_of_other_arms(options: Namespace, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of the results file for arms that are not selected, if the settings are the same."""
    if not options.results.is_file():
        return []
    document = json.loads(options.results.read_text())
    if any(document.get(name) != value for name, value in settings.items()):
        return []
    rows = [row for row in document["rows"] if row["arm"] not in options.arms]
    return [r for r in rows if list(r.get("seconds_to", {})) == [f"{v:g}" for v in options.until]]


def main(args: list[str]) -> dict[str, Any]:
    options = parsed(args)
    # Unless it is set, `vit fit` may use fewer threads for small models than the other arms.
    options.threads = torch.get_num_threads()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    # `vit fit` imports EpochTests from here.
    paths = [str(HERE.resolve()), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    summaries: dict[str, list[dict[str, Any]]] = {arm: [] for arm in options.arms}
    machine = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    settings = {
        "device": machine,
        "budget_seconds": options.seconds,
        "threads": options.threads,
        "folder": None if options.root is None else options.root.resolve().name,
        "options": options.rest,
        "hardware": hardware(),
        "versions": {**versions(), "timm": version("timm")},
    }
    others = rows_of_other_arms(options, settings)
    document: dict[str, Any] = {}
    for seed in range(options.seeds):
        for arm, finished in summaries.items():
            finished.append(cell(arm, seed, options))
        rows = [row(arm, runs, options.until) for arm, runs in summaries.items()] + others
        rows.sort(key=lambda result: list(ARMS).index(result["arm"]))
        document = {
            "what": "time to accuracy",
            **settings,
            "date": date.today().isoformat(),
            "commit": commit(),
            "rows": rows,
        }
        options.results.parent.mkdir(parents=True, exist_ok=True)
        options.results.write_text(json.dumps(document, indent=2) + "\n")
        print(table(rows, options.until), flush=True)
    return document


if __name__ == "__main__":
    try:
        print(json.dumps(main(sys.argv[1:])))
    except (UserError, CellFailed, Diverged) as error:
        raise SystemExit(f"time_to_accuracy.py: {error}") from None
