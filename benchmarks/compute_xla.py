"""Table 6's networks counted by XLA, the compiler of the ViT paper's own experiments.

    pip install jax && python benchmarks/compute_xla.py

Implements the networks in JAX after the official code (vit_jax/models_vit.py, models_resnet.py,
big_transfer/bit_pytorch/models.py). XLA's cost analysis counts the operations of one training step
with JFT's 18,291 sigmoid outputs; nothing is executed. Writes benchmarks/results/compute_xla.json,
which benchmarks/compute.py inserts into docs/compute.md.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from vit.compute.table6 import JFT_CLASSES, JFT_IMAGES, JFT_SIZE, TABLE6
from vit.models.config import ResNetConfig, ViTConfig
from vit.models.zoo import ZOO

BATCH = 8
RESULTS = Path(__file__).parent / "results" / "compute_xla.json"


class Weights:
    """Parameters by name: zeros in the first pass, which records shapes; later looked up."""

    def __init__(self, values: dict[str, Any] | None = None) -> None:
        self.values = values
        self.shapes: dict[str, tuple[int, ...]] = {}

    def __call__(self, name: str, *shape: int) -> Any:
        self.shapes[name] = shape
        return jnp.zeros(shape) if self.values is None else self.values[name]


def conv(w: Weights, name: str, x: Any, channels: int, side: int, stride: int, padding: Any) -> Any:
    """A weight-standardised convolution."""
    kernel = w(name, side, side, x.shape[-1], channels)
    mean = kernel.mean((0, 1, 2), keepdims=True)
    variance = ((kernel - mean) ** 2).mean((0, 1, 2), keepdims=True)
    kernel = (kernel - mean) / jnp.sqrt(variance + 1e-10)
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (stride,) * 2, padding, dimension_numbers=layout)


def normalize(x: Any, axes: tuple[int, ...]) -> Any:
    mean = x.mean(axes, keepdims=True)
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(axes, keepdims=True) + 1e-6)


def group_norm(w: Weights, name: str, x: Any) -> Any:
    n, height, width, c = x.shape
    y = normalize(x.reshape(n, height * width, 32, c // 32), (1, 3)).reshape(x.shape)
    return y * w(f"{name}.scale", c) + w(f"{name}.bias", c)


def layer_norm(w: Weights, name: str, x: Any) -> Any:
    c = x.shape[-1]
    return normalize(x, (-1,)) * w(f"{name}.scale", c) + w(f"{name}.bias", c)


def dense(w: Weights, name: str, x: Any, outputs: int) -> Any:
    return x @ w(f"{name}.kernel", x.shape[-1], outputs) + w(f"{name}.bias", outputs)


def max_pool(x: Any, padding: str) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), padding)


def bit(config: ResNetConfig, w: Weights, x: Any) -> Any:
    """BiT: norm and ReLU before each convolution, fixed padding."""
    root = 64 * config.width_factor
    one = ((1, 1), (1, 1))
    x = conv(w, "root", x, root, 7, 2, ((3, 3), (3, 3)))
    x = max_pool(jnp.pad(x, ((0, 0), *one, (0, 0))), "VALID")
    for s, depth in enumerate(config.depths):
        mid = root * 2**s
        for b in range(depth):
            name, stride = f"{s}.{b}", 2 if s and not b else 1
            y = jax.nn.relu(group_norm(w, f"{name}.a", x))
            if not b:
                x = conv(w, f"{name}.proj", y, 4 * mid, 1, stride, "VALID")
            y = conv(w, f"{name}.1", y, mid, 1, 1, "VALID")
            y = conv(
                w, f"{name}.2", jax.nn.relu(group_norm(w, f"{name}.b", y)), mid, 3, stride, one
            )
            y = jax.nn.relu(group_norm(w, f"{name}.c", y))
            x = x + conv(w, f"{name}.3", y, 4 * mid, 1, 1, "VALID")
    x = jax.nn.relu(group_norm(w, "norm", x)).mean((1, 2))
    return dense(w, "head", x, JFT_CLASSES)


def stem(depths: tuple[int, ...], w: Weights, x: Any) -> Any:
    """The hybrids' ResNet: norm and ReLU after each convolution, SAME padding."""
    x = jax.nn.relu(group_norm(w, "root", conv(w, "root.conv", x, 64, 7, 2, "SAME")))
    x = max_pool(x, "SAME")
    for s, depth in enumerate(depths):
        mid = 64 * 2**s
        for b in range(depth):
            name, stride = f"{s}.{b}", 2 if s and not b else 1
            shortcut = x
            if not b:
                shortcut = conv(w, f"{name}.proj", x, 4 * mid, 1, stride, "SAME")
                shortcut = group_norm(w, f"{name}.proj", shortcut)
            y = x
            for i, (side, step, c) in enumerate(((1, 1, mid), (3, stride, mid), (1, 1, 4 * mid))):
                y = group_norm(w, f"{name}.n{i}", conv(w, f"{name}.{i}", y, c, side, step, "SAME"))
                y = jax.nn.relu(y) if i < 2 else y
            x = jax.nn.relu(shortcut + y)
    return x


