"""Attention maps, rollout, attention distance and entropy; similarity of patch features.

Shapes: b batch, c channels, h w pixels, n = p + gh gw tokens: p prefix tokens (class, distillation,
registers), then gh rows and gw columns of patches. Maps hold patches alone.
`layers`: a number of last layers, a list of indices (negative ones count from the end), or None for
all; results are in ascending order. Raises UserError for a layer that does not exist, a model
without attention and images that do not divide into patches.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from vit.errors import UserError
from vit.extensions.inspection.capture import (
    Inputs,
    attention_weights,
    chosen_layers,
    each_layer,
    evaluation,
    grid_of,
    transformer,
)

Layers = int | Sequence[int] | None


def prefix_names(model: nn.Module) -> list[str]:
    """Names of the tokens before the patches, in order, such as ["class", "register 1"]."""
    config = transformer(model).config
    names = ["class"] * config.class_token + ["distillation"] * config.distillation_token
    return names + [f"register {i + 1}" for i in range(config.num_registers)]


def attention(model: nn.Module, images: Tensor, layers: Layers = 1) -> Tensor:
    """Attention weights of chosen layers, `b layers heads n n`; rows (queries) sum to 1.

    Equation 6 of ViT (arXiv:2010.11929). The result takes 4 b layers heads n^2 bytes.
    """
    return _per_layer(model, images, layers, lambda weights: weights)


def class_attention(model: nn.Module, images: Tensor, layers: Layers = 1) -> Tensor:
    """Attention of the class token to the patches, `b layers heads gh gw`.

    A map sums to 1 less the prefix tokens' share.
    """
    config = transformer(model).config
    if not config.class_token:
        raise UserError(
            f"this model has no class token (its pool is {config.pool!r}); use patch_attention"
        )
    return token_attention(model, images, 0, layers)


def patch_attention(
    model: nn.Module, images: Tensor, patch: tuple[int, int], layers: Layers = 1
) -> Tensor:
    """Attention of the patch in (row, column) to all patches, `b layers heads gh gw`."""
    first = transformer(model).num_prefix_tokens
    index = patch_index(grid_of(model, images), patch)
    return token_attention(model, images, first + index, layers)


def token_attention(model: nn.Module, images: Tensor, token: int, layers: Layers = 1) -> Tensor:
    """Attention of one of the n tokens to the patches, `b layers heads gh gw`."""
    grid, prefix = grid_of(model, images), transformer(model).num_prefix_tokens
    rows = _per_layer(model, images, layers, lambda weights: weights[:, :, token, prefix:])
    return rows.unflatten(-1, grid)


def prefix_attention(model: nn.Module, images: Tensor, layers: Layers = 1) -> Tensor:
    """Share of attention that each prefix token gets from the patches, `b layers heads p`."""
    p = transformer(model).num_prefix_tokens
    if not p:
        raise UserError("this model has no class, distillation or register tokens")
    return _per_layer(model, images, layers, lambda weights: weights[:, :, p:, :p].mean(2))


def rollout(model: nn.Module, images: Tensor, layers: Layers = None) -> Tensor:
    """Attention rollout to the input patches, `b gh gw` (Abnar and Zuidema, arXiv:2005.00928).

    Weights are averaged over heads, mixed half and half with the identity for the residual
    connection, and multiplied over the layers (ViT, appendix D.8; Figures 6 and 14). Rows are those
    of the tokens that the head reads; the prefix tokens' share is left out of the map.
    """
    total: list[Tensor] = []

    def step(_: int, module: nn.Module, inputs: Inputs) -> None:
        mixed = attention_weights(module, inputs).mean(1) / 2
        mixed.diagonal(dim1=1, dim2=2).add_(0.5)
        total[:] = [mixed @ total[0] if total else mixed]

    each_layer(model, images, layers, step)
    return read_map(model, images, total[0])


def attention_distance(model: nn.Module, images: Tensor, layers: Layers = None) -> Tensor:
    """Mean attention distance in pixels, `b layers heads` (ViT, appendix D.7; Figures 7 and 11).

    Between the centres of patches, weighted by attention without the prefix tokens' share, and
    averaged over the queries.
    """
    grid, config = grid_of(model, images), transformer(model).config
    rows, columns = (torch.arange(side, device=images.device) for side in grid)
    centres = config.patch_size * torch.cartesian_prod(rows, columns).float()
    distances = torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist")
    p = config.num_prefix_tokens

    def mean(weights: Tensor) -> Tensor:
        weights = weights[:, :, p:, p:]
        weighted = torch.einsum("bhnm,nm->bhn", weights, distances.to(weights))
        return (weighted / weights.sum(-1).clamp_min(torch.finfo(weights.dtype).tiny)).mean(-1)

    return _per_layer(model, images, layers, mean)


def head_entropy(model: nn.Module, images: Tensor, layers: Layers = None) -> Tensor:
    """Entropy of the patches' attention over all n tokens, in nats, `b layers heads`.

    Averaged over the patches: log(n) if a head attends to all tokens alike, 0 if to one alone.
    """
    p = transformer(model).num_prefix_tokens
    return _per_layer(
        model, images, layers, lambda weights: torch.special.entr(weights[:, :, p:]).sum(-1).mean(2)
    )


def patch_features(model: nn.Module, images: Tensor, layer: int = -1) -> Tensor:
    """Patch tokens after a layer and the final LayerNorm, `b gh gw d`, without gradients."""
    vit = transformer(model)
    with torch.no_grad(), evaluation(vit):
        [maps] = vit.intermediate_layers(images, [layer])
    return maps.permute(0, 2, 3, 1)


def patch_similarity(
    model: nn.Module, images: Tensor, patch: tuple[int, int], layer: int = -1
) -> Tensor:
    """Cosine similarity of every patch to the patch in (row, column), `b gh gw`, in [-1, 1]."""
    features = patch_features(model, images, layer)
    index = patch_index((features.shape[1], features.shape[2]), patch)
    one = features.flatten(1, 2)[:, index, None, None]
    return torch.cosine_similarity(features, one, dim=-1)


def patch_colours(model: nn.Module, images: Tensor, layer: int = -1) -> Tensor:
    """First three principal components of the patch features as RGB in [0, 1], `b gh gw 3`.

    As in DINOv2 (arXiv:2304.07193, figure 1), with the background: components are of all patches of
    the batch, with a positive largest projection, stretched from the 1st to the 99th percentile.
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


