"""Options for a data set, chosen by successive halving within a time, and compared with the default
on images that no choice has seen."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from vit.console import note, say
from vit.errors import UserError
from vit.extensions.evaluation.paired import mean_difference
from vit.extensions.formats.published import table
from vit.extensions.recipes.budget import seconds_of
from vit.extensions.reports.run_list import read_history
from vit.extensions.sources.digests import images_digest
from vit.extensions.transfer import transfer
from vit.extensions.transfer.divided import Division, Job, JobGroup, of_same_images
from vit.extensions.transfer.search_images import PLAN, search_images
from vit.extensions.tune.halving import SEEDS, Timing, planned, rungs, survivors
from vit.extensions.tune.space import SPACE, Cell, Encoder, options, ordered, words
from vit.fine_tuning import steps_for
from vit.models.config import ViTConfig
from vit.recipes import DEFAULT_RECIPE, find_recipe, read_options
from vit.runs.options import OF_STEPS, Options
from vit.runs.records import Record
from vit.runs.short_names import Words
from vit.weights.pretrained import inspect_pretrained
from vit.writing import writable, write_json

STRIDE = 32
"""Pixels by which the sides of a ResNet's images can be divided."""
TRIAL_STEPS = 3, 30
"""Fewest and most steps of the run that is timed."""
DEFAULT, BEST = "default", "best"


def tune(
    data: str | Path,
    *,
    budget: str,
    pretrained: Sequence[str] = (),
    run_dir: str | Path | None = None,
    folds: int | None = None,
    seed: int = 0,
    shard: tuple[int, int] = (0, 1),
    rest: Sequence[str] = (),
) -> dict[str, Any]:
    """Chooses options for a data set within a time; returns what `vit tune --json` prints.

    Args:
        data: As for `vit fit --data`.
        budget: Such as 20m, 2h or 1h30m.
        pretrained: Encoders. By default that of the recipe, and others in the cache.
        run_dir: By default runs/tune/DATA. The same call continues what is there.
        folds: A cell has a run for each of so many folds of train and val, and is scored on all
            images of them. By default it is scored on val.
        seed: Of cells, splits and the first training.
        shard: Part, from 0, and number of parts, of one search on several machines.
        rest: Further words of each `vit fit`.
    """
    began, seconds = time.time(), seconds_of(budget)
    taken = (*transfer.SET_BY_PLAN, "--data.splits.seed", "--model.loss.teacher")
    transfer.check_free("tune", Words([*rest]).written, taken)
    if not 0 <= shard[0] < shard[1]:
        raise UserError(f"shard={shard} is not a number from 0, and a larger count")
    folder = writable(Path(run_dir or f"runs/tune/{Path(data).stem}").expanduser(), "--run_dir")
    names = [*dict.fromkeys(pretrained or _in_cache())]
    default = [f"--config={DEFAULT_RECIPE}", *rest, f"--model.pretrained={names[0]}"]
    final, parts = search_images(str(data), default, names, folds, seed, folder)
    search = {end: [*rest, *part, *transfer.SCORED_ON_VAL] for end, part in parts.items()}
    parsed = [Options([*default, *final, f"--model.pretrained={name}"]) for name in names]
    searched = [Options([*default, *words]) for words in search.values()]
    facts = {"space": SPACE, "seed": seed, "encoders": [each.weights for each in parsed]}
    facts |= {"folds": folds, "shards": shard[1], **_recorded(searched[0])}
    transfer.check_plan(folder / PLAN, facts, "--run_dir")
    tuning = Tuning(
        folder=folder,
        search=search,
        for_test=[*rest, *final, "--final_split=test"],
        encoders=[_encoder(each, names) for each in parsed],
        usual_steps=steps_for(len(parsed[0].data.splits.train), parsed[0].data.batch_size),
        images=_sizes(searched),
        metric="map" if searched[0].data.multilabel else "acc1",
        budget=seconds,
        seed=seed,
        division=Division(folder / "cells", shard, began),
    )
    tuning.division.cells.mkdir(exist_ok=True)
    return tuning.result()


def _in_cache() -> list[str]:
    """The encoder of the default recipe, and published ones in the cache that are no larger."""
    first: str = read_options(find_recipe(DEFAULT_RECIPE))["model"]["pretrained"]
    rows = table()
    here = [name for name, row in rows.items() if row.place().is_file()]
    return [first, *(name for name in here if rows[name].bytes <= rows[first].bytes)]


