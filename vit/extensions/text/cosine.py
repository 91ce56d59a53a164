"""A head that compares images with texts: projection, division by the norm, and rows of texts.

Row k of the head is the text's features times the scale, its bias that of the sigmoid. Shapes:
b batch, d pooled features, p projected features, k texts.
"""

from functools import cache
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from vit.console import note
from vit.errors import UserError, printable, shorten
from vit.models.config import ViTConfig
from vit.models.fields import is_object, is_whole
from vit.models.initialization import lecun_normal_
from vit.models.vision_transformer import VisionTransformer
from vit.shapes import Float

LICENCES = {"weights": "the weights", "tokenizer": "the tokenizer"}
"""Field of `licences` -> its words."""


class UnitNorm(nn.Module):
    """Division by the Euclidean norm."""

    def forward(self, x: Float[Tensor, "b p"]) -> Float[Tensor, "b p"]:
        return F.normalize(x, dim=-1)


def build(config: ViTConfig, model: VisionTransformer | None) -> VisionTransformer:
    """Row of the table `builders`: the model whose head compares directions. Prints the licences.

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
    width, licences = values.get("projection"), values.get("licences", {})
    if not is_whole(width) or width < 0 or values.keys() - {"projection", "licences", "templates"}:
        raise UserError(f"cosine={shorten(repr(values))} is not {{'projection': WIDTH or 0, ...}}")
    if not is_object(licences) or licences.keys() - LICENCES.keys():
        raise UserError(f"licences={shorten(repr(licences))} are not of {' and '.join(LICENCES)}")
    if config.representation_size is not None or config.distillation_token:
        raise UserError("cosine goes with one head, and without representation_size")
    for part, licence in licences.items():
        _note_once(f"licence of {LICENCES[part]}: {printable(str(licence))}")
    return width


@cache
def _note_once(text: str) -> None:
    note(text)
