"""Options for a data set, chosen by successive halving within a time, and compared with the default
on images that no choice has seen."""

import csv
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from vit.console import say
from vit.errors import UserError
from vit.extensions.recipes.budget import seconds_of
from vit.extensions.reports.intervals import Z_95
from vit.extensions.transfer.transfer import SET_BY_PLAN, check_free, check_plan
from vit.extensions.tune.halving import SEEDS, Timing, covered, planned, rungs, survivors
from vit.extensions.tune.jobs import Job, complete
from vit.extensions.tune.setup import Setup, set_up
from vit.extensions.tune.space import Cell, options, ordered, words
from vit.runs.records import Record
from vit.runs.short_names import Words
from vit.weights.weight_file import read_json
from vit.writing import writable, write_json

TRIAL_STEPS = 3, 30
"""Fewest and most steps of the run that is timed."""
DEFAULT, BEST = "default", "best"


def tune(
    data: str | Path,
    *,
    budget: str,
    pretrained: Sequence[str] = (),
    run_dir: str | Path | None = None,
    seed: int = 0,
    rest: Sequence[str] = (),
) -> dict[str, Any]:
    """Chooses options for a data set within a time; returns what `vit tune --json` prints.

    Args:
        data: As for `vit fit --data`.
        budget: Such as 20m, 2h or 1h30m.
        pretrained: Encoders. By default that of the recipe, and others in the cache.
        run_dir: By default runs/tune/DATA. The same call continues what is there.
        seed: Of cells, splits and the first training.
        rest: Further words of each `vit fit`.
    """
    began, seconds, others = time.time(), seconds_of(budget), [*rest]
    check_free("tune", Words(others).written, SET_BY_PLAN)
    folder = writable(Path(run_dir or f"runs/tune/{Path(data).stem}").expanduser(), "--run_dir")
    (folder / "cells").mkdir(exist_ok=True)
    setup = set_up(str(data), pretrained, seed, others, folder)
    check_plan(folder / "options.json", setup.facts)
    return Tuning(folder, setup, seconds, seed, began).result()


