"""A trained model with its class names and preprocessing; needs only torch and Pillow."""

import os
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor, nn

from vit.confidence import carried_over, top_classes
from vit.console import note
from vit.data.decode import open_input
from vit.data.scan import image_files
from vit.errors import UserError, some_of
from vit.inference.answers import Prediction, PredictOptions
from vit.inference.runtimes import Precision, computed, is_export, open_export
from vit.models.fields import JsonObject
from vit.models.resnet import ResNet
from vit.models.vision_transformer import VisionTransformer
from vit.preprocessing import Preprocess
from vit.synonyms import Missing, keywords
from vit.tables import resolve, rows
from vit.weights.adapt import HEAD
from vit.weights.formats import MissingFact
from vit.weights.names import locate, named
from vit.weights.pretrained import load_pretrained
from vit.weights.weight_file import find_weights

if TYPE_CHECKING:
    import numpy as np

    from vit.data.decode import Picture

    Source = Picture | Tensor
    Pictures = Source | list[Source] | tuple[Source, ...] | Iterator[Source]


@dataclass(eq=False, repr=False)
class Classifier:
    """A model in evaluation mode with its class names and preprocessing."""

    model: nn.Module
    classes: list[str]
    preprocess: Preprocess
    _: KW_ONLY
    multilabel: bool = False
    thresholds: list[float] = field(default_factory=list)
    """Threshold of each class, for a model with several labels per image; 0.5 by default."""
    temperature: float = 1.0
    """Divides the logits for probabilities; `thresholds` are of these."""
    tree: bool = False
    """The classes are paths in a tree."""
    folder: Path | None = None
    """Folder of the weights, in which answers find measurements of them."""
    runtime: str | None = None
    """Name of the runtime that computes in place of PyTorch."""

    def __post_init__(self) -> None:
        self.model.eval()
        self.thresholds = self.thresholds or [0.5] * len(self.classes)

    def activated(self, logits: Tensor) -> Tensor:
        """Probabilities `b k`, on the CPU. Raises UserError if the logits are not finite."""
        if not logits.isfinite().all():
            raise UserError(
                "the model's outputs are not finite numbers, so they name nothing: its weights are "
                "damaged, or its training diverged; fetch or train it again"
            )
        scaled = logits / self.temperature
        return (scaled.sigmoid() if self.multilabel else scaled.softmax(-1)).cpu()

    @torch.inference_mode()
    def outputs(self, pixels: Tensor, *, features: bool = False) -> tuple[Tensor, Tensor | None]:
        """Logits `b k` of images `b c h w` that `preprocess` has cut; with `features` the head's
        input `b d`, too."""
        parameter = next(self.model.parameters())
        pixels = self.preprocess.normalize(pixels.to(parameter.device)).to(parameter.dtype)
        if not features:
            return self.model(pixels).float(), None
        assert isinstance(self.model, VisionTransformer | ResNet)
        tokens = self.model.forward_features(pixels)
        vectors = self.model.forward_head(tokens, pre_logits=True)
        return self.model.forward_head(tokens).float(), vectors.float()

    @keywords
    def predict(
        self,
        images: "Pictures",
        top: int = 5,
        *,
        batch_size: int = 32,
        **numbers: float | None,
    ) -> list[Prediction]:
        """The `top` classes of each image: of one, a folder, a list, or a generator of images.

        An image is a path, a PIL image, a uint8 array (h w, or h w 3) or a tensor (c h w, uint8 or
        in [0, 1]; several as b c h w); for a model whose images are not RGB, also a tensor of its
        values, or a source of `vit.data.decode.Opener.open`.

        `numbers`: options of the table `answers`, such as `coverage=0.9`. Raises UserError as
        PredictOptions does.
        """
        options = PredictOptions(top=top, numbers=numbers).of(self)
        results, source = [], iter(_each(images, arrays=self.preprocess.channels is not None))
        while batch := list(islice(source, batch_size)):
            results += self.answers(batch, options)
        return results

    def features(self, images: "Pictures", *, batch_size: int = 32) -> Tensor:
        """The head's input of each image, float32 `n d` on the CPU; `images` as of `predict`."""
        source = iter(_each(images, arrays=self.preprocess.channels is not None))
        parts: list[Tensor] = []
        while batch := list(islice(source, batch_size)):
            _, vectors = self.outputs(self._pixels(batch), features=True)
            assert vectors is not None
            parts.append(vectors.cpu())
        return torch.cat(parts)

    def answers(self, images: Iterable["Source"], options: PredictOptions) -> list[Prediction]:
        """Predictions for images that make one batch. ImageError names one that is unreadable."""
        outputs = self.outputs(self._pixels(images), features=options.compares_features)
        return self.ranked(*outputs, options)

    def probabilities(self, images: Iterable["Source"]) -> Tensor:
        """Probabilities `b k` of images that make one batch. UserError if they are not finite."""
        return self.activated(self.outputs(self._pixels(images))[0])

    def _pixels(self, images: Iterable["Source"]) -> Tensor:
        channels = self.preprocess.channels
        arrays = (_array(i, channels) if isinstance(i, Tensor) else i for i in images)
        return torch.stack([self.preprocess(open_input(array, channels)) for array in arrays])

    def ranked(
        self, logits: Tensor, features: Tensor | None, options: PredictOptions
    ) -> list[Prediction]:
        """Predictions from logits `b k` and, if `options` compares them, features `b d`."""
        probabilities = self.activated(logits)
        values, order = top_classes(probabilities, options.top)
        columns: dict[str, Iterable[object]] = {
            "classes": map(self._named, order),
            "probabilities": values.tolist(),
        }
        if self.multilabel:
            # Of logits: probabilities near 1 are equal in float32.
            cuts = torch.tensor(self.thresholds, dtype=torch.float64).logit() * self.temperature
            columns["labels"] = self.marked(probabilities, logits.cpu() > cuts)
        for answer in options.answers.values():
            fields = zip(*answer(logits, features, probabilities), strict=True)
            columns |= dict(zip(answer.fields, fields, strict=True))
        images = zip(*columns.values(), strict=True)
        return [Prediction(**dict(zip(columns, values, strict=True))) for values in images]

    def marked(self, probabilities: Tensor, marks: Tensor) -> list[list[str]]:
        """The marked classes of each image, most probable first."""
        order = probabilities.argsort(descending=True, stable=True)
        return [self._named(best[marked[best]]) for best, marked in zip(order, marks, strict=True)]

    def _named(self, indices: Tensor) -> list[str]:
        return [self.classes[i] for i in indices.tolist()]

    __call__ = predict

    if not TYPE_CHECKING:  # for type checkers such an attribute is an error

        def __getattr__(self, name: str) -> NoReturn:
            raise Missing("Classifier", name)

    def __repr__(self) -> str:
        shown = some_of(map(repr, self.classes), 3)
        network = self.runtime or type(self.model).__name__
        return f"Classifier({network}, {len(self.classes):,} classes: {shown})"

    def at(self, temperature: float) -> "Classifier":
        """Sets the temperature, and the thresholds that give the same labels; returns itself."""
        self.thresholds = carried_over(self.thresholds, temperature / self.temperature)
        self.temperature = temperature
        return self

    def to(self, device: str | torch.device) -> "Classifier":
        """Moves the model to a device. UserError for an exported model, which has the CPU."""
        self.model.to(device)
        return self


