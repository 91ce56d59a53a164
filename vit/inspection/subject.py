"""A model and its photos, as `vit inspect` takes them. Shapes: c channels, h w pixels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from vit.checkpoints.pretrained import load_pretrained
from vit.checkpoints.report import print_report
from vit.console import note
from vit.data.decode import open_image
from vit.errors import UserError, did_you_mean
from vit.inspection.capture import has_attention
from vit.models.zoo import Model
from vit.preprocessing import Preprocess


@dataclass(frozen=True)
class Subject:
    """A model in evaluation mode, its preprocessing, and the names of its classes."""

    model: Model
    preprocess: Preprocess
    classes: list[str] | None

    def class_name(self, index: int) -> str:
        """The name of a class, or its number."""
        return self.classes[index] if self.classes else str(index)

    def class_index(self, label: str) -> int:
        """The class of a name or index. UserError if the model does not know it."""
        count = self.model.config.num_classes
        if not count:
            raise UserError(f"--class {label}: the model is an encoder without classes")
        if self.classes and label in self.classes:
            return self.classes.index(label)
        if label.isdecimal() and int(label) < count:
            return int(label)
        hint = did_you_mean(label, self.classes or [])
        raise UserError(f"--class {label}: the model knows no such class of its {count}{hint}")


@dataclass(frozen=True)
class Photo:
    """An image as the model sees it."""

    name: str
    picture: Image.Image
    pixels: Tensor
    """Normalised, `1 c h w`, on the model's device."""


def load_subject(source: str, image_size: tuple[int, int] | None = None) -> Subject:
    """A model from any weights that `load_pretrained` reads, and how images are brought to it.

    `image_size`: (height, width) in pixels instead of that of the weights; positions are resampled
    in each forward pass, and the table itself stays as stored.
    """
    model, report = load_pretrained(source)
    print_report(report)
    config = model.config
    if config.in_channels != 3:
        raise UserError(f"{source} takes {config.in_channels} channels, but images have 3")
    if report.preprocess is not None:
        preprocess = Preprocess.from_dict(report.preprocess)
    else:
        preprocess = Preprocess.for_model(config)
        note("the file does not say how images are prepared: [-1, 1]")
    if image_size is not None:
        preprocess = replace(preprocess, image_size=image_size)
    if has_attention(model):
        _check_size(preprocess.image_size, model.patch_size)
    return Subject(model.eval(), preprocess, report.classes)


def _check_size(size: tuple[int, int], patch: int) -> None:
    shown = "x".join(map(str, size))
    if min(size) < patch:
        raise UserError(
            f"images of {shown} pixels are smaller than a patch of {patch}; give a larger "
            "--image-size"
        )
    if any(side % patch for side in size):
        near = "x".join(str(max(side // patch, 1) * patch) for side in size)
        raise UserError(
            f"images of {shown} pixels do not divide into patches of {patch}; give --image-size "
            f"{near}"
        )


def open_photo(subject: Subject, path: Path) -> Photo:
    """One image. UserError if it cannot be read, or is smaller than a patch."""
    image = open_image(path)
    patch = subject.model.patch_size
    if has_attention(subject.model) and min(image.size) < patch:
        raise UserError(
            f"{path}: {image.height}x{image.width} pixels are smaller than a patch of {patch}; use "
            "a larger image"
        )
    seen = subject.preprocess(image)
    parameter = next(subject.model.parameters())
    pixels = subject.preprocess.normalize(seen[None].to(parameter.device)).to(parameter.dtype)
    return Photo(path.name, Image.fromarray(seen.permute(1, 2, 0).numpy()), pixels)


def choose(
    name: str, wanted: Sequence[int] | None, count: int, default: Sequence[int]
) -> list[int]:
    """Ascending indices below `count`; negative ones count from the end. UserError for others."""
    if wanted is None:
        return list(default)
    for index in wanted:
        if not -count <= index < count:
            raise UserError(f"--{name} {index}: the model has {name} 0 to {count - 1}")
    return sorted({index % count for index in wanted})


def predicted(subject: Subject, photo: Photo) -> int:
    """The class with the largest logit."""
    with torch.inference_mode():
        return int(subject.model(photo.pixels).argmax())
