"""The evaluation preprocessing of a model as a callable."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from vit.console import note
from vit.data.decode import open_input
from vit.errors import UserError
from vit.inference.classifier import Classifier
from vit.models.resnet import ResNet
from vit.models.vision_transformer import VisionTransformer
from vit.models.zoo import Model
from vit.preprocessing import Preprocess

if TYPE_CHECKING:
    from vit.data.decode import Picture


@dataclass(frozen=True)
class ImageTransform:
    """Image -> normalised float32 `c h w`.

    Takes a path, a PIL image or a uint8 array (h w, or h w 3); can be pickled for a DataLoader.
    """

    preprocess: Preprocess

    def __call__(self, image: "Picture") -> Tensor:
        pixels = self.preprocess(open_input(image, self.preprocess.channels))
        return self.preprocess.normalize(pixels[None])[0]


def transforms(model: nn.Module | Classifier, **changes: Any) -> ImageTransform:
    """The evaluation preprocessing of a model from `vit.create_model` or `vit.load`.

    `changes`: fields of `vit.preprocessing.Preprocess`, such as `crop_fraction=1.0`. Fresh weights
    have the defaults of training from scratch. Raises UserError if the weights do not record their
    normalisation, unless `mean` and `std` are given.
    """
    if isinstance(model, Classifier):
        return ImageTransform(model.preprocess.changed(**changes))
    if not isinstance(model, VisionTransformer | ResNet):
        raise UserError(f"transforms takes a model of this package, not {type(model).__name__}")
    recorded = model.preprocess
    if recorded == {} and not {"mean", "std"} <= set(changes):
        raise UserError(
            "these weights do not record their normalisation: put the config.json (timm) or "
            "preprocessor_config.json (Hugging Face) beside them, or give mean and std, such "
            "as vit.transforms(model, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))"
        )
    preprocess = (
        Preprocess.from_dict(recorded)
        if recorded
        else Preprocess.for_model(model.config.size, model.config.in_channels)
    )
    return ImageTransform(preprocess.changed(**changes))


def recorded_preprocess(model: Model) -> Preprocess:
    """The preprocessing that a model's file records; else the default, with a note."""
    if model.preprocess:
        return Preprocess.from_dict(model.preprocess)
    note("the file does not say how images are prepared: [-1, 1]")
    return Preprocess.for_model(model.config.size, model.config.in_channels)