@dataclass(frozen=True)
class Tuning:
    """A search in its folder; times in seconds, `began` since 1970."""

    folder: Path
    setup: Setup
    budget: float
    seed: int
    began: float

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """Name -> cell, of all, in the order in which a plan takes them."""
        return ordered(self.setup.encoders, self.seed)

    def job(self, name: str, steps: int, final: str = "", seed: int = 0) -> Job:
        """The run of a cell on val; `final`: its name as a final run, on test. A probe takes no
        steps, and is the same in each rung."""
        cell, probe = self.cells[name], self.cells[name].get("method") == "probe"
        shared = self.setup.final if final else self.setup.search
        texts = [*shared, *words(cell, self.setup.encoders), f"--seed_everything={self.seed + seed}"]
        if not probe:
            texts += [f"--trainer.max_steps={steps}", "--trainer.max_epochs=-1"]
        if final:
            final += f"_seed{seed}" if seed else ""
            return Job(self.folder / final, self.folder / "cells", texts, "test")
        place = self.folder / "cells" / (name if probe else f"{name}_{steps}")
        return Job(place, self.folder / "cells", texts, "val")

    def before(self, seconds: float) -> Callable[[], bool]:
        """True until so many seconds are used by this command and by runs that have ended."""

        def in_time() -> bool:
            records = map(read_json, (self.folder / "cells").glob("*.json"))
            ended = [(record["began"], record["ended"]) for record in records]
            return covered([(self.began, time.time()), *ended]) < seconds

        return in_time

    def once(self, name: str, make: Callable[[], Record]) -> Record:
        """A decision in a file, made by the process that comes first."""
        with FileLock(self.folder / "cells" / f"{name}.lock"):
            if not (self.folder / name).is_file():
                write_json(self.folder / name, make())
        return read_json(self.folder / name)

    def plan(self) -> Record:
        """Times the default, and chooses lengths and cells."""
        least, most = TRIAL_STEPS
        steps = max(least, min(rungs(1, self.setup.steps)[0][1], most))
        trial = replace(self.job(DEFAULT, steps), timed=True)
        trial.words.append("--trainer.log_every_n_steps=1")
        complete([trial], lambda: True)
        check_default(trial)
        timing, used = timed(trial)
        cells, steps = planned(self.budget, timing, self.setup.steps, len(self.cells), used)
        return {
            "timing": vars(timing),
            "steps": steps,
            "rungs": rungs(cells, steps),
            "cells": [*self.cells][:cells],
            "final_seconds": timing.final_seconds(steps),
        }

    def rung(self, number: int, names: list[str], plan: Record) -> Record:
        """rung_N.json: scores of the cells, those that time has cut off, and the best in order."""
        steps = plan["rungs"][number - 1][1]
        jobs = {name: self.job(name, steps) for name in names}
        say(f"rung {number}: {len(jobs)} cells of {steps:,} steps")
        late = complete([*jobs.values()], self.before(self.budget - plan["final_seconds"]))

        def decided() -> Record:
            check_default(jobs[DEFAULT])
            scores = {name: job.score for name, job in jobs.items()}
            after = [count for count, _ in plan["rungs"][number:]] or [len(jobs)]
            return {
                "steps": steps,
                "val": scores,
                "seconds": {n: job.seconds for n, job in jobs.items() if job.record},
                "failed": {n: why for n, job in jobs.items() if (why := job.record.get("failed"))},
                "cut": [job.folder.name for job in late],
                "best": survivors(scores, after[0], DEFAULT),
            }

        return self.once(f"rung_{number}.json", decided)

    def result(self) -> Record:
        """Runs what is left, and writes summary.json."""
        plan = self.once("plan.json", self.plan)
        names, done = plan["cells"], list[Record]()
        for number in range(1, len(plan["rungs"]) + 1):
            done.append(self.rung(number, names, plan))
            names = done[-1]["best"]
        # Of the last rung in which the default has been compared with another cell.
        winner = next((r["best"][0] for r in reversed(done) if len(r["best"]) > 1), DEFAULT)
        final = self.final(winner, plan["steps"])
        result = {
            "run": str(self.folder),
            "images": self.setup.images,
            "steps": plan["steps"],
            "rungs": done,
            "options": self.compared(done),
            "winner": winner,
            **final,
            "cut": [name for part in (*done, final) for name in part["cut"]],
        }
        write_json(self.folder / "summary.json", result)
        return result

    def final(self, winner: str, steps: int) -> Record:
        """The winner and the default with each seed, scored on test, and their difference."""
        kinds = {BEST: winner} | ({DEFAULT: DEFAULT} if winner != DEFAULT else {})
        seeds = [{k: self.job(kinds[k], steps, k, seed) for k in kinds} for seed in range(SEEDS)]
        say(f"final runs of {steps:,} steps, on test: {', '.join(kinds.values())}")
        late = complete([job for jobs in seeds for job in jobs.values()], self.before(self.budget))
        whole = [jobs for jobs in seeds if all(job.score is not None for job in jobs.values())]
        pairs = [(jobs[DEFAULT].hits, jobs[BEST].hits) for jobs in whole if len(kinds) > 1]
        return {
            "test": {kind: [jobs[kind].score for jobs in seeds] for kind in kinds},
            "difference": difference(pairs) if pairs else None,
            "cut": [job.folder.name for job in late],
        }

    def compared(self, done: Sequence[Record]) -> list[Record]:
        """For each value of an option the difference of cells that differ in it alone from those
        with the default's value, at the longest training that both had."""
        steps: dict[tuple[str, str], int] = {}
        for rung in done:
            names = [name for name, score in rung["val"].items() if score is not None]
            steps |= {(a, b): rung["steps"] for a in names for b in names}
        rows: list[Record] = []
        for option, values in options(self.setup.encoders).items():
            for value in values[1:]:
                pairs = [
                    (self.job(a, length).hits, self.job(b, length).hits)
                    for (a, b), length in steps.items()
                    if self.cells[b] == {**self.cells[a], option: value} != self.cells[a]
                    and option not in self.cells[a]
                ]
                if pairs:
                    rows.append({"option": option, "value": value, **difference(pairs)})
        return rows


def check_default(job: Job) -> None:
    """UserError if the default's run has failed."""
    if why := job.record["failed"]:
        raise UserError(f"the default recipe failed: {why}")


def timed(job: Job) -> tuple[Timing, float]:
    """Times of a run that has logged each step, and its seconds."""
    with (job.folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        steps = [row for row in csv.DictReader(file) if row["train/loss"]]
    (first, began), *_, (last, ended) = [(int(s["step"]), float(s["seconds"])) for s in steps]
    step = (ended - began) / (last - first)
    return Timing(max(job.seconds - (last + 1) * step, 0.0), step), job.seconds


def difference(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> Record:
    """The mean over pairs (before, after) of models, each (n,) true for the same n images that it
    names rightly: `points` by which the second is better, with a 95 % `interval`.

    For one pair it is the adjusted Wald interval of paired proportions (Bonett and Price, 2012). Of
    several, an image counts by its mean: the interval is for other images, with these models.
    """
    gains = np.mean([after.astype(float) - before for before, after in pairs], axis=0)
    adjusted = np.concatenate([gains, [1, -1]])
    centre, spread = adjusted.mean(), Z_95 * adjusted.std() / len(adjusted) ** 0.5
    interval = [100 * float(centre - spread), 100 * float(centre + spread)]
    points = 100 * float(gains.mean())
    return {"points": points, "interval": interval, "pairs": len(pairs), "images": len(gains)}
