"""Filters of the patch embedding, and position embeddings.

Shapes: c channels, s pixels on a patch's side, d width, gh gw rows and columns of positions.
"""

import torch
from torch import Tensor, nn

from vit.errors import UserError
from vit.extensions.inspection.capture import transformer


@torch.no_grad()
def embedding_filters(model: nn.Module, count: int = 28) -> Tensor:
    """Principal components of the patch embedding's filters, `count c s s` (ViT, Figure 7 left).

    `count`: at most, by decreasing variance over the d filters; of unit length, signs are
    arbitrary. On the CPU. UserError for a hybrid and for channels that are not RGB.
    """
    vit = transformer(model)
    if vit.patch_embed.backbone is not None:
        raise UserError("a hybrid's patch embedding has no RGB filters: it follows a ResNet")
    if vit.config.in_channels != 3:
        raise UserError(f"filters of {vit.config.in_channels} channels cannot be shown as RGB")
    kernel = vit.patch_embed.proj.weight.cpu().double()  # Apple's GPUs have no float64
    flat = kernel.flatten(1)
    _, _, components = torch.linalg.svd(flat - flat.mean(0), full_matrices=False)
    return components[:count].float().reshape(-1, *kernel.shape[1:])


@torch.no_grad()
def position_similarity(model: nn.Module) -> Tensor:
    """Cosine similarity of all pairs of position embeddings, `gh gw gh gw` (ViT, Figures 7 and 10).

    Of the table without prefix tokens, on the CPU. UserError for a model without one.
    """
    vit = transformer(model)
    table = vit.position_table(vit.config.grid)
    if table is None:
        kind = "rotary positions alone" if vit.config.rotary is not None else "pos_embed='none'"
        kind = f"variant={vit.config.variant}" if vit.config.variant else kind
        raise UserError(f"this model has no position embeddings ({kind})")
    patches = table[0, table.shape[1] - vit.config.num_patches :].cpu().double()
    unit = torch.nn.functional.normalize(patches, dim=-1)
    return (unit @ unit.T).float().unflatten(0, vit.config.grid).unflatten(2, vit.config.grid)