def vit(config: ViTConfig, w: Weights, x: Any) -> Any:
    """Equations 1 to 4 of the paper."""
    d, heads, m = config.width, config.num_heads, config.mlp_dim
    side = config.patch_size // config.stem_stride
    if config.stem_depths is not None:
        x = stem(config.stem_depths, w, x)
    kernel, layout = w("embed", side, side, x.shape[-1], d), ("NHWC", "HWIO", "NHWC")
    x = lax.conv_general_dilated(x, kernel, (side,) * 2, "VALID", dimension_numbers=layout)
    x = (x + w("embed.bias", d)).reshape(len(x), -1, d)
    x = jnp.concatenate([jnp.broadcast_to(w("cls", 1, 1, d), (len(x), 1, d)), x], axis=1)
    x = x + w("positions", 1, x.shape[1], d)
    for i in range(config.depth):
        y = layer_norm(w, f"{i}.1", x)
        q, k, v = (
            jnp.einsum("btd,dhe->bthe", y, w(f"{i}.{c}", d, heads, d // heads))
            + w(f"{i}.{c}.bias", heads, d // heads)
            for c in "qkv"
        )
        scores = jnp.einsum("bqhe,bkhe->bhqk", q / jnp.sqrt(d // heads), k)
        y = jnp.einsum("bhqk,bkhe->bqhe", jax.nn.softmax(scores), v)
        y = jnp.einsum("bqhe,hed->bqd", y, w(f"{i}.out", heads, d // heads, d))
        x = x + y + w(f"{i}.out.bias", d)
        y = jax.nn.gelu(dense(w, f"{i}.fc1", layer_norm(w, f"{i}.2", x), m))
        x = x + dense(w, f"{i}.fc2", y, d)
    return dense(w, "head", layer_norm(w, "norm", x)[:, 0], JFT_CLASSES)


def step_flops(forward: Callable[[Weights, Any], Any]) -> float:
    """Operations per image of a training step with a sigmoid loss, before XLA's optimisations."""
    images = jax.ShapeDtypeStruct((BATCH, JFT_SIZE, JFT_SIZE, 3), jnp.float32)
    targets = jax.ShapeDtypeStruct((BATCH, JFT_CLASSES), jnp.float32)
    record = Weights()
    jax.eval_shape(lambda x: forward(record, x), images)
    values = {n: jax.ShapeDtypeStruct(shape, jnp.float32) for n, shape in record.shapes.items()}

    def loss(values: Any, x: Any, y: Any) -> Any:
        logits = forward(Weights(values), x)
        terms = y * jax.nn.log_sigmoid(logits) + (1 - y) * jax.nn.log_sigmoid(-logits)
        return -terms.sum(-1).mean()

    cost = jax.jit(jax.grad(loss)).lower(values, images, targets).cost_analysis()
    return cost["flops"] / BATCH


def main() -> None:
    """Counts each model in the table once."""
    flops = {}
    for name in dict.fromkeys(point.model for point in TABLE6):
        config = ZOO[name].config
        network = bit if isinstance(config, ResNetConfig) else vit
        flops[name] = step_flops(partial(network, config))  # pyright: ignore[reportArgumentType]
        print(f"{name:12} {flops[name] / 1e9:8.1f} GFLOP per image and step", flush=True)
    document = {
        "what": "training step of Table 6's models by XLA's cost analysis",
        "date": time.strftime("%Y-%m-%d"),
        "versions": {"jax": jax.__version__},
        "classes": JFT_CLASSES,
        "training_flops": flops,
        "exaflops": [p.epochs * JFT_IMAGES * flops[p.model] / 1e18 for p in TABLE6],
    }
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document))


if __name__ == "__main__":
    main()
