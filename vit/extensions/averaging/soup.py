"""The mean of the weights of several runs: a uniform soup (arXiv:2203.05482, recipe 1)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vit.console import note, say
from vit.data.trained_on import NONE, TrainedOn
from vit.errors import UserError
from vit.extensions.evaluation.paired import ONE_PROCESS, check_comparable, difference
from vit.runs.evaluate import Subject
from vit.runs.predictions import Predictions
from vit.runs.records import read_summary
from vit.runs.resuming import FREE, differences, listed
from vit.weights.names import TRAINED_ON, record_of
from vit.weights.native import save_native
from vit.weights.pretrained import load_pretrained
from vit.weights.report import LoadReport
from vit.writing import writable


class Weights(NamedTuple):
    """The weights of a run."""

    model: Any
    """One of our networks."""
    report: LoadReport


class Soup(Subject):
    """A run that is scored by other weights."""

    def __init__(self, weights: Path, run: Path, args: list[str]) -> None:
        super().__init__(run, "val", args, predicting=True)
        self.weights = weights


def average(runs: Sequence[Path], out: Path, args: list[str]) -> dict[str, Any]:
    """Writes a model directory with the mean of the weights, and scores it on val beside the runs.

    Returns JSON types: `scores` of the `runs` and `score` of the mean, and in `against` what
    `vit test RUN OTHER` says of each run and the mean. `args`: options of the data and the Trainer.

    UserError for fewer than two runs, and for runs of other architectures, classes, preprocessing
    or images, before anything is written.
    """
    if len(runs) < 2:
        raise UserError(f"{runs[0]} is one run; give at least two whose weights are averaged")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out {out} is not empty; choose another folder")
    for run in runs:
        if not args and "val" not in (read_summary(run).get("splits") or {"val"}):
            raise UserError(
                f"{run} has no validation images, on which the mean is scored; give some by "
                "--data, or train with --data.splits.val_fraction 0.1"
            )
    args = [*args, *ONE_PROCESS]
    subjects = [Subject(run, "val", args, predicting=True) for run in runs]
    parts = [Weights(*load_pretrained(subject.weights)) for subject in subjects]
    for subject, part in zip(subjects[1:], parts[1:], strict=True):
        check_comparable(subjects[0], subject)
        _check_same(subjects[0], parts[0], subject, part)
    answers = [_answers(subject) for subject in subjects]
    _save(out, runs, parts)
    soup = _answers(Soup(out, runs[0], args))
    metric = "map" if soup[1].multilabel else "acc1"
    pairs = [(run, difference(one, soup[1])) for run, (_, one) in zip(runs, answers, strict=True)]
    return {
        "runs": [str(run) for run in runs],
        "out": str(out),
        "split": "val",
        "images": len(soup[1]),
        "metric": metric,
        "scores": [metrics[f"val/{metric}"] for metrics, _ in answers],
        "score": soup[0][f"val/{metric}"],
        "against": [{"run": str(run), **compared} for run, compared in pairs],
    }


def mean_state(models: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Name -> the mean over the models, each with the same weight, computed in float64."""
    states = [model.state_dict() for model in models]
    mean: dict[str, Tensor] = {}
    for name, first in states[0].items():
        total = torch.stack([state[name].double() for state in states]).mean(0)
        mean[name] = total.to(first.dtype)
    return mean


def _answers(subject: Subject) -> tuple[dict[str, float], Predictions]:
    """Metrics and predictions on val. UserError if no image can be read."""
    _, metrics, predictions = subject.evaluate()
    if predictions is None:
        raise UserError("no image of val could be read")
    return metrics, predictions


def _check_same(a: Subject, of_a: Weights, b: Subject, of_b: Weights) -> None:
    """UserError unless weights of both are of one kind, and both runs cut the images alike."""
    facts = [
        {
            "architecture": part.model.config.to_dict(),
            "preprocessing": part.report.preprocess,
            "images of": subject.data.digests,
        }
        for subject, part in ((a, of_a), (b, of_b))
    ]
    changes = differences(*facts)
    free = {f"architecture.{name}" for name in FREE}
    if changes := {name: pair for name, pair in changes.items() if name not in free}:
        raise UserError(
            f"{a.run} and {b.run} have other {listed(changes)}; average runs of one architecture "
            "on the same images, such as those of other seeds or learning rates"
        )


def _save(out: Path, runs: Sequence[Path], parts: Sequence[Weights]) -> None:
    """Writes the model directory, with the images that the runs were trained on."""
    model, report = parts[0]
    model.load_state_dict(mean_state([part.model for part in parts]))
    writable(out, "--out")
    about = {"multilabel": report.multilabel, "average_of": [run.name for run in runs]}
    extra = {**about, "tree": True} if report.tree else about
    save_native(out, model, classes=report.classes, preprocess=report.preprocess, extra=extra)
    files = [record_of(run) for run in runs]
    records = [TrainedOn.read(file) for file in files if file is not None]
    if len(records) < len(runs):
        note("a run has no record of its training images, so that the average has none")
        return
    before, here = (
        np.unique(np.concatenate([NONE, *arrays])) for arrays in zip(*records, strict=True)
    )
    TrainedOn(before, here).write(out / TRAINED_ON)
    say(f"wrote {out}")
