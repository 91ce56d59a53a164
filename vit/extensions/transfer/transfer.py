"""`vit transfer`: learning rates on a slice of train, then seeds on the test images.

The slice is cut from train by `--data.splits.val_fraction`. If val is given, or if each run would
cut another test, the images are listed in two files: search.csv (train, val, test) and final.csv,
in which val is part of train.
"""

import gc
import json
import os
import re
import shutil
import statistics
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from vit.console import note, say
from vit.data.sources import ImageSet, PathList, Splits
from vit.errors import UserError
from vit.extensions.sources.digests import images_digest
from vit.extensions.transfer import protocols
from vit.extensions.transfer.fold_lists import listed_folds, reading_folds
from vit.extensions.transfer.image_lists import csv_of, reading_options
from vit.extensions.transfer.protocols import Protocol
from vit.extensions.transfer.transfer_table import VTAB, Row, Trial, to_json, to_markdown
from vit.extensions.transfer.vtab import task_folders
from vit.hardware import hardware, versions
from vit.models.fields import as_size
from vit.runs.fit import fit
from vit.runs.options import Options
from vit.runs.records import read_summary
from vit.runs.resuming import differences, listed
from vit.runs.short_names import Words
from vit.weights.pretrained import inspect_pretrained
from vit.weights.weight_file import read_json
from vit.writing import writable, write_json, write_text