def patch_index(grid: tuple[int, int], patch: tuple[int, int]) -> int:
    """Index of the patch in (row, column). UserError outside the grid."""
    if not all(0 <= place < side for place, side in zip(patch, grid, strict=True)):
        raise UserError(f"patch {tuple(patch)} is outside the {grid[0]}x{grid[1]} patches")
    return patch[0] * grid[1] + patch[1]


def read_tokens(model: nn.Module, images: Tensor) -> Tensor:
    """Weight of each token in the input of the head, `n`. UserError for attention pooling."""
    config, (rows, columns) = transformer(model).config, grid_of(model, images)
    if config.pool == "map":
        raise UserError(
            "this model pools by attention (pool='map'), so rollout has no token to start from; "
            "use patch_attention"
        )
    patches = torch.zeros(config.num_prefix_tokens + rows * columns, device=images.device)
    patches[config.num_prefix_tokens :] = 1 / (rows * columns)
    if config.pool == "gap":
        return patches
    tokens = torch.zeros_like(patches)
    tokens[: 1 + config.distillation_token] = 1 / (1 + config.distillation_token)
    return (tokens + patches) / 2 if config.pool == "cls_gap" else tokens


def read_map(model: nn.Module, images: Tensor, total: Tensor) -> Tensor:
    """The patches `b gh gw` of a matrix `b n n` between tokens, for the tokens of `read_tokens`."""
    prefix = transformer(model).num_prefix_tokens
    row = torch.einsum("n,bnm->bm", read_tokens(model, images).to(total), total)
    return row[:, prefix:].unflatten(1, grid_of(model, images))


def _per_layer(
    model: nn.Module, images: Tensor, layers: Layers, reduce: Callable[[Tensor], Tensor]
) -> Tensor:
    """`reduce` of each layer's weights (b heads n n), stacked in dimension 1.

    The result is allocated once: collecting and then stacking would need twice its memory.
    """
    indices = chosen_layers(transformer(model), layers)
    result: list[Tensor] = []

    def store(index: int, module: nn.Module, inputs: Inputs) -> None:
        value = reduce(attention_weights(module, inputs))
        if not result:
            result.append(value.new_empty(len(value), len(indices), *value.shape[1:]))
        result[0][:, indices.index(index)] = value

    each_layer(model, images, layers, store)
    return result[0]
