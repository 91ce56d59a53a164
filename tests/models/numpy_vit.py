"""Equations 1 to 4 of arXiv:2010.11929 in plain NumPy float64, written independently of vit/models.

One image, one head, one patch at a time: slow, and hard to get wrong in the same way.
"""

from collections.abc import Mapping

import numpy as np

Array = np.ndarray


def layer_norm(z: Array, scale: Array, shift: Array, eps: float = 1e-6) -> Array:
    mean = z.mean(axis=-1, keepdims=True)
    variance = ((z - mean) ** 2).mean(axis=-1, keepdims=True)
    return scale * (z - mean) / np.sqrt(variance + eps) + shift


def gelu(x: Array) -> Array:
    """The tanh form, Flax's default."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def msa(z: Array, weights: Mapping[str, Array], heads: int) -> Array:
    """Appendix A, equations 5 to 8."""
    width = z.shape[1]
    size = width // heads
    q, k, v = np.split(z @ weights["qkv.weight"].T + weights["qkv.bias"], 3, axis=1)
    found = []
    for h in range(heads):
        columns = slice(h * size, (h + 1) * size)
        similarity = q[:, columns] @ k[:, columns].T / np.sqrt(size)
        attention = np.exp(similarity - similarity.max(axis=1, keepdims=True))
        attention /= attention.sum(axis=1, keepdims=True)
        found.append(attention @ v[:, columns])
    return np.concatenate(found, axis=1) @ weights["proj.weight"].T + weights["proj.bias"]


def mlp(z: Array, weights: Mapping[str, Array]) -> Array:
    hidden = gelu(z @ weights["fc1.weight"].T + weights["fc1.bias"])
    return hidden @ weights["fc2.weight"].T + weights["fc2.bias"]


def below(weights: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}


def forward(
    image: Array, weights: Mapping[str, Array], patch: int, depth: int, heads: int
) -> Array:
    """Logits of one image `c h w` with a class token, and the tanh layer where there is one."""
    _, height, width = image.shape
    tokens = [weights["cls_token"][0, 0]]
    for top in range(0, height, patch):
        for left in range(0, width, patch):
            pixels = image[:, top : top + patch, left : left + patch]
            kernel = weights["patch_embed.proj.weight"]
            tokens.append((kernel * pixels).sum(axis=(1, 2, 3)) + weights["patch_embed.proj.bias"])
    z = np.stack(tokens) + weights["pos_embed"][0]  # equation 1
    for i in range(depth):
        w = below(weights, f"blocks.{i}.")
        normed = layer_norm(z, w["norm1.weight"], w["norm1.bias"])
        z = msa(normed, below(w, "attn."), heads) + z  # equation 2
        normed = layer_norm(z, w["norm2.weight"], w["norm2.bias"])
        z = mlp(normed, below(w, "mlp.")) + z  # equation 3
    y = layer_norm(z[0], weights["norm.weight"], weights["norm.bias"])  # equation 4
    if "pre_logits.fc.weight" in weights:
        y = np.tanh(weights["pre_logits.fc.weight"] @ y + weights["pre_logits.fc.bias"])
    return weights["head.weight"] @ y + weights["head.bias"]
