"""`vit folds`: a run for each fold of train and val, and a final run on all of them.

Every image of train and val is left out once. RUN/folds/1, 2, ... are runs of `vit fit` whose val
is the fold; RUN is the run that learns all folds, for as many steps as the folds needed. Test is
scored by that one alone.
"""

import json
import statistics
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from vit.console import say
from vit.data.sources import Splits
from vit.errors import UserError
from vit.extensions.folds.interval import corrected_interval
from vit.extensions.folds.out_of_fold import pooled_score, read_outputs, write_outputs
from vit.extensions.sources.digests import images_digest
from vit.extensions.transfer.fold_lists import column_of, listed_folds, seed_of
from vit.extensions.transfer.image_lists import reading_options
from vit.extensions.transfer.transfer import check_free, check_plan, train
from vit.recipes import DEFAULT_RECIPE
from vit.runs.options import Options
from vit.runs.records import CONFIG, HEADER, is_run, read_summary
from vit.runs.short_names import Words
from vit.weights.weight_file import read_json
from vit.writing import writable, write_json, write_text

SET_BY_FOLDS = (
    "--run_dir --resume --final_split --data.splits.val_fraction --model.schedule.length "
    "--model.schedule.cooldown_steps --trainer.limit_val_batches --trainer.fast_dev_run"
).split()
"""Options of `vit fit` that each run gets, or that contradict folds."""
LIST, OUTPUTS, RESULT = "splits.csv", "out_of_fold.csv", "folds.json"
"""Files in RUN: the split of each image in each run, outputs, and what `--json` prints."""
METHOD = "corrected resampled t-test (Nadeau and Bengio, 2003)"
Result = dict[str, Any]
"""Content of RESULT, in JSON types."""