SET_BY_PLAN = (
    "--model.pretrained --model.optimizer.lr --data.dataset --data.root --data.splits.val_fraction "
    "--trainer.max_steps --trainer.max_epochs --trainer.max_time --trainer.limit_val_batches "
    "--trainer.fast_dev_run --seed_everything --final_split --run_dir --resume"
).split()
"""Options of `vit fit` that each run gets from the plan."""
SCORED_ON_VAL = ("--trainer.limit_val_batches=0", "--final_split=val")
"""Words of a run of a search: val is looked at once, with the last weights."""
SMALL_SLICE = 200
PRETRAINED_AT = 224
"""Pixels at which the paper's models are pre-trained, before they are fine-tuned at 384."""
_DIVERGED = re.compile(r"[^:]* not finite (since|after) step \d+")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The command line of `vit transfer`."""

    model: str
    sources: dict[str, str | None]
    """Name -> folder or manifest; None for a set of the catalog; vtab -> folder of its tasks."""
    recipe: str | None
    seeds: int
    lr_grid: tuple[float, ...] | None
    steps: int | None
    image_size: int | tuple[int, int] | None
    val_fraction: float | None
    folds: int | None
    """A rate is scored on all of train, by a run for each of so many folds."""
    rest: list[str]
    """Further options of `vit fit`."""

    def __post_init__(self) -> None:
        check_free("transfer", Words(self.rest).written, SET_BY_PLAN)
        if None not in (self.folds, self.val_fraction):
            raise UserError("--folds scores the rates on all of train; leave --val-fraction out")

    def protocol(self, name: str, images: int) -> Protocol:
        """The paper's protocol, changed by the user.

        For other data sets its most common grid, and the steps of BiT-HyperRule for `images`
        training images (arXiv:1912.11370, section 3.3).
        """
        if name.startswith(VTAB):
            default = protocols.VTAB
        elif name in protocols.PAPER:
            default = protocols.PAPER[name]
        else:
            steps = 500 if images < 20_000 else 10_000 if images < 500_000 else 20_000
            default = Protocol(steps, protocols.GRID, 0.1)
        return Protocol(
            self.steps or default.steps,
            self.lr_grid or default.lr_grid,
            self.val_fraction or default.val_fraction,
        )

    def arguments(
        self, name: str, protocol: Protocol, of_data: list[str], lr: float, seed: int
    ) -> list[str]:
        """The arguments of a `vit fit`; those of the plan come last and override recipes."""
        size = (
            [] if self.image_size is None else [f"--data.image_size={json.dumps(self.image_size)}"]
        )
        recipe = self.recipe or f"transfer/{'vtab' if name.startswith(VTAB) else 'vit'}"
        return [
            *("-c", recipe, f"--model.schedule.warmup_steps={protocol.warmup_steps}"),
            *(*self.rest, *size, *of_data),
            f"--model.pretrained={self.model}",
            f"--model.optimizer.lr={lr}",
            f"--trainer.max_steps={protocol.steps}",
            "--trainer.max_epochs=-1",
            f"--seed_everything={seed}",
        ]


@dataclass(frozen=True, kw_only=True)
class Task:
    """Data set: its row of the table, and its runs of `vit fit`."""

    plan: Plan
    row: Row
    protocol: Protocol
    folder: Path
    search: dict[str, list[str]]
    """End of the name -> options of each run of a rate, which the slice or a fold scores."""
    final: list[str]
    """Options of those that are tested."""
    lists: dict[str, str]
    """Name -> text of the lists of images that the runs read."""
    recorded: dict[str, object]
    """Options and digests of images by which a later call is known to be the same."""

    def fill(self) -> None:
        """Runs the grid, then the seeds at the best rate."""
        row, grid = self.row, list(self.protocol.lr_grid)
        if len(grid) > 1:
            row.search = [self._searched(lr) for lr in grid]
        best = row.lr if row.search else grid[0]
        if best is not None:  # None: all diverged
            seeds = range(self.plan.seeds)
            row.final = [
                self._trial(f"seed-{seed}", "test", best, seed, self.final) for seed in seeds
            ]

    def _searched(self, lr: float) -> Trial:
        """A rate on the slice, or the mean of its runs on the folds."""
        ends = self.search.items()
        trials = [self._trial(f"lr-{lr}{end}", "val", lr, 0, words) for end, words in ends]
        scores = [trial.score for trial in trials if trial.score is not None]
        return Trial(
            lr=lr,
            seed=0,
            score=statistics.mean(scores) if len(scores) == len(trials) else None,
            reason=next((trial.reason for trial in trials if trial.reason), None),
            seconds=sum(trial.seconds for trial in trials),
            cpu_seconds=sum(trial.cpu_seconds for trial in trials),
            continued=any(trial.continued for trial in trials),
        )

    def _trial(self, name: str, split: str, lr: float, seed: int, of_data: list[str]) -> Trial:
        """Trains a run, and scores it on val or test."""
        row, folder = self.row, self.folder / name
        say(f"{row.data} {name}, lr {lr}, {row.steps:,} steps:")
        arguments = self.plan.arguments(row.data, self.protocol, of_data, lr, seed)
        reason = _run([*arguments, f"--run_dir={folder}"], folder)
        if reason is not None:
            say(f"{row.data} {name} failed: {reason}")
            return Trial(lr=lr, seed=seed, score=None, reason=reason)
        summary = read_summary(folder)
        score = summary["metrics"][f"{split}/{row.metric}"]
        count = summary["images"][split]
        say(f"{row.data} {name}: {100 * score:.2f} % of {count:,} {split} images")
        if split == "val":
            # Only its score is needed; the optimizer's state is larger than the model.
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        return Trial(
            lr=lr,
            seed=seed,
            score=score,
            seconds=summary["train_seconds"],
            cpu_seconds=summary["train_cpu_seconds"],
            continued=summary.get("resumed_at") is not None,
        )


def transfer(plan: Plan, out: Path) -> tuple[list[Row], dict[str, Any]]:
    """Trains the unfinished runs; returns all rows of the table, and facts in JSON types.

    Writes `out`/results.md and results.json after each data set. UserError for a mistake; Stopped
    after a signal, once the current run is saved.
    """
    plan = _at_own_size(plan)
    sources: dict[str, str | None] = {}
    for name, root in plan.sources.items():
        tasks_of = task_folders(root) if name == "vtab" and root is not None else {}
        sources |= {f"{VTAB}{task}": place for task, place in tasks_of.items()} or {name: root}
    tasks = [_prepare(plan, name, root, out / name) for name, root in sources.items()]
    check_plan(writable(out, "--out") / "plan.json", {t.row.data: t.recorded for t in tasks})
    about = {"model": plan.model, "recipe": plan.recipe, "options": plan.rest}
    about |= {"versions": versions(), "hardware": hardware()}
    rows: list[Row] = []
    for task in tasks:
        for name, text in task.lists.items():
            write_text(task.folder / name, text, errors="surrogateescape")
        images = task.row.images.items()
        say(f"{task.row.data}: {', '.join(f'{part} {count:,}' for part, count in images)}")
        for text in task.row.notes:
            note(text)
        task.fill()
        rows.append(task.row)
        write_text(out / "results.md", to_markdown(rows))
        write_text(out / "results.json", to_json(rows, about))
    return rows, about


def _at_own_size(plan: Plan) -> Plan:
    """The plan, at the image size of a model that was trained at fewer pixels than the paper's,
    unless a size or a recipe is given."""
    typed = "data.image_size" in Words(plan.rest).typed
    model = os.path.expanduser(plan.model)  # weights to be fetched are not that small
    if typed or plan.image_size or plan.recipe or not os.path.exists(model):
        return plan
    try:
        info = inspect_pretrained(model)
    except UserError:  # a fact is missing that `rest` may give
        return plan
    size = as_size((info.preprocess or {}).get("image_size", info.config.size))
    if max(size) >= PRETRAINED_AT:
        return plan
    note(f"{plan.model} was trained at {size[0]} x {size[1]} pixels, and so are these runs")
    return replace(plan, image_size=size)


def _prepare(plan: Plan, name: str, root: str | None, folder: Path) -> Task:
    """Reads data and weights as a run will, so that errors are found before any training."""
    early = plan.protocol(name, 0)
    searching = len(early.lr_grid) > 1
    places = ["--data.root=null", f"--data.dataset={name}"]
    source = places if root is None else [f"--data.root={root}"]
    share = early.val_fraction if searching and plan.folds is None else 0
    search = [*source, f"--data.splits.val_fraction={share}"]
    options = Options(plan.arguments(name, early, search, early.lr_grid[0], seed=0))
    if not options.module_class.labelled:
        raise UserError(f"{plan.recipe} trains without labels; choose a --recipe that classifies")
    data, splits = options.data, options.data.splits
    options.build_model(data)
    if splits.test is None:
        raise UserError(
            f"{root or name} has no test images: give it a test folder (or rows), or "
            "rename its val to test; the slice is then split from train"
        )
    folds = plan.folds if searching else None
    lists = {} if folds is None else {"folds.csv": listed_folds(options, folds)}
    if not lists and (splits.val_origin == "given" or splits.test_origin == "cut from train"):
        lists = {"search.csv": csv_of(splits, "val"), "final.csv": csv_of(splits, "train")}
    of_runs = [reading_options(splits, folder / file) for file in lists]
    of_runs = of_runs or [search, [*source, "--data.splits.val_fraction=0"]]
    of_search = reading_folds(splits, folder / "folds.csv", folds) if folds else {"": of_runs[0]}
    protocol = plan.protocol(name, len(splits.train) + len(splits.val or ()))
    return Task(
        plan=plan,
        row=_row(name, splits, protocol.steps, plan.folds, searching=searching),
        protocol=protocol,
        folder=folder,
        search={end: [*words, *SCORED_ON_VAL] for end, words in of_search.items()},
        final=[*of_runs[-1], "--final_split=test"],
        lists=lists,
        recorded={
            **options.recorded(),
            "images": data.digests,
            "contents": {**_contents(splits), "shards": data.contents},
            "plan": {**asdict(protocol), "folds": folds},
        },
    )


def _contents(splits: Splits) -> dict[str, str]:
    """Split -> digest of its files or shards, whose contents may change between two calls."""
    parts = splits.present().items()
    return {n: images_digest(p, contents=True) for n, p in parts if _stored(p)}


def _stored(images: ImageSet) -> bool:
    return isinstance(images.items, PathList) or images.contents_digest() is not None


def _row(name: str, splits: Splits, steps: int, folds: int | None, *, searching: bool) -> Row:
    """The data set as it stands in the table before any run. Folds make all of train the slice."""
    held, notes = len(splits.val or ()), list(splits.notes)
    images = {"train": len(splits.train) + held}
    images["slice"] = (images["train"] if folds else held) * searching
    if folds and not searching:
        notes.append(f"{name}: --folds has no effect, as one learning rate needs no search")
    if 0 < images["slice"] < SMALL_SLICE:
        notes.append(f"{name}: one image of the slice is {100 / images['slice']:.1f} %")
    images["test"] = len(splits.test or ())
    metric = "map" if splits.multilabel else "acc1"
    return Row(data=name, metric=metric, steps=steps, images=images, notes=notes)


def check_free(command: str, args: list[str], taken: Iterable[str]) -> None:
    """UserError if an option begins with one that the command sets itself."""
    for option in (arg.partition("=")[0] for arg in args):
        if option.startswith(tuple(taken)):
            raise UserError(f"{option}: `vit {command}` sets it for each run; remove it")


def check_plan(path: Path, plan: dict[str, object], option: str = "--out") -> None:
    """Writes the plan, or compares it: UserError if `path` was written for other runs, in the
    folder of this option."""
    if not path.is_file():
        write_json(path, plan)
    before, now = read_json(path), json.loads(json.dumps(plan))
    if changed := differences(before, now):
        raise UserError(
            f"{path.parent} was started with other options, weights or images: {listed(changed)}; "
            f"choose another {option}, or give the same"
        )


def _run(arguments: list[str], folder: Path) -> str | None:
    """Trains or resumes one run. Returns why it diverged (also in an earlier call), or None."""
    diverged = folder / "diverged.txt"
    if diverged.is_file():
        return diverged.read_text(encoding="utf-8").strip()
    try:
        train(arguments)
    except UserError as error:
        if (reason := _DIVERGED.match(str(error))) is None:
            raise
        write_text(diverged, f"{reason[0]}\n")
        return reason[0]
    return None


def train(arguments: list[str]) -> str:
    """`vit fit ARGUMENTS`: trains, resumes, or reuses a run; returns what to say at the end."""
    gc.collect()  # the model of the run before
    typed, environment = sys.argv, dict(os.environ)
    sys.argv = [typed[0], "fit", *arguments]  # what Lightning repeats for other processes
    try:
        return fit(Options(arguments))[1]
    finally:
        sys.argv = typed
        os.environ.clear()  # ranks and ports of the run
        os.environ.update(environment)
        if dist.is_initialized():
            dist.destroy_process_group()
