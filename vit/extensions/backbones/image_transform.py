"""The preprocessing of a model as a callable."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vit.console import note
from vit.data.decode import open_input
from vit.data.transforms import TrainTransform
from vit.errors import UserError
from vit.extensions.formats.preprocessing import unrecorded
from vit.inference.classifier import Classifier
from vit.models.resnet import ResNet
from vit.models.vision_transformer import VisionTransformer
from vit.models.zoo import Model
from vit.preprocessing import Preprocess

if TYPE_CHECKING:
    from vit.data.decode import Picture


EVALUATION = ("resize", "crop_fraction", "crop_rounding", "interpolation")
"""Fields of Preprocess that random crops do not use."""


@dataclass(frozen=True)
class ImageTransform:
    """Image -> normalised float32 `c h w`.

    Takes a path, a PIL image or a uint8 array (h w, or h w 3); can be pickled for a DataLoader.
    """

    preprocess: Preprocess
    augment: TrainTransform | None = None
    """Random changes of a training image in place of the centre crop, by torch's generator."""

    def __call__(self, image: "Picture") -> Tensor:
        opened, p = open_input(image, self.preprocess.channels), self.preprocess
        if self.augment is None:
            pixels = p(opened)
        else:
            high, low = torch.randint(2**32, (2,)).tolist()  # 64 bits, half of which place a crop
            bits = high << 32 | low
            pixels = self.augment(opened, bits, p.image_size, mean=p.mean, std=p.std)
        return p.normalize(pixels[None])[0]


def transforms(
    model: nn.Module | Classifier, *, training: bool | TrainTransform = False, **changes: Any
) -> ImageTransform:
    """The preprocessing of a model from `vit.create_model` or `vit.load`.

    `training`: True for the random crop and flip of the ViT paper's code, or other random changes;
    else the evaluation's. `changes`: fields of `vit.preprocessing.Preprocess`, such as
    `crop_fraction=1.0`. Fresh weights have the defaults of training from scratch. Raises UserError
    if the weights do not record their normalisation, unless `mean` and `std` are given.
    """
    if not isinstance(training, bool | TrainTransform):
        raise UserError(f"training={training!r} must be True, False or a TrainTransform")
    augment = TrainTransform() if training is True else training or None
    if augment and (unused := [name for name in EVALUATION if name in changes]):
        raise UserError(
            f"{unused[0]} is of evaluation images; give training=vit.data.transforms."
            "TrainTransform(...) with another crop or interpolation"
        )
    if isinstance(model, Classifier):
        return _checked(model.preprocess.changed(**changes), augment)
    if not isinstance(model, VisionTransformer | ResNet):
        raise UserError(f"transforms takes a model of this package, not {type(model).__name__}")
    recorded = model.preprocess
    if recorded == {} and not {"mean", "std"} <= set(changes):
        raise UserError(
            "these weights do not record their normalisation: put the config.json (timm) or "
            "preprocessor_config.json (Hugging Face) beside them, or give mean and std, such "
            "as vit.transforms(model, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))"
        )
    preprocess = Preprocess.from_dict(recorded) if recorded else unrecorded(model.config)
    return _checked(preprocess.changed(**changes), augment)


def _checked(preprocess: Preprocess, augment: TrainTransform | None) -> ImageTransform:
    if augment is not None:
        augment.check(preprocess.image_size, preprocess.channels)
    return ImageTransform(preprocess, augment)


def recorded_preprocess(model: Model) -> Preprocess:
    """The preprocessing that a model's file records; else the default, with a note."""
    if model.preprocess:
        return Preprocess.from_dict(model.preprocess)
    note("the file does not say how images are prepared: [-1, 1]")
    return unrecorded(model.config)
