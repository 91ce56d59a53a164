"""A ViT, hybrid and BiT in plain NumPy, written from the papers' equations for Google's layout.

Independent of the package: no torch, no shared code, double precision, loops where they are clear.
Weights are a dict with the keys of the official .npz files (pre-linen names). Images are b h w c.
ViT: arXiv:2010.11929, eqs. 1-4. BiT: arXiv:1912.11370; weight standardisation: arXiv:1903.10520.
"""

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.ndimage import zoom

Array = Any
Weights = dict[str, Array]


def conv(x: Array, kernel: Array, stride: int, pads: tuple[tuple[int, int], ...]) -> Array:
    """Correlation of b h w c with kernel i j c d; `pads` for rows and columns."""
    windows = sliding_window_view(np.pad(x, ((0, 0), *pads, (0, 0))), kernel.shape[:2], (1, 2))
    return np.tensordot(windows[:, ::stride, ::stride], kernel, ((3, 4, 5), (2, 0, 1)))


def same(shape: tuple[int, ...], kernel: int, stride: int) -> tuple[tuple[int, int], ...]:
    """TensorFlow's SAME padding of the two middle axes."""
    pads = []
    for size in shape[1:3]:
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        pads.append((total // 2, total - total // 2))
    return tuple(pads)


def max_pool(x: Array, pads: tuple[tuple[int, int], ...], fill: float) -> Array:
    """3 x 3, stride 2."""
    x = np.pad(x, ((0, 0), *pads, (0, 0)), constant_values=fill)
    return sliding_window_view(x, (3, 3), (1, 2))[:, ::2, ::2].max((-1, -2))


def group_norm(x: Array, scale: Array, bias: Array, eps: float) -> Array:
    b, h, w, c = x.shape
    groups = x.reshape(b, h, w, 32, c // 32)
    mean = groups.mean((1, 2, 4), keepdims=True)
    var = groups.var((1, 2, 4), keepdims=True)
    normal = ((groups - mean) / np.sqrt(var + eps)).reshape(b, h, w, c)
    return normal * scale.reshape(-1) + bias.reshape(-1)


def layer_norm(x: Array, w: Weights, name: str) -> Array:
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(var + 1e-6) * w[f"{name}/scale"] + w[f"{name}/bias"]


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def dense(x: Array, w: Weights, name: str) -> Array:
    return x @ w[f"{name}/kernel"] + w[f"{name}/bias"]


def attention(queries: Array, x: Array, w: Weights, name: str) -> Array:
    q, k, v = (
        np.einsum("bnd,dhe->bhne", t, w[f"{name}/{part}/kernel"])
        + w[f"{name}/{part}/bias"][None, :, None]
        for t, part in ((queries, "query"), (x, "key"), (x, "value"))
    )
    scores = np.einsum("bhne,bhme->bhnm", q, k) / np.sqrt(q.shape[-1])
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = np.einsum("bhnm,bhme->bhne", scores / scores.sum(-1, keepdims=True), v)
    return np.einsum("bhne,hed->bnd", mixed, w[f"{name}/out/kernel"]) + w[f"{name}/out/bias"]


def mlp(x: Array, w: Weights, name: str) -> Array:
    return dense(gelu(dense(x, w, f"{name}/Dense_0")), w, f"{name}/Dense_1")


def resized(table: Array, old: tuple[int, int], new: tuple[int, int]) -> Array:
    """Bilinear with aligned corners, as vit_jax calls SciPy."""
    grid: Array = zoom(table.reshape(*old, -1), (new[0] / old[0], new[1] / old[1], 1), order=1)
    return grid.reshape(1, new[0] * new[1], -1)


def hybrid_conv(x: Array, kernel: Array, stride: int = 1) -> Array:
    """vit_jax/models_resnet.py, StdConv: (w - mean) / (std + 1e-5), SAME."""
    kernel = (kernel - kernel.mean((0, 1, 2))) / (kernel.std((0, 1, 2)) + 1e-5)
    return conv(x, kernel, stride, same(x.shape, kernel.shape[0], stride))


def hybrid_stem(x: Array, w: Weights) -> Array:
    def norm(x: Array, name: str) -> Array:
        return group_norm(x, w[f"{name}/scale"], w[f"{name}/bias"], 1e-6)

    x = np.maximum(norm(hybrid_conv(x, w["conv_root/kernel"], 2), "gn_root"), 0)
    x = max_pool(x, same(x.shape, 3, 2), -np.inf)
    for s in range(1, 5):
        for u in range(1, 10):
            name = f"block{s}/unit{u}"
            if f"{name}/conv1/kernel" not in w:
                break
            stride = 2 if s > 1 and u == 1 else 1
            shortcut = x
            if f"{name}/conv_proj/kernel" in w:
                shortcut = hybrid_conv(x, w[f"{name}/conv_proj/kernel"], stride)
                shortcut = norm(shortcut, f"{name}/gn_proj")
            y = np.maximum(norm(hybrid_conv(x, w[f"{name}/conv1/kernel"]), f"{name}/gn1"), 0)
            y = hybrid_conv(y, w[f"{name}/conv2/kernel"], stride)
            y = np.maximum(norm(y, f"{name}/gn2"), 0)
            y = norm(hybrid_conv(y, w[f"{name}/conv3/kernel"]), f"{name}/gn3")
            x = np.maximum(y + shortcut, 0)
    return x


def vit(images: Array, w: Weights, old_grid: tuple[int, int]) -> Array:
    """Logits b k. `old_grid`: rows and columns of the position table."""
    w = {key: np.asarray(value, np.float64) for key, value in w.items()}
    x = hybrid_stem(images, w) if "conv_root/kernel" in w else images
    kernel = w["embedding/kernel"]
    x = conv(x, kernel, kernel.shape[0], ((0, 0), (0, 0))) + w["embedding/bias"]
    grid = (x.shape[1], x.shape[2])
    x = x.reshape(len(x), grid[0] * grid[1], -1)
    table = w["Transformer/posembed_input/pos_embedding"]
    slots = table.shape[1] - old_grid[0] * old_grid[1]
    table = np.concatenate([table[:, :slots], resized(table[:, slots:], old_grid, grid)], 1)
    if "cls" in w:
        x = np.concatenate([np.repeat(w["cls"], len(x), 0), x], 1)
    x = x + table
    i = 0
    while f"Transformer/encoderblock_{i}/LayerNorm_0/scale" in w:
        base = f"Transformer/encoderblock_{i}"
        y = layer_norm(x, w, f"{base}/LayerNorm_0")
        x = x + attention(y, y, w, f"{base}/MultiHeadDotProductAttention_1")
        x = x + mlp(layer_norm(x, w, f"{base}/LayerNorm_2"), w, f"{base}/MlpBlock_3")
        i += 1
    x = layer_norm(x, w, "Transformer/encoder_norm")
    if "MAPHead_0/probe" in w:
        probe = np.repeat(w["MAPHead_0/probe"], len(x), 0)
        y = attention(probe, x, w, "MAPHead_0/MultiHeadDotProductAttention_0")
        y = y + mlp(layer_norm(y, w, "MAPHead_0/LayerNorm_0"), w, "MAPHead_0/MlpBlock_0")
        x = y[:, 0]
    else:
        x = x[:, 0] if "cls" in w else x.mean(1)
    if "pre_logits/kernel" in w:
        x = np.tanh(dense(x, w, "pre_logits"))
    return dense(x, w, "head")


def bit(images: Array, w: Weights) -> Array:
    """Logits b k of a BiT ResNet-v2 (big_transfer, bit_pytorch/models.py)."""
    w = {key: np.asarray(value, np.float64) for key, value in w.items()}

    def std_conv(x: Array, name: str, stride: int = 1) -> Array:
        kernel = w[f"{name}/standardized_conv2d/kernel"]
        var = kernel.var((0, 1, 2))
        kernel = (kernel - kernel.mean((0, 1, 2))) / np.sqrt(var + 1e-10)
        pad = kernel.shape[0] // 2
        return conv(x, kernel, stride, ((pad, pad), (pad, pad)))

    def norm_relu(x: Array, name: str) -> Array:
        gamma, beta = w[f"{name}/group_norm/gamma"], w[f"{name}/group_norm/beta"]
        return np.maximum(group_norm(x, gamma, beta, 1e-5), 0)

    x = max_pool(std_conv(images, "resnet/root_block", 2), ((1, 1), (1, 1)), 0.0)
    for s in range(1, 5):
        for u in range(1, 10):
            name = f"resnet/block{s}/unit{u:02d}"
            if f"{name}/a/standardized_conv2d/kernel" not in w:
                break
            stride = 2 if s > 1 and u == 1 else 1
            y = norm_relu(x, f"{name}/a")
            shortcut = std_conv(y, f"{name}/a/proj", stride) if u == 1 else x
            y = std_conv(y, f"{name}/a")
            y = std_conv(norm_relu(y, f"{name}/b"), f"{name}/b", stride)
            x = std_conv(norm_relu(y, f"{name}/c"), f"{name}/c") + shortcut
    x = norm_relu(x, "resnet").mean((1, 2))
    return x @ w["resnet/head/conv2d/kernel"][0, 0] + w["resnet/head/conv2d/bias"]