@dataclass(frozen=True, kw_only=True)
class Folds:
    """The command line of `vit folds`."""

    arguments: list[str]
    """Of every `vit fit`."""
    folds: int
    run: Path

    def __post_init__(self) -> None:
        words = Words(self.arguments)
        if words.others:
            raise UserError(f"{words.others[0]!r} is not an option; see `vit folds --help`")
        check_free("folds", words.written, SET_BY_FOLDS)

    @cached_property
    def words(self) -> list[str]:
        """The arguments by long names, with a recipe: RUN is no recipe for its own folds."""
        words = Words(self.arguments)
        return [*([] if words.recipes else ["-c", DEFAULT_RECIPE]), *words.written]

    @cached_property
    def base(self) -> Options:
        """Options by which the images are found, and test is cut if need be."""
        return Options([*self.words, "--data.splits.val_fraction=0"])

    @cached_property
    def splits(self) -> Splits:
        """The images. UserError where there are no labels to learn."""
        if not self.base.module_class.labelled:
            raise UserError(
                "a run without labels has no score to cross-validate; leave --folds out"
            )
        return self.base.data.splits

    @property
    def runs(self) -> list[Path]:
        """The directories of the folds."""
        return [self.run / "folds" / str(fold) for fold in range(1, self.folds + 1)]

    def train(self) -> tuple[Result, str]:
        """Trains what is not trained yet; returns the result, and the final run's last words.

        UserError for a mistake; Stopped after a signal, once the current run is saved.
        """
        plan = self._planned()
        for fold, folder in enumerate(self.runs, start=1):
            say(f"fold {fold} of {self.folds}:")
            train(self._arguments(column_of(fold), folder, "--final_split=val"))
        if not (outputs := self.run / OUTPUTS).is_file():
            write_outputs(outputs, self.runs)
        result = self._result()
        write_json(self.run / "plan.json", {**plan, "steps": result["steps"]})
        say("final run, on the images of all folds:")
        steps = result["steps"] or None  # a probe takes none, and refuses options of steps
        length = [f"--trainer.max_steps={steps}", "--trainer.max_epochs=-1", "--patience=null"]
        closing = train([*self._final(steps), *(length if steps else [])])
        if (trained := read_summary(self.run)["steps"]) > result["steps"]:
            raise UserError(
                f"{self.run} was trained on to {trained:,} steps, and its folds are of "
                f"{result['steps']:,}: folds.json stays as it was"
            )
        result |= self._of_final()
        write_json(self.run / RESULT, result)
        return result, closing

    def _final(self, steps: int | None = None) -> list[str]:
        """Arguments of the final run, but for its length."""
        fields = {"file": str((self.run / OUTPUTS).absolute()), "steps": steps}
        callback = json.dumps({"class_path": "vit.OutOfFold", "init_args": fields})
        options = "--final_split=test", f"--trainer.callbacks+={callback}"
        return self._arguments("split", self.run, *options)

    def _arguments(self, column: str, folder: Path, *options: str) -> list[str]:
        """Arguments of a run by a column of the list."""
        config = self.base.config.data
        names = ("labels", "channels", "loading.on_error")  # perhaps those of pretrained weights
        reading = [f"--data.{name}={config[name]}" for name in names if config[name] is not None]
        reading += reading_options(self.splits, self.run / LIST, column)
        reading += ["--data.dataset=null", *options, f"--run_dir={folder}"]
        return [*self.words, *reading]

    def _planned(self) -> dict[str, object]:
        """The plan, written or compared with that of an earlier call; the list, and a config.yaml
        by which RUN is known as a run. UserError for a directory with something else."""
        data, splits, file = self.base.data, self.splits, self.run / "plan.json"
        self.base.build_model(data)  # what is wrong with the weights is said before any training
        if not file.is_file() and self.run.is_dir() and any(self.run.iterdir()):
            raise UserError(f"run_dir={self.run} is not empty; choose another --run_dir")
        text, parts = listed_folds(self.base, self.folds), splits.present().items()
        plan: dict[str, object] = {
            "folds": self.folds,
            "seed": seed_of(self.base),
            "options": self.base.recorded(),
            "images": data.digests,
            "contents": {n: images_digest(p, contents=True) for n, p in parts},
            "list": sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16],
        }
        steps = {"steps": read_json(file).get("steps")} if file.is_file() else {}
        check_plan(writable(self.run, "--run_dir") / file.name, {**plan, **steps}, "--run_dir")
        write_text(self.run / LIST, text, errors="surrogateescape")
        if not is_run(self.run):
            write_text(self.run / CONFIG, HEADER + Options(self._final()).recorded_text())
        return plan

    def _result(self) -> Result:
        """The scores of the folds."""
        metric, rows = "map" if self.splits.multilabel else "acc1", list[Result]()
        for fold, folder in enumerate(self.runs, start=1):
            summary = read_summary(folder)
            sizes = {"train": summary["images"]["train"], "images": summary["images"]["val"]}
            step = summary["checkpoint"].get("step") or summary["steps"]
            score = summary["metrics"][f"val/{metric}"]
            rows.append({"fold": fold, "run": str(folder), **sizes, "steps": step, "score": score})
        scores, ratios = zip(*((r["score"], r["images"] / r["train"]) for r in rows), strict=True)
        several = {"multilabel": self.splits.multilabel}
        outputs = read_outputs(self.run / OUTPUTS, self.splits.classes, **several)
        return {
            "run": str(self.run),
            "metric": metric,
            "images": len(outputs[1]),  # that could be read
            "folds": rows,
            "mean": statistics.mean(scores),
            "interval": corrected_interval(scores, ratios),
            "method": METHOD,
            "pooled": pooled_score(*outputs),
            "steps": round(statistics.median(row["steps"] for row in rows)),
        }

    def _of_final(self) -> Result:
        """Temperature and thresholds of the final run, and its metrics on test."""
        extra = read_json(self.run / "model/config.json")["extra"]
        metrics = read_summary(self.run)["metrics"].items()
        chosen = {name: extra.get(name) for name in ("temperature", "thresholds")}
        return {**chosen, "test": {n: v for n, v in metrics if n.startswith("test/")} or None}
