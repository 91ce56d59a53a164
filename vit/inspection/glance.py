"""Pictures of what a model looked at, for a report that does not wait for them."""

import time

import torch
from PIL import Image

from vit.inspection.capture import has_attention
from vit.inspection.figures import overlay
from vit.inspection.gradients import grad_cam
from vit.inspection.maps import rollout
from vit.inspection.subject import as_photo
from vit.models.zoo import Model
from vit.preprocessing import Preprocess
from vit.reports.results import Look

SECONDS = 1.5
"""A report takes about three seconds without."""


def glances(
    model: Model, preprocess: Preprocess, seconds: float = SECONDS
) -> tuple[str, Look] | None:
    """The name of the method, and a function that draws it until `seconds` have passed.

    Attention rollout, or Grad-CAM for a ResNet. None for attention pooling, for channels other than
    RGB, and for a compiled model, which each image would compile again.
    """
    compiled = getattr(model, "_compiled_call_impl", None) is not None
    attends = has_attention(model)
    if compiled or model.config.in_channels != 3 or (attends and model.config.pool == "map"):
        return None
    end: list[float] = []

    def look(image: Image.Image, label: int) -> Image.Image | None:
        if not end:
            end.append(time.perf_counter() + seconds)
        elif time.perf_counter() > end[0]:
            return None
        with torch.inference_mode(False):
            photo = as_photo(image, "", model, preprocess)
            x = photo.pixels
            values = rollout(model, x) if attends else grad_cam(model, x, label)
        return overlay(photo.picture, values[0])

    return "attention rollout" if attends else "Grad-CAM", look
