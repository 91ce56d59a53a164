"""A model and its photos. Shapes: c channels, h w pixels."""

from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image
from torch import Tensor

from vit.console import note
from vit.data.decode import open_input
from vit.errors import UserError, did_you_mean, some_of
from vit.extensions.backbones.image_transform import recorded_preprocess
from vit.models.zoo import Model
from vit.preprocessing import Preprocess, picture
from vit.weights.pretrained import load_pretrained
from vit.weights.report import print_report


@dataclass(frozen=True)
class Subject:
    """A model in evaluation mode, its preprocessing, and the names of its classes."""

    model: Model
    preprocess: Preprocess
    classes: list[str] | None
    multilabel: bool = False
    temperature: float = 1.0
    """Divides the logits for probabilities."""

    def class_name(self, index: int) -> str:
        return self.classes[index] if self.classes else str(index)

    def class_index(self, label: str) -> int:
        """The class of a name or index. UserError for an unknown one."""
        count = self.model.config.num_classes
        if not count:
            raise UserError(f"--class {label}: the model is an encoder without classes")
        if self.classes and label in self.classes:
            return self.classes.index(label)
        if label.isdecimal() and int(label) < count:
            return int(label)
        hint = did_you_mean(label, self.classes or []) or f": {some_of(self.classes or [], 10)}"
        raise UserError(f"--class {label} is none of the model's {count:,} classes{hint}")


@dataclass(frozen=True)
class Photo:
    """An image as the model sees it."""

    name: str
    picture: Image.Image
    pixels: Tensor
    """Normalised, `1 c h w`, on the model's device."""


def load_subject(source: str, image_size: tuple[int, int] | None = None) -> Subject:
    """A model from any weights that `load_pretrained` reads.

    `image_size`: (height, width) in pixels instead of that of the weights.
    """
    model, report = load_pretrained(source)
    print_report(report)
    if report.unanswerable:
        note(f"{source} {report.unanswerable}: it is shown as an encoder without classes")
        model.reset_classifier(0)
    preprocess = recorded_preprocess(model)
    if image_size is not None:
        replace(model.config, image_size=image_size)  # a UserError before any file is written
        preprocess = replace(preprocess, image_size=image_size)
    temperature = report.temperature or 1.0
    return Subject(model.eval(), preprocess, report.classes, report.multilabel, temperature)


def open_photo(subject: Subject, path: Path) -> Photo:
    image = open_input(path, subject.preprocess.channels)
    return as_photo(image, path.name, subject.model, subject.preprocess)


def as_photo(image: Image.Image | Tensor, name: str, model: Model, preprocess: Preprocess) -> Photo:
    """The image, as of `open_input`, as the model sees it; other channels than RGB stretched."""
    seen = preprocess(image)
    parameter = next(model.parameters())
    pixels = preprocess.normalize(seen[None].to(parameter.device)).to(parameter.dtype)
    stretch = preprocess.channels is not None
    return Photo(name, picture(seen if stretch else seen / 255, stretch=stretch), pixels)
