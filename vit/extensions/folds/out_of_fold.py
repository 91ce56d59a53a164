"""Outputs of each image by the run of the fold that left it out. Shapes: n images, k classes."""

import csv
from collections.abc import Sequence
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from vit.console import note
from vit.data.manifest import SEPARATOR
from vit.errors import UserError
from vit.extensions.evaluation.features import Extractor, device_of
from vit.extensions.multilabel.average_precision import average_precision, mean_of_present
from vit.runs.evaluate import Subject
from vit.training.image_classifier import ImageClassifier
from vit.writing import atomic

HEAD = ("fold", "path", "label")
"""Columns before those of the classes, which hold logits."""


def write_outputs(file: Path, runs: Sequence[Path]) -> None:
    """Writes the logits of the validation images of the runs, in float32, in their order."""
    with (
        atomic(file) as place,
        place.open("w", newline="", encoding="utf-8", errors="surrogateescape") as stream,
    ):
        writer = csv.writer(stream, lineterminator="\n")
        for fold, run in enumerate(runs, start=1):
            subject = Subject(run, "val", [])
            network, data = subject.build_model().model, subject.data
            device = device_of(subject.trainer.accelerator)
            outputs = Extractor(network, "logits", device=device)(data, "val")
            if fold == 1:
                writer.writerow([*HEAD, *data.classes])
            names = data.image_set("val").items
            rows = zip(outputs.indices, outputs.labels, outputs.values, strict=True)
            for index, label, logits in rows:
                numbers = label.nonzero()[0] if data.multilabel else [label]
                labels = SEPARATOR.join(data.classes[i] for i in numbers)
                # Nine digits say a float32 exactly.
                writer.writerow([fold, names[index], labels, *(f"{x:.9g}" for x in logits)])


def read_outputs(
    file: str | Path, classes: Sequence[str], *, multilabel: bool
) -> tuple[Tensor, Tensor]:
    """float32 logits `n k`, and labels: classes `n`, or zeros and ones `n k`. UserError for a file
    with other classes."""
    number = {name: at for at, name in enumerate(classes)}
    with open(file, newline="", encoding="utf-8", errors="surrogateescape") as stream:
        reader = csv.reader(stream)
        if next(reader)[len(HEAD) :] != [*classes]:
            raise UserError(f"{file} has the outputs of other classes than those of this run")
        logits, labels = [], []
        for row in reader:
            logits.append([float(cell) for cell in row[len(HEAD) :]])
            labels.append([number[name] for name in row[2].split(SEPARATOR) if name])
    if not multilabel:
        return torch.tensor(logits), torch.tensor(labels)[:, 0]
    ones = torch.zeros(len(labels), len(classes))
    for row, numbers in zip(ones, labels, strict=True):
        row[numbers] = 1
    return torch.tensor(logits), ones


def pooled_score(logits: Tensor, labels: Tensor) -> float:
    """Accuracy, or mean average precision of labels `n k`, over all images together."""
    if labels.dim() == 1:
        return float((logits.argmax(1) == labels).double().mean())
    return float(mean_of_present(average_precision(logits.sigmoid().T, labels.T.long())))


class OutOfFold(Callback):
    """Gives a run without val the outputs to which temperature, sets and thresholds are fitted.

    Args:
        file: out_of_fold.csv of `vit folds`.
        steps: The length for which these are: a longer run, such as one that is trained on, gets
            none. None for any length.
    """

    def __init__(self, file: str, steps: int | None = None) -> None:
        self.file, self.steps = file, steps

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, ImageClassifier)
        if not Path(self.file).is_file():
            raise UserError(f"there is no {self.file} yet: repeat the `vit folds` of this run")
        if self.steps not in (None, trainer.max_steps):
            note(f"{self.file} is of runs of about {self.steps:,} steps, and this is another")
            return
        pl_module.held_out_by = "a network"
        if trainer.is_global_zero:
            kind = {"multilabel": pl_module.multilabel}
            pair = read_outputs(self.file, pl_module.classes or [], **kind)
            pl_module.held_out = [(pair[0].to(pl_module.device), pair[1].to(pl_module.device))]
