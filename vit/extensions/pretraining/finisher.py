"""The finisher `examples`: the page of a run without labels, with predictions for some images."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from vit.data.module import ImageData
from vit.data.sources import SplitName
from vit.errors import UserError
from vit.extensions.pretraining.patch_metrics import constant_note
from vit.extensions.pretraining.patch_prediction import PatchPrediction
from vit.extensions.reports.finisher import subject_of
from vit.extensions.reports.pretraining import Examples, write_pretraining
from vit.runs.options import task_of
from vit.runs.records import read_summary, recorded_options

MOST = 8
"""Images that the page shows."""


def finish(run: Path) -> None:
    """Writes the page; does nothing for a run with labels."""
    if task_of(recorded_options(run).get("task", "")).labelled:
        return
    summary, examples = read_summary(run), None
    split = summary["split"]
    if f"{split}/loss" in summary["metrics"] and (subject := subject_of(run, split)) is not None:
        module = subject.build_model()
        if isinstance(module, PatchPrediction):
            examples = examples_of(module, subject.data, subject.split)
    write_pretraining(run, split, examples, constant_note(split, summary["metrics"]))


def examples_of(module: PatchPrediction, data: ImageData, split: SplitName) -> Examples | None:
    """Predictions for some images of a split, spread over it; None if none can be read."""
    number, opened = len(data.image_set(split)), {}
    for index in np.linspace(0, number - 1, min(MOST, number)).round().astype(int).tolist():
        with suppress(UserError):  # with on_error=skip the run left it out, too
            opened[index] = data.preprocess(data.open_image(split, index))
    if not opened:
        return None
    images = data.preprocess.normalize(torch.stack(list(opened.values())))
    pictures = module.eval().pictures(images, torch.tensor(list(opened)), data.seed)
    arrays = {
        name: values.permute(0, 2, 3, 1).to("cpu", torch.uint8).numpy()
        for name, values in pictures.items()
    }
    corrupted = arrays.pop("corrupted")[..., 0] > 0
    return Examples(**arrays, corrupted=corrupted, caption=module.caption)
