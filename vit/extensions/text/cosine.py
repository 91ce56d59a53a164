"""A head that compares images with texts: projection, division by the norm, and rows of texts.

Row k of the head is the text's features times the scale, its bias that of the sigmoid. Shapes:
b batch, d pooled features, p projected features, k texts.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from vit.errors import UserError, shorten
from vit.models.config import ViTConfig
from vit.models.fields import is_whole
from vit.models.initialization import lecun_normal_
from vit.models.vision_transformer import VisionTransformer
from vit.shapes import Float


class UnitNorm(nn.Module):
    """Division by the Euclidean norm."""

    def forward(self, x: Float[Tensor, "b p"]) -> Float[Tensor, "b p"]:
        return F.normalize(x, dim=-1)


def build(config: ViTConfig, model: VisionTransformer | None) -> VisionTransformer:
    """Row of the table `builders`: the model whose head compares directions.

    UserError for a field that is not known, and for a model with another layer before its head.
    """
    width = _checked(config)
    model = VisionTransformer(config) if model is None else model
    model.pre_logits = nn.Sequential()
    if width:
        projection = nn.Linear(config.pooled_width, width, bias=False)
        lecun_normal_(projection)
        model.pre_logits.add_module("projection", projection)
    model.pre_logits.add_module("norm", UnitNorm())
    return model


def _checked(config: ViTConfig) -> int:
    """The width of the projection, 0 for none."""
    values: dict[str, Any] = config.cosine or {}
    width = values.get("projection")
    if not is_whole(width) or width < 0 or values.keys() - {"projection", "templates"}:
        raise UserError(f"cosine={shorten(repr(values))} is not {{'projection': WIDTH or 0, ...}}")
    if config.representation_size is not None or config.distillation_token:
        raise UserError("cosine goes with one head, and without representation_size")
    return width
