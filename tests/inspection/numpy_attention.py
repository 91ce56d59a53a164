"""The forward pass of a small ViT in NumPy float64, with its attention weights as variables.

Written from arXiv:2010.11929 (equations 1 to 8), independently of vit/inspection. Derivatives are
central differences, so that no rule of differentiation is shared with the package.
"""

from collections.abc import Callable, Mapping

import numpy as np

Array = np.ndarray
STEP = 1e-5


def numbers(model: object) -> dict[str, Array]:
    """The state dict of a model as float64 arrays."""
    state = model.state_dict()  # pyright: ignore
    return {name: tensor.double().numpy() for name, tensor in state.items()}


def below(weights: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}


def layer_norm(z: Array, weights: Mapping[str, Array], name: str) -> Array:
    centred = z - z.mean(-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    return weights[f"{name}.weight"] * normal + weights[f"{name}.bias"]


def mlp(z: Array, weights: Mapping[str, Array]) -> Array:
    x = z @ weights["fc1.weight"].T + weights["fc1.bias"]
    x = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))  # Flax's GELU
    return x @ weights["fc2.weight"].T + weights["fc2.bias"]


def embeddings(image: Array, weights: Mapping[str, Array], patch: int) -> Array:
    """E x_p of equation 1, row by row, `gh gw d`, of an image `c h w`."""
    kernel, bias = weights["patch_embed.proj.weight"], weights["patch_embed.proj.bias"]
    _, height, width = image.shape
    rows = [
        [
            (kernel * image[:, y : y + patch, x : x + patch]).sum((1, 2, 3)) + bias
            for x in range(0, width, patch)
        ]
        for y in range(0, height, patch)
    ]
    return np.array(rows)


def attend(
    z: Array, weights: Mapping[str, Array], heads: int, change: Array
) -> tuple[Array, Array]:
    """Equations 6 to 8 with `change` added to the weights `heads n n`: output and weights."""
    size = z.shape[1] // heads
    q, k, v = np.split(z @ weights["qkv.weight"].T + weights["qkv.bias"], 3, axis=1)
    maps, parts = [], []
    for h in range(heads):
        head = slice(h * size, (h + 1) * size)
        scores = np.exp(q[:, head] @ k[:, head].T / np.sqrt(size))
        maps.append(scores / scores.sum(1, keepdims=True))
        parts.append((maps[h] + change[h]) @ v[:, head])
    out = np.concatenate(parts, 1) @ weights["proj.weight"].T + weights["proj.bias"]
    return out, np.stack(maps)


def forward(
    patches: Array,
    weights: Mapping[str, Array],
    depth: int,
    heads: int,
    *,
    pool: str = "cls",
    changes: Mapping[int, Array] | None = None,
) -> tuple[Array, list[Array]]:
    """Logits `k` and the attention weights of every layer, `heads n n`, from patches `gh gw d`."""
    z = patches.reshape(-1, patches.shape[-1])
    if "cls_token" in weights:
        z = np.concatenate([weights["cls_token"][0], z])
    z = z + weights["pos_embed"][0]
    if "reg_token" in weights:
        z = np.concatenate([z[:1], weights["reg_token"][0], z[1:]])
    maps = []
    for i in range(depth):
        layer = below(weights, f"blocks.{i}.")
        change = (changes or {}).get(i, np.zeros(heads))
        y = layer_norm(z, layer, "norm1")
        out, attention = attend(y, below(layer, "attn."), heads, change)
        maps.append(attention)
        z = z + out
        z = z + mlp(layer_norm(z, layer, "norm2"), below(layer, "mlp."))
    z = layer_norm(z, weights, "norm")
    pooled = z[0] if pool == "cls" else z.mean(0)
    return weights["head.weight"] @ pooled + weights["head.bias"], maps


def differences(function: Callable[[Array], float], at: Array) -> Array:
    """The gradient of a function at an array, by central differences."""
    grad = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        step = np.zeros_like(at)
        step[index] = STEP
        grad[index] = (function(at + step) - function(at - step)) / (2 * STEP)
    return grad
