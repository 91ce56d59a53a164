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
from vit.inference.engines import (
    Engine,
    EngineName,
    Precision,
    in_openvino,
    is_export,
    open_engine,
)
from vit.inference.graph import Graph
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
    `engine`: computes the logits on the CPU in place of `model`, which has no weights then.
    """

    def __init__(
        self,
        model: nn.Module,
        classes: list[str],
        preprocess: Preprocess,
        *,
        multilabel: bool = False,
        thresholds: list[float] | None = None,
        engine: Engine | None = None,
    ) -> None:
        self.model = model.eval()
        self.engine = engine
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
        return self.activated(self.logits(torch.stack([self.preprocess(i) for i in opened])))

    def activated(self, logits: Tensor) -> Tensor:
        """Probabilities `b k`, on the CPU. Raises UserError if the logits are not finite."""
        if not logits.isfinite().all():
            raise UserError(
                "the model's outputs are not finite numbers, so they name nothing: its weights are "
                "damaged, or its training diverged; fetch or train it again"
            )
        return (logits.sigmoid() if self.multilabel else logits.softmax(-1)).cpu()

    def logits(self, pixels: Tensor) -> Tensor:
        """Logits `b k` of images `b c h w` that `preprocess` has cut."""
        return self.outputs(pixels)[0]

    @torch.inference_mode()
    def outputs(self, pixels: Tensor, *, features: bool = False) -> tuple[Tensor, Tensor | None]:
        """Logits as `logits` gives them; with `features` the head's input `b d`, too."""
        if self.engine is not None:
            named = self.engine.tensors(pixels)
            return named["logits"], named["features"] if features else None
        parameter = next(self.model.parameters())
        pixels = self.preprocess.normalize(pixels.to(parameter.device)).to(parameter.dtype)
        if not features:
            return self.model(pixels).float(), None
        model: Any = self.model
        tokens = model.forward_features(pixels)
        vectors = model.forward_head(tokens, pre_logits=True)
        return model.forward_head(tokens).float(), vectors.float()

    def predict(self, images: Any, top: int = 5, *, batch_size: int = 32) -> list[Prediction]:
        """The `top` classes of each image: of one, a folder, a list, or a generator of images."""
        if top < 1:
            raise UserError(f"top={top} must be at least 1")
        results, source = [], iter(_each(images, arrays=self.preprocess.channels is not None))
        while batch := list(islice(source, batch_size)):
            results += self.ranked(self.probabilities(batch), top)
        return results

    def ranked(self, scores: Tensor, top: int) -> list[Prediction]:
        """The `top` classes of each row of probabilities `b k`."""
        predictions = []
        for row in scores:
            values, order = row.topk(min(top, len(self.classes)))
            labels = None
            if self.multilabel:
                best = row.argsort(descending=True, stable=True)
                labels = self._named(best[row[best] > torch.tensor(self.thresholds)[best]])
            predictions.append(Prediction(self._named(order), values.tolist(), labels))
        return predictions

    def _named(self, indices: Tensor) -> list[str]:
        return [self.classes[i] for i in indices.tolist()]

    __call__ = predict

    def __repr__(self) -> str:
        shown = some_of(map(repr, self.classes), 3)
        network = type(self.model).__name__ if self.engine is None else self.engine.name
        return f"Classifier({network}, {len(self.classes):,} classes: {shown})"

    def to(self, device: str | torch.device) -> "Classifier":
        """Moves the model to a device. UserError for an exported model, which has the CPU."""
        if self.engine is not None:
            self.engine.check_device(device)
        self.model.to(device)
        return self


def _each(images: Any, *, arrays: bool) -> Iterable[Any]:
    """The images of `Classifier.predict`; those of a folder in the order of `scan`."""
    if isinstance(images, str | os.PathLike) and os.path.isdir(images):
        return image_files(os.fspath(images), arrays=arrays)
    if isinstance(images, list | tuple) or hasattr(images, "__next__"):
        return images  # pyright: ignore[reportReturnType]
    return [images]


def load(
    path: str | Path, *, engine: EngineName = "torch", precision: Precision = "float32"
) -> Classifier:
    """Loads a classifier; assumptions about weights of other packages are printed to stderr.

    Args:
        path: A run or model directory, weights of any format that `load_pretrained` reads, a name
            of published weights (`vit models --weights`), an address hf://org/repo, gs:// or
            https://, or a file of `vit export`, which its own runtime computes.
        engine: openvino computes the weights on the CPU in place of PyTorch.
        precision: Of the products.

    Raises UserError for weights without classes, trained head or preprocessing, and for damage.
    """
    if is_export(path):
        runtime = open_engine(path, precision, engine)
        about = runtime.description
        if about.classes is None:
            raise UserError(f"{path} is an encoder without classes; export a model with a head")
        several = {"multilabel": about.multilabel, "thresholds": about.thresholds}
        empty = nn.Identity()
        return Classifier(empty, about.classes, about.preprocess, **several, engine=runtime)
    classifier = _from_weights(path)
    if engine == "torch":
        classifier.model.to(getattr(torch, precision))
        return classifier
    network: Any = classifier.model
    classifier.engine = in_openvino(Graph(network, classifier.preprocess), precision)
    classifier.model = nn.Identity()
    return classifier


def _from_weights(path: str | Path) -> Classifier:
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
