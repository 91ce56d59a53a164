"""Maps and pictures of one photo, and the one picture of it for a report.

Shapes: heads, n tokens, p prefix tokens, gh gw rows and columns of patches.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from PIL import Image
from torch import Tensor

from vit.extensions.inspection import maps
from vit.extensions.inspection.capture import has_attention
from vit.extensions.inspection.figures import colours, overlay
from vit.extensions.inspection.gradients import grad_cam, gradient_rollout
from vit.extensions.inspection.subject import Photo, Subject, as_photo
from vit.extensions.reports import results
from vit.models.zoo import Model
from vit.preprocessing import Preprocess

SECONDS = 1.5
"""A report takes about three seconds without."""


@dataclass(frozen=True, kw_only=True)
class Look:
    photo: Photo
    answer: str = ""
    """The most probable class and its probability, such as "cat 93.2 %"."""
    pictures: list[tuple[str, Image.Image]]
    """Names and pictures of the photo's size, the photo itself first."""
    layers: list[int] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    weights: Tensor | None = None
    """Attention of the chosen layers and heads, `layers heads n n`."""
    similarity: Tensor | None = None
    """Cosine similarity of the last layer's patch features, `gh gw gh gw`."""
    grid: tuple[int, int] = (0, 0)
    has_class_token: bool = False

    @property
    def prefix(self) -> int:
        """Number of tokens before those of the patches."""
        assert self.weights is not None
        return self.weights.shape[-1] - math.prod(self.grid)

    @property
    def maps(self) -> Tensor:
        """Attention of the class token, else the mean over the patches, `layers heads gh gw`."""
        assert self.weights is not None
        patches = self.weights[..., self.prefix :]
        rows = patches[:, :, 0] if self.has_class_token else patches[:, :, self.prefix :].mean(2)
        return rows.unflatten(-1, self.grid)


def look(
    subject: Subject, photo: Photo, layers: Sequence[int], heads: Sequence[int], label: int | None
) -> Look:
    """Maps and pictures that `vit inspect` shows of a photo; `label` None is the predicted class.

    A ResNet has Grad-CAM alone, an encoder without classes nothing about classes, and attention
    pooling no rollout.
    """
    model, x, name, answer = subject.model, photo.pixels, "", ""
    pictures = [("as the model sees it", photo.picture)]

    def add(title: str, values: Tensor) -> None:
        pictures.append((title, overlay(photo.picture, values[0])))

    if model.config.num_classes:
        best, answer = _answer(subject, x)
        label = best if label is None else label
        name = subject.class_name(label)
    if not has_attention(model):
        add(f"Grad-CAM: {name}", grad_cam(model, x, label))
        return Look(photo=photo, answer=answer, pictures=pictures)
    if model.config.pool != "map":
        add("attention rollout", maps.rollout(model, x))
        if label is not None:
            add(f"relevance: {name}", gradient_rollout(model, x, label))
    if label is not None and model.patch_embed.backbone is not None:
        add(f"Grad-CAM: {name}", grad_cam(model, x, label))
    rgb = maps.patch_colours(model, x)[0]
    pictures.append(("components of features", colours(rgb, photo.picture.size)))
    gh, gw = rgb.shape[:2]
    add("similar to the centre", maps.patch_similarity(model, x, (gh // 2, gw // 2)))
    weights = maps.attention(model, x, layers)[0]
    if len(heads) < model.config.num_heads:  # a copy
        weights = weights[:, list(heads)]
    return Look(
        photo=photo,
        answer=answer,
        pictures=pictures,
        layers=list(layers),
        heads=list(heads),
        weights=weights,
        similarity=_similarities(model, x),
        grid=(gh, gw),
        has_class_token=model.has_class_token,
    )


def _similarities(model: Model, x: Tensor) -> Tensor:
    """Cosines of the features of all pairs of patches, `gh gw gh gw`."""
    features = maps.patch_features(model, x)[0]
    grid = features.shape[:2]
    unit = torch.nn.functional.normalize(features.flatten(0, 1).float(), dim=-1)
    return (unit @ unit.T).unflatten(0, grid).unflatten(2, grid)


def _answer(subject: Subject, x: Tensor) -> tuple[int, str]:
    """The most probable class of an image, and its name with the probability."""
    with torch.inference_mode():
        logits = subject.model(x)[0].float()
    scaled = logits / subject.temperature
    shares = scaled.sigmoid() if subject.multilabel else scaled.softmax(0)
    best = int(logits.argmax())
    return best, f"{subject.class_name(best)} {shares[best]:.1%}"


def glances(
    model: Model, preprocess: Preprocess, seconds: float = SECONDS
) -> tuple[str, results.Look] | None:
    """The name of the method, and a function that draws it until `seconds` have passed.

    Attention rollout, or Grad-CAM for a ResNet. None for attention pooling, for channels other than
    RGB, and for a compiled model, which each image would compile again.
    """
    compiled = getattr(model, "_compiled_call_impl", None) is not None
    attends = has_attention(model)
    if compiled or model.config.in_channels != 3 or (attends and model.config.pool == "map"):
        return None
    end: list[float] = []

    def draw(image: Image.Image, label: int) -> Image.Image | None:
        if not end:
            end.append(time.perf_counter() + seconds)
        elif time.perf_counter() > end[0]:
            return None
        with torch.inference_mode(False):
            photo = as_photo(image, "", model, preprocess)
            x = photo.pixels
            values = maps.rollout(model, x) if attends else grad_cam(model, x, label)
        return overlay(photo.picture, values[0])

    return "attention rollout" if attends else "Grad-CAM", draw