def _recorded(options: Options) -> Record:
    """Options and images by which a later call is known to be the same."""
    data, sets = options.data, options.data.splits.present().items()
    contents = {name: images_digest(each, contents=True) for name, each in sets}
    return {**options.recorded(), "digests": data.digests, "contents": contents}


def _sizes(searched: Sequence[Options]) -> dict[str, int]:
    """Images of each split of the first run of a cell; val: of all of its runs."""
    sizes = {name: len(each) for name, each in searched[0].data.splits.present().items()}
    return {**sizes, "val": sum(len(each.data.image_set("val")) for each in searched)}


def _encoder(parsed: Options, names: Sequence[str]) -> Encoder:
    """Encoder by the last part of its path, or by all of it where another one ends alike."""
    weights: str = parsed.config.model.pretrained
    name, alike = Path(weights).name, [Path(each).name for each in names]
    if alike.count(name) > 1:
        name = weights.strip("/").replace("/", "_")
    network = inspect_pretrained(weights).config
    patch = network.patch_size if isinstance(network, ViTConfig) else STRIDE
    return Encoder(weights, name, parsed.data.image_size, patch)


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """A search in its folder."""

    folder: Path
    search: dict[str, list[str]]
    """End of the name of each run of a cell -> words of `vit fit` for its images, scored on val."""
    for_test: list[str]
    """The same of a final run, on test. It trains on val too, if that was cut from train."""
    encoders: list[Encoder]
    usual_steps: int
    """Of the default recipe's final run."""
    images: dict[str, int]
    metric: str
    """acc1, or map of several labels per image."""
    budget: float
    """In seconds."""
    seed: int
    division: Division

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """Name -> cell, of all, in the order in which a plan takes them."""
        return ordered(self.encoders, self.seed)

    def trial(self, name: str, steps: int) -> JobGroup:
        """The runs of a cell in a rung."""
        return JobGroup([self.job(name, steps, part) for part in self.search])

    def job(self, name: str, steps: int, part: str = "", final: str = "", seed: int = 0) -> Job:
        """The run of a cell on a part of the search; `final`: its name as a final run, on test. A
        probe takes no steps, and is the same in each rung."""
        cell, cells = self.cells[name], self.division.cells
        texts = [*(self.for_test if final else self.search[part])]
        if cell.get("method") == "probe":
            texts = [text for text in texts if not OF_STEPS.match(text)]
        texts += [*words(cell, self.encoders, steps), f"--seed_everything={self.seed + seed}"]
        teacher = None
        if "teacher" in cell:
            teacher = self.job(DEFAULT, steps, part, final and DEFAULT, seed)
            texts.append(f"--teacher={teacher.folder}")
        run = name if cell.get("method") == "probe" else f"{name}_{steps}"
        final += f"_seed{seed}" if seed else ""
        folder = self.folder / final if final else cells / f"{run}{part}"
        return Job(folder, cells, texts, "test" if final else "val", after=teacher)

    def plan(self) -> Record:
        """Times the default, and chooses lengths and cells."""
        least, most = TRIAL_STEPS
        trial_steps = max(least, min(rungs(1, self.usual_steps)[0][1], most))
        trial = replace(self.trial(DEFAULT, trial_steps).jobs[0], timed=True)
        trial.words.append("--trainer.log_every_n_steps=1")
        say("timing the default recipe")
        self.division.complete([trial])
        check_default(trial.record.get("failed"))
        timing = timed(trial, len(self.search), self.division.shard[1])
        limits = self.usual_steps, len(self.cells), trial.seconds
        cells, steps = planned(self.budget, timing, *limits)
        return {
            "timing": vars(timing),
            "rungs": rungs(cells, steps),
            "cells": [*self.cells][:cells],
            "final_seconds": timing.final_seconds(steps),
        }

    def rung(self, number: int, names: list[str], plan: Record) -> Record:
        """rung_N.json: scores of the cells, those that time has cut off, and the best in order."""
        steps = plan["rungs"][number - 1][1]
        trials = {name: self.trial(name, steps) for name in names}
        jobs = [job for trial in trials.values() for job in trial.jobs]
        say(f"rung {number}: {len(names)} cells of {steps:,} steps")
        late = self.division.complete(jobs, self.budget - plan["final_seconds"])

        def decided() -> Record:
            check_default(trials[DEFAULT].failed)
            scores = {name: trial.score for name, trial in trials.items()}
            after = [count for count, _ in plan["rungs"][number:]] or [len(names)]
            return {
                "steps": steps,
                "val": scores,
                "seconds": {n: s for n, t in trials.items() if (s := t.seconds) is not None},
                "failed": {n: why for n, t in trials.items() if (why := t.failed)},
                "cut": [job.folder.name for job in late],
                "best": survivors(scores, after[0], DEFAULT),
            }

        return self.division.once(self.folder / f"rung_{number}.json", decided)

    def result(self) -> Record:
        """Runs what is left, and writes summary.json."""
        plan = self.division.once(self.folder / "plan.json", self.plan)
        names, done = plan["cells"], list[Record]()
        for number in range(1, len(plan["rungs"]) + 1):
            done.append(self.rung(number, names, plan))
            names = sorted(done[-1]["best"], key=DEFAULT.__ne__)  # time cuts off the default last
            if done[-1]["cut"]:
                break  # the rest of the time is for the final runs
        # Of the last rung in which the default has been compared with another cell.
        compared = [r for r in done if len(r["best"]) > 1 and r["val"][DEFAULT] is not None]
        winner = compared[-1]["best"][0] if compared else DEFAULT
        steps = plan["rungs"][-1][1]
        if steps < self.usual_steps:
            note(
                f"the budget leaves {steps:,} steps: the default is compared at these, and "
                f"`vit fit` alone takes {self.usual_steps:,}"
            )
        final = self.final(winner, steps)
        result = {
            "run": str(self.folder),
            "metric": self.metric,
            "images": self.images,
            "steps": steps,
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
        seeds = [
            {kind: self.job(name, steps, final=kind, seed=seed) for kind, name in kinds.items()}
            for seed in range(SEEDS)
        ]
        say(f"final runs of {steps:,} steps, on test: {', '.join(kinds.values())}")
        jobs = [job for of_seed in seeds for job in of_seed.values()]
        late = self.division.complete(jobs, self.budget)
        whole = [jobs for jobs in seeds if all(job.score is not None for job in jobs.values())]
        of_both = whole if winner != DEFAULT else []
        pairs = [(jobs[DEFAULT].predictions, jobs[BEST].predictions) for jobs in of_both]
        return {
            "test": {kind: [jobs[kind].score for jobs in seeds] for kind in kinds},
            "difference": mean_difference(of_same_images(pairs)) if pairs else None,
            "cut": [job.folder.name for job in late],
        }

    def compared(self, done: Sequence[Record]) -> list[Record]:
        """A row for each value of an option: the difference of cells with it from cells with the
        default's value that are otherwise the same, at the longest training that both had."""
        steps: dict[tuple[str, str], int] = {}
        for rung in done:
            names = [name for name, score in rung["val"].items() if score is not None]
            steps |= {(a, b): rung["steps"] for a in names for b in names}
        rows: list[Record] = []
        changes = [(n, v) for n, values in options(self.encoders).items() for v in values[1:]]
        for option, value in changes:
            pairs = [
                (self.trial(a, length).predictions, self.trial(b, length).predictions)
                for (a, b), length in steps.items()
                if option not in self.cells[a] and self.cells[b] == {**self.cells[a], option: value}
            ]
            if pairs:
                rows.append(
                    {"option": option, "value": value, **mean_difference(of_same_images(pairs))}
                )
        return rows


def check_default(why: str | None) -> None:
    """UserError if the default's run has failed."""
    if why:
        raise UserError(f"the default recipe failed: {why}")


def timed(job: Job, parts: int, machines: int) -> Timing:
    """Times of a run that has logged each step."""
    steps = [row for row in read_history(job.folder / "metrics.csv") if "train/loss" in row]
    (first, began), *_, (last, ended) = [(row["step"], row["seconds"]) for row in steps]
    step = (ended - began) / (last - first)
    return Timing(max(job.seconds - (last + 1) * step, 0.0), step, parts, machines)
