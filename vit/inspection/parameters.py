"""What the parameters show without an image: filters of the patch embedding, and positions.

Shapes: c channels, s pixels on a patch's side, d width, gh gw rows and columns of positions.
"""

import torch
from torch import Tensor, nn

from vit.errors import UserError
from vit.inspection.capture import transformer


@torch.no_grad()
def embedding_filters(model: nn.Module, count: int = 28) -> Tensor:
    """Principal components of the patch embedding's filters, `count c s s` (ViT, Figure 7 left).

    Of unit length, by decreasing variance over the d filters; their signs are arbitrary. On the
    CPU. Raises UserError for a hybrid, whose patches are of feature maps, and for channels that
    are not RGB.
    """
    vit = transformer(model)
    if vit.patch_embed.backbone is not None:
        raise UserError("a hybrid's patch embedding has no RGB filters: it follows a ResNet")
    if vit.config.in_channels != 3:
        raise UserError(f"filters of {vit.config.in_channels} channels cannot be shown as RGB")
    kernel = vit.patch_embed.proj.weight.cpu().double()  # Apple's GPUs have no float64
    most = min(len(kernel), kernel[0].numel())
    if not 1 <= count <= most:
        raise UserError(f"count={count} is not between 1 and {most}, the number of components")
    flat = kernel.flatten(1)
    _, _, components = torch.linalg.svd(flat - flat.mean(0), full_matrices=False)
    return components[:count].float().reshape(-1, *kernel.shape[1:])


@torch.no_grad()
def position_similarity(model: nn.Module) -> Tensor:
    """Cosine similarity of all pairs of position embeddings, `gh gw gh gw` (ViT, Figures 7 and 10).

    Of the table as stored, without the entries of prefix tokens, on the CPU. Raises UserError for a
    model without a position table.
    """
    vit = transformer(model)
    table = vit.fixed_positions if vit.fixed_positions is not None else vit.pos_embed
    if table is None:
        kind = "rotary positions alone" if vit.config.rotary else "pos_embed='none'"
        raise UserError(f"this model has no position embeddings ({kind})")
    patches = table[0, table.shape[1] - vit.config.num_patches :].cpu().double()
    unit = torch.nn.functional.normalize(patches, dim=-1)
    return (unit @ unit.T).float().unflatten(0, vit.config.grid).unflatten(2, vit.config.grid)
