"""The mean of the weights of several runs: a uniform soup (arXiv:2203.05482, recipe 1)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vit.console import note, say
from vit.data.module import ImageData
from vit.data.sources import SPLITS
from vit.data.trained_on import NONE, TrainedOn
from vit.errors import UserError
from vit.extensions.evaluation.paired import check_classes, difference, on_one_process
from vit.extensions.licences.rows import inherit
from vit.extensions.multilabel.average_precision import best_thresholds
from vit.extensions.sources.digests import same_images
from vit.runs.directory import find_checkpoint
from vit.runs.evaluate import Subject
from vit.runs.predictions import Predictions
from vit.runs.records import read_summary
from vit.runs.resuming import FREE, differences, listed
from vit.weights.archives import read_checkpoint
from vit.weights.names import TRAINED_ON, record_of
from vit.weights.native import save_native
from vit.weights.pretrained import load_pretrained
from vit.weights.report import LoadReport
from vit.writing import beside, put, remove, writable


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
    _check_given(runs, out, args)
    args = on_one_process(args)
    subjects = [Subject(run, "val", args, predicting=True) for run in runs]
    parts = [Weights(*load_pretrained(subject.weights)) for subject in subjects]
    for subject, part in zip(subjects[1:], parts[1:], strict=True):
        check_classes(subjects[0], subject)
        _check_same(subjects[0], parts[0], subject, part)
    with _appearing(out) as folder:
        answers = [_answers(subject) for subject in subjects]
        score, mean = _save(folder, runs, parts, args)
    say(f"wrote {out}")
    metric = "map" if mean.multilabel else "acc1"
    pairs = [(run, difference(one, mean)) for run, (_, one) in zip(runs, answers, strict=True)]
    return {
        "runs": [str(run) for run in runs],
        "out": str(out),
        "split": "val",
        "images": len(mean),
        "metric": metric,
        "scores": [metrics[f"val/{metric}"] for metrics, _ in answers],
        "score": score[f"val/{metric}"],
        "against": [{"run": str(run), **compared} for run, compared in pairs],
    }


def _check_given(runs: Sequence[Path], out: Path, args: list[str]) -> None:
    """UserError for one run, for a run without val, and for a folder that is in use."""
    if len(runs) < 2:
        raise UserError(f"{runs[0]} is one run; give at least two whose weights are averaged")
    if out.exists() and (not out.is_dir() or any(out.iterdir()) or out.samefile(".")):
        raise UserError(f"--out {out} is not empty, or the current folder; choose another folder")
    for run in runs:
        if not args and "val" not in (read_summary(run).get("splits") or {"val"}):
            raise UserError(
                f"{run} has no validation images, on which the mean is scored; give some by "
                "--data FOLDER, with val/ and without test/, or train with "
                "--data.splits.val_fraction 0.1"
            )


@contextmanager
def _appearing(out: Path) -> Iterator[Path]:
    """Context with a temporary folder, which becomes `out` if nothing fails."""
    out = out.resolve()
    writable(out.parent, "--out")
    folder = beside(out)
    try:
        yield folder
        if out.is_dir():
            out.rmdir()  # an error if another process has written there meanwhile
        put(folder, out)
    finally:
        remove(folder)


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
    """UserError unless weights of both are of one kind, and learned from the same images."""
    facts = [
        {"architecture": part.model.config.to_dict(), "preprocessing": part.report.preprocess}
        for part in (of_a, of_b)
    ]
    changes = differences(*facts)
    free = {f"architecture.{name}" for name in FREE}
    if changes := {name: pair for name, pair in changes.items() if name not in free}:
        raise UserError(
            f"{a.run} and {b.run} have other {listed(changes)}; average runs of one architecture "
            "and preprocessing, such as those of other seeds or learning rates"
        )
    records, here = zip(*((_recorded(run), run.data.digests["val"]) for run in (a, b)), strict=True)
    shared = [name for name in SPLITS if all(name in record for record in records)]
    other = [name for name in shared if records[0][name] != records[1][name]]
    sets = [run.data.image_set("val") for run in (a, b)]
    if other or here[0] != here[1] or not same_images(*sets):
        raise UserError(
            f"{a.run} and {b.run} have other {', '.join(other or ['val'])} images; average runs "
            "of the same images and splits, such as those of other learning rates, or of other "
            "seeds with one --data.splits.seed"
        )


def _recorded(subject: Subject) -> dict[str, str]:
    """Digests of the splits of a run, which `--data` does not replace; of an unfinished one by its
    checkpoint."""
    if splits := read_summary(subject.run).get("splits"):
        return splits
    checkpoint = read_checkpoint(find_checkpoint(subject.run), device="meta")
    return (checkpoint.get(ImageData.__qualname__) or {}).get("splits") or {}


def _save(
    folder: Path, runs: Sequence[Path], parts: Sequence[Weights], args: list[str]
) -> tuple[dict[str, float], Predictions]:
    """Writes the model directory, with the thresholds of several labels per image and the images
    that the runs were trained on. Returns `_answers` of the mean."""
    model, report = parts[0]
    model.load_state_dict(mean_state([part.model for part in parts]))
    for part in parts:
        inherit(model, part.model.inherited)
    extra = {"multilabel": report.multilabel, "average_of": [run.name for run in runs]}
    extra |= {"tree": True} if report.tree else {}
    save = partial(save_native, folder, model, classes=report.classes, preprocess=report.preprocess)
    save(extra=extra)
    metrics, predictions = _answers(Soup(folder, runs[0], args))
    if predictions.multilabel:
        table = [predictions.probabilities(), predictions.labels]
        scores, labels = (torch.from_numpy(np.ascontiguousarray(each.T)) for each in table)
        save(extra={**extra, "thresholds": best_thresholds(scores, labels).tolist()})
    _record_images(folder, runs)
    return metrics, predictions


def _record_images(folder: Path, runs: Sequence[Path]) -> None:
    """Writes the record of the images that the runs were trained on."""
    files = [record_of(run) for run in runs]
    records = [TrainedOn.read(file) for file in files if file is not None]
    if len(records) < len(runs):
        note("a run has no record of its training images, so that the average has none")
        return
    before, here = (
        np.unique(np.concatenate([NONE, *arrays])) for arrays in zip(*records, strict=True)
    )
    TrainedOn(before, here).write(folder / TRAINED_ON)