def _each(images: "Pictures", *, arrays: bool) -> "Iterable[Source]":
    """The images of `Classifier.predict`; those of a folder in the order of `scan`."""
    if isinstance(images, str | os.PathLike) and os.path.isdir(images):
        return image_files(os.fspath(images), arrays=arrays)
    if isinstance(images, Tensor) and images.ndim == 4:
        return list(images)
    return images if isinstance(images, list | tuple | Iterator) else [images]


def _array(image: Tensor, channels: int | None) -> "np.ndarray":
    """`h w c` of `c h w`: of RGB uint8, from that or [0, 1]. UserError for another tensor."""
    if channels is None and image.is_floating_point() and 0 <= image.min() and image.max() <= 1:
        image = (image * 255).round().to(torch.uint8)
    if (channels is None and image.dtype != torch.uint8) or image.ndim != 3:
        shape = f"{image.dtype} of shape {tuple(image.shape)}"
        raise UserError(f"a tensor is an image if it is c h w, uint8 or in [0, 1], not {shape}")
    return (image.float() if image.is_floating_point() else image).permute(1, 2, 0).cpu().numpy()


@keywords
def load(
    path: str | Path,
    *,
    engine: str = "torch",
    precision: Precision = "float32",
    raw: bool = False,
    device: str | torch.device | None = None,
    **texts: object,
) -> Classifier:
    """Loads a classifier; assumptions about weights of other packages are printed to stderr.

    Args:
        path: Anything that `load_pretrained` reads, such as a run or a name of published weights,
            or a file of `vit export`, which its own runtime computes.
        engine: openvino computes the weights on the CPU in place of PyTorch.
        precision: Of the products.
        raw: Probabilities without the temperature that the run fitted.
        device: Of the weights, such as cuda; the CPU by default.
        texts: Options of the table `texts`, such as names=["cat", "dog"] (docs/names.md).

    Raises UserError for weights without classes, trained head or preprocessing, and for damage.
    """
    texts = {name: text for name, text in texts.items() if text is not None}
    if is_export(path) and not texts:
        loaded = open_export(path, precision, engine)
        loaded = loaded.at(1.0) if raw else loaded
    elif engine != "torch":
        loaded = computed(_from_weights(path, raw, texts), precision, engine)
    else:
        loaded = _from_weights(path, raw, texts)
        loaded.model.to(getattr(torch, precision))
    return loaded if device is None else loaded.to(device)


