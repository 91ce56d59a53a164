"""Attention, relevance of patches, filters and positions of a trained model, as tensors.

Adds `vit inspect`, these functions, and the picture of what a model looked at on the report's
page. Functions take a model, which they leave as it was, and normalised images `b c h w`
(`vit.transforms`) of any size that divides into patches. Page: docs/inspection.md.
"""

from vit.extensions.inspection.gradients import grad_cam, gradient_rollout
from vit.extensions.inspection.maps import (
    attention,
    attention_distance,
    class_attention,
    head_entropy,
    patch_attention,
    patch_colours,
    patch_similarity,
    prefix_attention,
    prefix_names,
    rollout,
)
from vit.extensions.inspection.parameters import embedding_filters, position_similarity

__all__ = [
    "attention",
    "attention_distance",
    "class_attention",
    "embedding_filters",
    "grad_cam",
    "gradient_rollout",
    "head_entropy",
    "patch_attention",
    "patch_colours",
    "patch_similarity",
    "position_similarity",
    "prefix_attention",
    "prefix_names",
    "rollout",
]
