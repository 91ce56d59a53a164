"""Modified feed-forwards, norms, additions and stacks of layers in plain NumPy, from the papers."""

from collections.abc import Callable
from math import ceil, erf, sqrt
from typing import Any

import numpy as np

from tests.extensions.variants.numpy_variants import Array, Part, dense, softmax

Function = Callable[[float], float]


def sigmoid(x: float) -> float:
    return 1 / (1 + np.exp(-x))


FUNCTIONS: dict[str, Function] = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * (1 + erf(x / sqrt(2))) / 2,
    "swish": lambda x: x * sigmoid(x),
    "elu": lambda x: x if x > 0 else np.exp(x) - 1,
    # arXiv:1706.02515, equation 2, with the constants of its appendix.
    "selu": lambda x: 1.0507009873554805 * (x if x > 0 else 1.6732632423543772 * (np.exp(x) - 1)),
    "sigmoid": sigmoid,
    "softplus": lambda x: np.log1p(np.exp(x)),
}
GATES: dict[str, Function] = {
    "glu": sigmoid,
    "geglu": FUNCTIONS["gelu"],
    "reglu": FUNCTIONS["relu"],
    "swiglu": FUNCTIONS["swish"],
    "liglu": lambda x: x,
}


def activated(function: Function) -> type[Part]:
    class Activated(Part):
        def mlp(self, i: int, x: Array) -> Array:
            name = f"blocks.{i}.mlp"
            return dense(
                np.vectorize(function)(dense(x, self.w, f"{name}.fc1")), self.w, f"{name}.fc2"
            )

    return Activated


def gated(function: Function) -> type[Part]:
    class Gated(Part):
        def mlp(self, i: int, x: Array) -> Array:
            name = f"blocks.{i}.mlp"
            hidden = dense(x, self.w, f"{name}.fc1")
            half = hidden.shape[-1] // 2
            gate, value = hidden[..., :half], hidden[..., half:]
            return dense(np.vectorize(function)(gate) * value, self.w, f"{name}.fc2")

    return Gated


class NoMlp(Part):
    def layer(self, i: int, x: Array) -> Array:
        return x + self.mixer(i, self.norm(x, f"blocks.{i}.norm1"))


def experts(options: dict[str, Any]) -> type[Part]:
    """Token by token: arXiv:2101.03961, section 2, arXiv:2106.05974, section 2."""

    class Experts(Part):
        def mlp(self, i: int, x: Array) -> Array:
            name, k = f"blocks.{i}.mlp", options.get("chosen", 1)
            router = self.w[f"{name}.router.weight"]
            e, tokens = len(router), x.shape[1]
            capacity = ceil(options.get("capacity", 1.25) * k * tokens / e)
            y = np.zeros_like(x)
            for image, out in zip(x, y, strict=True):
                p = softmax(image @ router.T)
                best = np.argsort(-p, axis=-1)
                used = [0] * e
                for choice in range(k):
                    for t in range(tokens):
                        expert = best[t, choice]
                        used[expert] += 1
                        if used[expert] <= capacity:
                            out[t] += p[t, expert] * self.expert(
                                f"{name}.experts.{expert}", image[t]
                            )
            return y

        def expert(self, name: str, x: Array) -> Array:
            hidden = dense(x, self.w, f"{name}.fc1")
            if options.get("expert") == "relu":
                return dense(np.maximum(hidden, 0), self.w, f"{name}.fc2")
            tanh = np.tanh(sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3))
            return dense(hidden * (1 + tanh) / 2, self.w, f"{name}.fc2")

    return Experts


class Rms(Part):
    def norm(self, x: Array, name: str) -> Array:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * self.w[f"{name}.weight"]


class Post(Part):
    def layer(self, i: int, x: Array) -> Array:
        x = self.norm(x + self.mixer(i, x), f"blocks.{i}.norm1")
        return self.norm(x + self.mlp(i, x), f"blocks.{i}.norm2")


class NoResidual(Part):
    def layer(self, i: int, x: Array) -> Array:
        x = self.mixer(i, self.norm(x, f"blocks.{i}.norm1"))
        return self.mlp(i, self.norm(x, f"blocks.{i}.norm2"))


class Scaled(Part):
    """ReZero and Fixup."""

    def layer(self, i: int, x: Array) -> Array:
        x = x + self.w[f"blocks.{i}.ls1.gamma"] * self.mixer(i, x)
        return x + self.w[f"blocks.{i}.ls2.gamma"] * self.mlp(i, x)


class Shared(Part):
    def layer(self, i: int, x: Array) -> Array:
        return super().layer(0, x)


def funnel(options: dict[str, Any]) -> type[Part]:
    """Two layers, the second one on means of 2 x 2 patches."""

    class Funnel(Part):
        def layer(self, i: int, x: Array) -> Array:
            self.w = {key.replace(".1.layer.", ".1."): value for key, value in self.w.items()}
            return super().layer(i, self.pooled(x) if i else x)

        def pooled(self, x: Array) -> Array:
            rows, columns = self.grid
            tokens = [x[:, i] for i in range(self.p)]
            for row in range(0, rows, 2):
                for column in range(0, columns, 2):
                    corner = self.p + row * columns + column
                    cell = (corner, corner + 1, corner + columns, corner + columns + 1)
                    tokens.append(sum(x[:, i] for i in cell) / 4)
            return np.stack(tokens, axis=1)

    return Part if options.get("stages") == 1 else Funnel