def _from_weights(path: str | Path, raw: bool, texts: JsonObject) -> Classifier:
    row = named(path)
    readers = [resolve(reader) for name, reader in rows("texts").items() if name in texts]
    if row is not None and not row.outputs and not readers:
        raise _without_classes(row.name)
    weights = row.name if row is not None else Path(locate(path)[0]).expanduser()
    try:
        model, report = [*readers, load_pretrained][0](weights, **texts)
    except MissingFact as fact:
        command = f"vit convert {shlex.quote(str(path))} DIR --to native"
        raise UserError(f"{fact}, by --set to `{command}`, and load DIR") from fact
    if not model.config.num_classes:
        raise _without_classes(path)
    if not any(p.any() for name, p in model.named_parameters() if name.startswith(HEAD)):
        raise _without_classes(path, "has a head of zeros, as before any training")
    if report.unanswerable:
        raise _without_classes(path, report.unanswerable)
    if report.preprocess is None:
        raise UserError(
            f"{path}: how images are prepared is not known "
            f"({report.unprepared or 'the file does not say'}); put its config.json (timm) "
            "or preprocessor_config.json (Hugging Face) beside it, give the name of published "
            "weights (`vit models --weights`), or use its own library"
        )
    for text in report.notes:
        note(text)
    if not report.classes:
        note("the weights name no classes; numbers stand for them")
    return Classifier(
        model,
        report.classes or [str(i) for i in range(model.config.num_classes)],
        Preprocess.from_dict(report.preprocess),
        multilabel=report.multilabel,
        thresholds=report.thresholds or [],
        tree=report.tree,
        folder=None if row is not None else find_weights(Path(weights)).parent,
    ).at(1.0 if raw else report.temperature or 1.0)


def _without_classes(path: str | Path, reason: str = "is an encoder without classes") -> UserError:
    return UserError(
        f"{path} {reason}; give names=['cat', 'dog'] (--names) for CLIP or SigLIP, or fit a head "
        f"first: vit fit -c probe --data.root LABELLED --model.pretrained {shlex.quote(str(path))}"
    )
