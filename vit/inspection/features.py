"""What patch features have in common: similarity to one patch, principal components as colours.

Shapes: b batch, d width, gh gw rows and columns of patches.
"""

import torch
from torch import Tensor, nn

from vit.inspection.capture import evaluation, grid_of, transformer
from vit.inspection.maps import patch_index


def patch_features(model: nn.Module, images: Tensor, layer: int = -1) -> Tensor:
    """Patch tokens after a layer and the final LayerNorm, `b gh gw d`, without gradients."""
    vit = transformer(model)
    grid_of(vit, images)
    with torch.no_grad(), evaluation(vit):
        [maps] = vit.intermediate_layers(images, [layer])
    return maps.permute(0, 2, 3, 1)


def patch_similarity(
    model: nn.Module, images: Tensor, patch: tuple[int, int], layer: int = -1
) -> Tensor:
    """Cosine similarity of every patch to the patch in (row, column), `b gh gw`, in [-1, 1]."""
    patch_index(grid_of(model, images), patch)
    features = patch_features(model, images, layer)
    one = features[:, patch[0], patch[1]][:, None, None]
    return torch.cosine_similarity(features, one, dim=-1)


def patch_colours(model: nn.Module, images: Tensor, layer: int = -1) -> Tensor:
    """First three principal components of the patch features as RGB in [0, 1], `b gh gw 3`.

    As in DINOv2 (arXiv:2304.07193, figure 1), without removing the background: computed over all
    patches of the batch, so a colour means the same in each image; every component is stretched
    from its 1st to its 99th percentile. The sign of a component is arbitrary: here the largest
    projection is positive.
    """
    features = patch_features(model, images, layer)
    flat = features.flatten(0, 2).cpu().double()  # Apple's GPUs have no float64
    flat = flat - flat.mean(0)
    values, vectors = torch.linalg.eigh(flat.T @ flat)
    projected = flat @ vectors[:, values.argsort(descending=True)[:3]]
    largest = projected.gather(0, projected.abs().argmax(0, keepdim=True))
    projected = projected * largest.sign()
    low, high = projected.quantile(torch.tensor([0.01, 0.99], dtype=flat.dtype), dim=0)
    stretched = ((projected - low) / (high - low).clamp_min(1e-12)).clamp(0, 1)
    return stretched.float().reshape(*features.shape[:3], -1).to(features.device)
