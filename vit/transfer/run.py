"""The runs of `vit transfer` in sequence, with one line on standard error each."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit.console import clock, note, say
from vit.hardware import hardware, versions
from vit.transfer.cells import Diverged, run_cell
from vit.transfer.plan import Arguments, check_plan
from vit.transfer.table import Row, Trial, to_csv, to_json, to_markdown
from vit.transfer.tasks import Preview, Task, cell_arguments, prepare


def transfer(arguments: Arguments, out: Path, preview: Preview) -> tuple[list[Row], dict[str, Any]]:
    """All rows of the table and the options, in JSON types.

    Trains all unfinished cells, and writes `out`/results.md, .csv and .json after each data set, so
    that the tables of finished data sets survive a kill.

    Raises:
        UserError: A user error, before any training if possible.
        CellFailed: A run stopped; the next call resumes it.
    """
    tasks = []
    for source in arguments.sources:
        (out / source.name).mkdir(exist_ok=True)
        task = prepare(arguments, source, out / source.name, preview)
        settings = {"steps": task.protocol.steps, "images": task.images}
        check_plan(out / "plan.json", f"data set {task.name}", settings)
        tasks.append(task)
        counts = ", ".join(f"{part} {count:,}" for part, count in task.images.items())
        say(f"{task.name}: {counts}")
        for text in task.notes:
            note(text)
    say(f"the output of each run is in {out}/DATA/RUN/log.txt")
    about = {
        "model": arguments.model,
        "recipe": arguments.recipe,
        "options": arguments.rest,
        "versions": versions(),
        "hardware": hardware(),
    }
    cells = Cells(arguments, tasks, out)
    rows: list[Row] = []
    for task in tasks:
        rows.append(cells.row(task))
        for suffix, text in (
            ("md", to_markdown(rows)),
            ("csv", to_csv(rows)),
            ("json", to_json(rows, about)),
        ):
            (out / f"results.{suffix}").write_text(text, encoding="utf-8")
    return rows, about


@dataclass
class Cells:
    """All runs of a plan, and their progress."""

    arguments: Arguments
    tasks: list[Task]
    out: Path

    def __post_init__(self) -> None:
        seeds = self.arguments.seeds
        counts = [
            (seeds + (len(task.protocol.lr_grid) if task.searches else 0), task.protocol.steps)
            for task in self.tasks
        ]
        self.total = sum(count for count, _ in counts)
        self.number = 0
        self.steps_left = sum(count * steps for count, steps in counts)
        self.seconds, self.steps_done = 0.0, 0

    def row(self, task: Task) -> Row:
        """Runs the grid, then the seeds."""
        grid = task.protocol.lr_grid
        row = Row(
            data=task.name,
            metric=task.metric,
            steps=task.protocol.steps,
            images=task.images,
            notes=task.notes,
        )
        if task.searches:
            row.search = [self.trial(task, lr=lr, seed=0, final=False) for lr in grid]
        best = row.lr if task.searches else grid[0]
        if best is None:  # all diverged
            skipped = self.arguments.seeds
            self.number += skipped
            self.steps_left -= skipped * task.protocol.steps
            return row
        for seed in range(self.arguments.seeds):
            row.final.append(self.trial(task, lr=best, seed=seed, final=True))
        return row

    def trial(self, task: Task, *, lr: float, seed: int, final: bool) -> Trial:
        """Runs one cell; prints one line on stderr."""
        folder = self.out / task.name / (f"seed-{seed}" if final else f"lr-{lr}")
        options = task.final if final else task.search
        arguments = cell_arguments(self.arguments, task.protocol, options, lr=lr, seed=seed)
        self.number += 1
        self.steps_left -= task.protocol.steps
        what = f"seed {seed}, lr {lr}" if final else f"lr {lr}"
        steps = f"{task.protocol.steps:,} steps"
        say(f"[{self.number}/{self.total}] {task.name} {what}, {steps}:", end=" ")
        began = time.monotonic()
        try:
            summary, reused = run_cell(arguments, folder)
        except Diverged as reason:
            say(f"failed: {reason}")
            return Trial(lr=lr, seed=seed, score=None, reason=str(reason))
        except BaseException:
            say("stopped")
            raise
        trial = _trial(summary, task, lr=lr, seed=seed, final=final)
        part = "test" if final else "slice"
        line = f"{100 * (trial.score or 0):.2f} % of {task.images[part]:,} {part} images"
        say(f"{line}, {self._timing(task, time.monotonic() - began, reused)}")
        if not final:  # only its score is needed; the optimizer's state is larger than the model
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        return trial

    def _timing(self, task: Task, took: float, reused: bool) -> str:
        """Duration of a run, and the estimate for the others."""
        if reused:
            return "reused"
        self.seconds += took
        self.steps_done += task.protocol.steps
        if not self.steps_left:
            return clock(took)
        return (
            f"{clock(took)}, about {clock(self.seconds / self.steps_done * self.steps_left)} left"
        )


def _trial(summary: dict[str, Any], task: Task, *, lr: float, seed: int, final: bool) -> Trial:
    return Trial(
        lr=lr,
        seed=seed,
        score=summary["metrics"][f"{'test' if final else 'val'}/{task.metric}"],
        seconds=summary["train_seconds"],
        cpu_seconds=summary["train_cpu_seconds"],
        continued=summary.get("resumed_at") is not None,
    )
