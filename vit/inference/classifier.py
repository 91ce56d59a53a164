"""A trained model with its class names and preprocessing; needs only torch and Pillow."""

import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vit.checkpoints import published
from vit.checkpoints.adapt import HEAD
from vit.checkpoints.files import open_weights
from vit.checkpoints.hub import fetch, is_address
from vit.checkpoints.layout import MissingFact
from vit.checkpoints.native import load_native
from vit.checkpoints.native import matches as is_native
from vit.checkpoints.pretrained import load_pretrained
from vit.console import note
from vit.data.decode import open_input
from vit.data.scan import image_files
from vit.errors import UserError, some_of
from vit.models.config import ViTConfig
from vit.models.zoo import ModelConfig
from vit.preprocessing import Preprocess

_EVEN = 0.5
"""Threshold of models that record none."""


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of one image, best first."""

    classes: list[str]
    probabilities: list[float]
    labels: list[str] | None = None
    """The classes above their thresholds, most probable first; None for a model with one label per
    image."""


class Classifier:
    """A model in evaluation mode with its class names and preprocessing.

    `thresholds`: of each class, for a model with several labels per image; 0.5 by default.
    """

    def __init__(
        self,
        model: nn.Module,
        classes: list[str],
        preprocess: Preprocess,
        *,
        multilabel: bool = False,
        thresholds: list[float] | None = None,
    ) -> None:
        self.model = model.eval()
        self.classes = classes
        self.preprocess = preprocess
        self.multilabel = multilabel
        self.thresholds = thresholds or [_EVEN] * len(classes)

    def probabilities(self, images: Iterable[Any]) -> Tensor:
        """Probabilities `b k` for paths, PIL images or uint8 arrays (h w, or h w 3).

        A model for images that are not RGB takes the sources of `vit.data.raster.open_raster`.
        Raises UserError if the outputs are not finite.
        """
        opened = (open_input(image, self.preprocess.channels) for image in images)
        batch = torch.stack([self.preprocess(image) for image in opened])
        parameter = next(self.model.parameters())
        batch = self.preprocess.normalize(batch.to(parameter.device)).to(parameter.dtype)
        with torch.inference_mode():
            logits = self.model(batch).float()
        if not logits.isfinite().all():
            raise UserError(
                "the model's outputs are not finite numbers, so they name nothing: its weights are "
                "damaged, or its training diverged; fetch or train it again"
            )
        return (logits.sigmoid() if self.multilabel else logits.softmax(-1)).cpu()

    def predict(self, images: Any, top: int = 5, *, batch_size: int = 32) -> list[Prediction]:
        """The `top` classes of each image: of one, a folder, a list, or a generator of images."""
        if top < 1:
            raise UserError(f"top={top} must be at least 1")
        results, source = [], iter(_each(images, arrays=self.preprocess.channels is not None))
        while batch := list(islice(source, batch_size)):
            scores = self.probabilities(batch)
            values, indices = scores.topk(min(top, len(self.classes)))
            sets = self._sets(scores)
            rows = zip(values.tolist(), indices.tolist(), sets, strict=True)
            for row, order, labels in rows:
                results.append(Prediction([self.classes[i] for i in order], row, labels))
        return results

    __call__ = predict

    def __repr__(self) -> str:
        shown = some_of(map(repr, self.classes), 3)
        return f"Classifier({type(self.model).__name__}, {len(self.classes):,} classes: {shown})"

    def _sets(self, scores: Tensor) -> list[list[str]] | list[None]:
        """The classes of each row of probabilities `b k` above their thresholds; or None."""
        if not self.multilabel:
            return [None] * len(scores)
        above = scores > torch.tensor(self.thresholds)
        order = scores.argsort(dim=1, descending=True, stable=True).tolist()
        return [
            [self.classes[i] for i in row if chosen[i]]
            for row, chosen in zip(order, above.tolist(), strict=True)
        ]

    def to(self, device: str | torch.device) -> "Classifier":
        """Moves the model to a device."""
        self.model.to(device)
        return self


def _each(images: Any, *, arrays: bool) -> Iterable[Any]:
    """The images of `Classifier.predict`; those of a folder in the order of their paths."""
    if isinstance(images, str | os.PathLike) and os.path.isdir(images):
        return image_files(Path(images), arrays=arrays)
    if isinstance(images, list | tuple) or hasattr(images, "__next__"):
        return images  # pyright: ignore[reportReturnType]
    return [images]


def load(path: str | Path) -> Classifier:
    """Loads a classifier; assumptions about weights of other packages are printed to stderr.

    `path`: a run or model directory, weights of any format that `load_pretrained` reads, a name of
    published weights (`vit models --weights`), or an address hf://org/repo, gs:// or https://.
    Raises UserError for weights without classes, trained head or preprocessing, and for damage.
    """
    row = published.named(path)
    if row is not None and not row.outputs:
        raise _without_classes(row.name)
    weights = row.name if row is not None else _local(path)
    notes, unprepared = [], ""
    if row is None and is_native(open_weights(weights)):
        model, info = load_native(weights)
        values, names = info.preprocess, info.classes
        multilabel: bool = info.extra.get("multilabel", False)
        thresholds: list[float] | None = info.extra.get("thresholds")
        notes += info.notes
    else:
        try:
            model, report = load_pretrained(weights)
        except MissingFact as fact:
            command = f"vit convert {shlex.quote(str(path))} DIR --to native"
            raise UserError(f"{fact.for_convert()} to `{command}`, and load DIR") from fact
        values, names = report.preprocess, report.classes
        multilabel, thresholds = report.multilabel, report.thresholds
        notes += report.notes
        unprepared = report.unprepared
    config: ModelConfig = model.config  # pyright: ignore[reportAssignmentType]
    if not config.num_classes:
        raise _without_classes(path)
    if not any(p.any() for name, p in model.named_parameters() if name.startswith(HEAD)):
        raise _without_classes(path, "has a head of zeros, as before any training")
    if values is None and unprepared:
        raise UserError(
            f"{path}: images cannot be prepared as its description says: {unprepared}; use the "
            "library that wrote it"
        )
    if values is None:
        raise UserError(
            f"{path} does not say how images are prepared: put its config.json (timm) or "
            "preprocessor_config.json (Hugging Face) beside it, or give the name of published "
            "weights (`vit models --weights`)"
        )
    preprocess = Preprocess.from_dict(values)
    if config.in_channels != len(preprocess.mean):
        raise UserError(
            f"{path} takes {config.in_channels} channels, and its description prepares images of "
            f"{len(preprocess.mean)}"
        )
    if isinstance(config, ViTConfig) and any(
        side % config.patch_size for side in preprocess.image_size
    ):
        raise UserError(
            f"{path}: its config.json resizes images to {preprocess.image_size} pixels, which do "
            f"not divide into patches of {config.patch_size}"
        )
    if not names:
        notes.append("the weights name no classes; numbers stand for them")
    for text in notes:
        note(text)
    classes = names or [str(i) for i in range(config.num_classes)]
    return Classifier(
        model.eval(), classes, preprocess, multilabel=multilabel, thresholds=thresholds
    )


def _without_classes(path: str | Path, reason: str = "is an encoder without classes") -> UserError:
    return UserError(
        f"{path} {reason}; fit a head to it first: vit fit -c probe "
        f"--data.root LABELLED --model.pretrained {shlex.quote(str(path))}"
    )


def _local(path: str | Path) -> Path:
    """The local directory or file of an address or a path. UserError for an unfinished run."""
    if is_address(path):
        return Path(fetch(str(path)))
    if not os.fspath(path):  # Path("") is the current directory
        raise UserError("'' names no model; give a run, a directory, a file, a name or an address")
    folder = Path(path).expanduser()
    if (folder / "config.yaml").is_file() and not (folder / "model" / "config.json").is_file():
        raise UserError(
            f"{path} is a run without a finished model; continue it: "
            f"vit fit --run_dir {shlex.quote(str(path))}"
        )
    return folder
