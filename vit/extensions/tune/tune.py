"""Options for a data set, chosen by successive halving within a time, and compared with the default
on images that no choice has seen."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from vit.console import note, say
from vit.data.sources import Splits
from vit.data.trained_on import Known
from vit.errors import UserError
from vit.extensions.evaluation.paired import mean_difference
from vit.extensions.formats.published import table
from vit.extensions.recipes.budget import seconds_of
from vit.extensions.reports.run_list import read_history
from vit.extensions.sources.digests import images_digest
from vit.extensions.transfer import transfer
from vit.extensions.transfer.divided import Job, complete
from vit.extensions.transfer.image_lists import reading_options
from vit.extensions.tune.halving import SEEDS, Timing, covered, planned, rungs, survivors
from vit.extensions.tune.space import SPACE, Cell, Encoder, options, ordered, words
from vit.fine_tuning import ENOUGH_TO_CHOOSE, steps_for
from vit.models.config import ViTConfig
from vit.recipes import DEFAULT_RECIPE, find_recipe, read_options
from vit.runs.lineage import known_by
from vit.runs.options import Options
from vit.runs.records import Record
from vit.runs.short_names import Words
from vit.weights.pretrained import inspect_pretrained
from vit.weights.weight_file import read_json
from vit.writing import writable, write_json, write_text

VAL_IMAGES, MOST_SHARE = 0.9 * ENOUGH_TO_CHOOSE, 0.3
"""Images that are cut from train for val, at most this share of it; with more of them, a run of the
search would choose the average of its weights by them, and a final run could not."""
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
    began, seconds = time.time(), seconds_of(budget)
    taken = (*transfer.SET_BY_PLAN, "--data.splits.seed")
    transfer.check_free("tune", Words([*rest]).written, taken)
    folder = writable(Path(run_dir or f"runs/tune/{Path(data).stem}").expanduser(), "--run_dir")
    (folder / "cells").mkdir(exist_ok=True)
    names = [*dict.fromkeys(pretrained or _in_cache())]
    default = [f"--config={DEFAULT_RECIPE}", *rest, f"--model.pretrained={names[0]}"]
    final, cut = _images(str(data), default, names, seed, folder)
    search = [*final, *cut, "--trainer.limit_val_batches=0", "--final_split=val"]
    parsed = Options([*default, *search])
    others = [Options([*default, *final, f"--model.pretrained={name}"]) for name in names[1:]]
    encoders = [_encoder(each) for each in (parsed, *others)]
    sets = parsed.data.splits.present()
    facts = {**parsed.recorded(), "digests": parsed.data.digests, "space": SPACE, "seed": seed}
    facts["contents"] = {name: images_digest(each, contents=True) for name, each in sets.items()}
    transfer.check_plan(folder / "options.json", {**facts, "encoders": names}, "--run_dir")
    images = {name: len(each) for name, each in sets.items()}
    steps = steps_for(images["train"] + bool(cut) * images["val"], parsed.data.batch_size)
    shared = {"val": [*rest, *search], "test": [*rest, *final, "--final_split=test"]}
    tuning = Tuning(folder, shared, encoders, steps, images, seconds, seed, began)
    return tuning.result()


def _images(
    data: str, default: list[str], encoders: Sequence[str], seed: int, folder: Path
) -> tuple[list[str], list[str]]:
    """Words for the images with a test split, and those that cut val from train, if need be."""
    final, cut = [f"--data={data}", f"--data.splits.seed={seed}"], list[str]()
    seen = [known.digests for name in encoders if (known := known_by(name)) is not None]
    known = Known(reduce(np.union1d, seen), " or ".join(encoders)) if seen else None
    splits = Options([*default, *final]).data.unseen_by(known).splits
    if splits.multilabel or (splits.test is None and splits.val is None):
        lack = "several labels per image" if splits.multilabel else "too few images to hold any out"
        raise UserError(f"{data} has {lack}; `vit tune` compares accuracies on held-out images")
    if splits.test is None:
        note(f"{data} has no test images: its val is test here, and val is cut from train")
        final[:1] = _listed(splits, "test", folder / "images.csv")
    if splits.test is None or splits.val is None:
        share = min(VAL_IMAGES / len(splits.train), MOST_SHARE)
        cut = [f"--data.splits.val_fraction={share:.3g}"]
    if known is not None:  # the cut of each encoder alone would leave it other images
        splits = Options([*default, *final, *cut]).data.unseen_by(known).splits
        final[:1] = _listed(splits, "train" if cut else "val", folder / "final.csv")
        cut = cut and _listed(splits, "val", folder / "search.csv")
    return final, cut


def _listed(splits: Splits, val: str, file: Path) -> list[str]:
    """Writes a list of the images, with this split for those of val; words that read it."""
    write_text(file, transfer.csv_of(splits, val), errors="surrogateescape")
    return reading_options(splits, file)


def _in_cache() -> list[str]:
    """The encoder of the default recipe, and published ones in the cache that are no larger."""
    first: str = read_options(find_recipe(DEFAULT_RECIPE))["model"]["pretrained"]
    rows = table()
    here = [name for name, row in rows.items() if row.place().is_file()]
    return [first, *(name for name in here if rows[name].bytes <= rows[first].bytes)]


def _encoder(parsed: Options) -> Encoder:
    weights = parsed.config.model.pretrained
    network = inspect_pretrained(weights).config
    patch = network.patch_size if isinstance(network, ViTConfig) else STRIDE
    return Encoder(weights, Path(weights).name, parsed.data.image_size, patch)


@dataclass(frozen=True)
class Tuning:
    """A search in its folder; times in seconds, `began` since 1970."""

    folder: Path
    shared: dict[str, list[str]]
    """Split -> words of `vit fit` of all cells that are scored on it. Those of test train on images
    of val too, if it was cut from train."""
    encoders: list[Encoder]
    usual_steps: int
    """Of the default recipe's final run."""
    images: dict[str, int]
    budget: float
    seed: int
    began: float

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """Name -> cell, of all, in the order in which a plan takes them."""
        return ordered(self.encoders, self.seed)

    def job(self, name: str, steps: int, final: str = "", seed: int = 0) -> Job:
        """The run of a cell on val; `final`: its name as a final run, on test. A probe takes no
        steps, and is the same in each rung."""
        cell, cells, split = self.cells[name], self.folder / "cells", "test" if final else "val"
        texts = [*self.shared[split], *words(cell, self.encoders)]
        texts.append(f"--seed_everything={self.seed + seed}")
        if cell.get("method") != "probe":
            texts += [f"--trainer.max_steps={steps}", "--trainer.max_epochs=-1"]
            name = f"{name}_{steps}"
        final += f"_seed{seed}" if seed else ""
        return Job(self.folder / final if final else cells / name, cells, texts, split)

    def before(self, seconds: float) -> Callable[[], bool]:
        """True until so many seconds are used by this command and by runs that have ended."""

        def in_time() -> bool:
            # Not those that another process is writing.
            records = map(read_json, (self.folder / "cells").glob("[!.]*.json"))
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
        trial_steps = max(least, min(rungs(1, self.usual_steps)[0][1], most))
        trial = replace(self.job(DEFAULT, trial_steps), timed=True)
        trial.words.append("--trainer.log_every_n_steps=1")
        complete([trial], lambda: True)
        check_default(trial)
        timing = timed(trial)
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
            if done[-1]["cut"]:
                break  # the rest of the time is for the final runs
        # Of the last rung in which the default has been compared with another cell.
        winner = next((r["best"][0] for r in reversed(done) if len(r["best"]) > 1), DEFAULT)
        steps = plan["rungs"][-1][1]
        if steps < self.usual_steps:
            note(
                f"the budget leaves {steps:,} steps: the default is compared at these, and "
                f"`vit fit` alone takes {self.usual_steps:,}"
            )
        final = self.final(winner, steps)
        result = {
            "run": str(self.folder),
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
        seeds = [{k: self.job(kinds[k], steps, k, seed) for k in kinds} for seed in range(SEEDS)]
        say(f"final runs of {steps:,} steps, on test: {', '.join(kinds.values())}")
        late = complete([job for jobs in seeds for job in jobs.values()], self.before(self.budget))
        whole = [jobs for jobs in seeds if all(job.score is not None for job in jobs.values())]
        pairs = [(jobs[DEFAULT].hits, jobs[BEST].hits) for jobs in whole if len(kinds) > 1]
        return {
            "test": {kind: [jobs[kind].score for jobs in seeds] for kind in kinds},
            "difference": mean_difference(pairs) if pairs else None,
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
                (self.job(a, length).hits, self.job(b, length).hits)
                for (a, b), length in steps.items()
                if option not in self.cells[a] and self.cells[b] == {**self.cells[a], option: value}
            ]
            if pairs:
                rows.append({"option": option, "value": value, **mean_difference(pairs)})
        return rows


def check_default(job: Job) -> None:
    """UserError if the default's run has failed."""
    if why := job.record.get("failed"):
        raise UserError(f"the default recipe failed: {why}")


def timed(job: Job) -> Timing:
    """Times of a run that has logged each step."""
    steps = [row for row in read_history(job.folder / "metrics.csv") if "train/loss" in row]
    (first, began), *_, (last, ended) = [(row["step"], row["seconds"]) for row in steps]
    step = (ended - began) / (last - first)
    return Timing(max(job.seconds - (last + 1) * step, 0.0), step)
