"""The mixers in plain NumPy, from the papers' equations: loops over tokens, no torch.

x is `b m d`; p prefix tokens come first. Each function makes the class of a part from its options.
"""

from typing import Any

import numpy as np

from tests.extensions.variants.numpy_variants import Array, Part, dense, softmax

Options = dict[str, Any]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


class Seeing(Part):
    """Attention whose tokens see some others: `sees` of a layer, a head and two tokens."""

    def sees(self, layer: int, head: int, a: int, b: int) -> bool:
        return True

    def bias(self, layer: int, q: Array) -> Array:
        m = q.shape[2]
        bias = np.zeros((self.heads, m, m))
        for head, a, b in np.ndindex(bias.shape):
            if not self.sees(layer, head, a, b):
                bias[head, a, b] = -np.inf
        return bias


def full(options: Options) -> type[Part]:
    class Full(Seeing):
        def sees(self, layer: int, head: int, a: int, b: int) -> bool:
            return b <= a or not options["causal"]

    return Full


def dot_product(options: Options) -> type[Part]:
    class DotProduct(Part):
        def mixer(self, i: int, x: Array) -> Array:
            if not options["projected"]:
                return softmax(x @ x.swapaxes(-1, -2)) @ x
            q, k, v = self.queries_keys_values(i, x)
            return self.projected(i, softmax(q @ k.swapaxes(-1, -2)) @ v)

    return DotProduct


def window(options: Options) -> type[Part]:
    """Swin: a window of the rolled grid, whose wrapped rows and columns are apart."""
    size = options["size"]

    class Window(Seeing):
        def place(self, layer: int, patch: int) -> list[tuple[int, bool]]:
            found = []
            for at, side, whole in zip(self.places[patch], size, self.grid, strict=True):
                shift = side // 2 if options["shift"] and layer % 2 and side < whole else 0
                found.append(((at - shift) % whole // side, at < shift))
            return found

        def sees(self, layer: int, head: int, a: int, b: int) -> bool:
            p = self.p
            return min(a, b) < p or self.place(layer, a - p) == self.place(layer, b - p)

        def bias(self, layer: int, q: Array) -> Array:
            bias = super().bias(layer, q)
            if options["bias"]:
                table = self.w[f"blocks.{layer}.attn.relative_position_bias_table"]
                table = table.reshape(2 * size[0] - 1, 2 * size[1] - 1, -1)
                for i, (row, column) in enumerate(self.places):
                    for j, (r, c) in enumerate(self.places):
                        if bias[0, self.p + i, self.p + j] == 0:
                            entry = table[row - r + size[0] - 1, column - c + size[1] - 1]
                            bias[:, self.p + i, self.p + j] = entry
            return bias

    return Window


def axial(options: Options) -> type[Part]:
    class Axial(Seeing):
        axis = half = 0

        def mixer(self, i: int, x: Array) -> Array:
            axes = (0, 1) if options["axes"] == "both" else (i % 2,)
            for half, axis in enumerate(axes):
                self.half, self.axis = half, axis
                qkv = dense(x, self.w, f"blocks.{i}.attn.halves.{half}.qkv")
                qkv = qkv.reshape(*x.shape[:2], 3, self.heads, -1).transpose(2, 0, 3, 1, 4)
                q, k, v = qkv
                weights = softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + self.bias(i, q))
                y = (weights @ v).transpose(0, 2, 1, 3).reshape(x.shape)
                x = dense(y, self.w, f"blocks.{i}.attn.halves.{half}.proj")
            return x

        def sees(self, layer: int, head: int, a: int, b: int) -> bool:
            p, axis = self.p, self.axis
            return min(a, b) < p or self.places[a - p][axis] == self.places[b - p][axis]

    return Axial


def linformer(options: Options) -> type[Part]:
    class Linformer(Part):
        def queries_keys_values(self, i: int, x: Array) -> Array:
            q, k, v = super().queries_keys_values(i, x)
            e = self.w[f"blocks.{i}.attn.key_sums"]
            f = e if options["shared"] else self.w[f"blocks.{i}.attn.value_sums"]
            return q, np.einsum("km,bhme->bhke", e, k), np.einsum("km,bhme->bhke", f, v)

    return Linformer


def hashed(x: int) -> int:
    """lowbias32 of Wellons' hash-prospector."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = ((x ^ (x >> shift)) * factor) % 2**32
    return x ^ (x >> 16)


def bigbird(options: Options) -> type[Part]:
    block, reach = options["block"], options["window"] // 2

    class BigBird(Seeing):
        def blocks(self, layer: int, head: int, i: int) -> set[int]:
            """Those that block i sees."""
            n = -(-(self.p + len(self.places)) // block)
            if i in (0, n - 1):
                return set(range(n))
            seen = {0, n - 1, *range(max(0, i - reach), min(n, i + reach + 1))}
            group = (options["seed"] * 1_000 + layer) * self.heads + head
            rest = sorted(set(range(n)) - seen, key=lambda j: -hashed((group * n + i) * n + j))
            return seen | set(rest[: options["random"]])

        def sees(self, layer: int, head: int, a: int, b: int) -> bool:
            return b // block in self.blocks(layer, head, a // block)

    return BigBird


def recurrent(cell: str) -> Any:
    def step(w: Any, gates: int, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        inputs, states = (
            np.split(z @ w[f"weight_{kind}h"].T + w[f"bias_{kind}h"], gates, -1)
            for kind, z in (("i", x), ("h", h))
        )
        if cell == "rnn":
            return np.tanh(inputs[0] + states[0]), c
        if cell == "lstm":
            i, f, g, o = (a + b for a, b in zip(inputs, states, strict=True))
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            return sigmoid(o) * np.tanh(c), c
        r, z = (sigmoid(inputs[n] + states[n]) for n in (0, 1))
        return (1 - z) * np.tanh(inputs[2] + r * states[2]) + z * h, c

    def part(options: Options) -> type[Part]:
        class Recurrent(Part):
            def mixer(self, i: int, x: Array) -> Array:
                name, gates = f"blocks.{i}.attn.", {"rnn": 1, "lstm": 4, "gru": 3}[cell]
                ways = []
                for end in ("", "_reverse")[: 1 + options["two_way"]]:
                    keys = [f"{a}_{b}h" for a in ("weight", "bias") for b in "ih"]
                    w = {key: self.w[f"{name}{key}_l0{end}"] for key in keys}
                    h = c = np.zeros_like(x[:, 0])
                    states = np.zeros_like(x)
                    order = range(x.shape[1])
                    for t in reversed(order) if end else order:
                        h, c = step(w, gates, x[:, t], h, c)
                        states[:, t] = h
                    ways.append(states)
                return dense(np.concatenate(ways, -1), self.w, f"{name}proj")

        return Recurrent

    return part


class Sequence(Part):
    """Sums over the tokens around each one: `kernel` of layer, tokens `b m d` and one of them gives
    `b k d` or `b k d d`."""

    k = 0

    def convolved(self, i: int, x: Array) -> Array:
        y = np.zeros_like(x)
        for t in range(x.shape[1]):
            kernel = self.kernel(i, x, t)
            for j in range(self.k):
                at = t + j - self.k // 2
                if 0 <= at < x.shape[1]:
                    tap = kernel[:, j]
                    y[:, t] += x[:, at] * tap if tap.ndim == 2 else x[:, at] @ tap[0].T
        return y

    def kernel(self, i: int, x: Array, t: int) -> Array:
        raise NotImplementedError


def convolution(options: Options) -> type[Part]:
    class Convolution(Sequence):
        k = options["kernel"]

        def kernel(self, i: int, x: Array, t: int) -> Array:
            kernel = self.w[f"blocks.{i}.attn.conv.weight"]  # outputs, inputs, taps
            return (kernel[:, 0].T if options["depthwise"] else kernel.transpose(2, 0, 1))[None]

        def mixer(self, i: int, x: Array) -> Array:
            y = self.convolved(i, x) + self.w[f"blocks.{i}.attn.conv.bias"]
            return dense(y, self.w, f"blocks.{i}.attn.proj") if options["depthwise"] else y

    return Convolution


def lightweight(options: Options, dynamic: bool = False) -> type[Part]:
    class Lightweight(Sequence):
        k = options["kernel"]

        def kernel(self, i: int, x: Array, t: int) -> Array:
            kernels = self.w[f"blocks.{i}.attn.kernels"]
            scores = x[:, t] @ kernels.T if dynamic else kernels
            weights = softmax(scores.reshape(-1, self.heads, self.k))
            return np.repeat(weights, x.shape[2] // self.heads, axis=1).swapaxes(1, 2)

        def mixer(self, i: int, x: Array) -> Array:
            value, gate = np.split(dense(x, self.w, f"blocks.{i}.attn.gate"), 2, -1)
            return dense(self.convolved(i, value * sigmoid(gate)), self.w, f"blocks.{i}.attn.proj")

    return Lightweight


def synthesizer(kind: str) -> Any:
    class Synthesizer(Part):
        def mixer(self, i: int, x: Array) -> Array:
            name = f"blocks.{i}.attn."
            v = dense(x, self.w, f"{name}value").reshape(*x.shape[:2], self.heads, -1)
            y = np.zeros_like(v)
            for head in range(self.heads):
                weights = softmax(self.scores(name, x, head))
                y[:, :, head] = weights @ v[:, :, head]
            return dense(y.reshape(x.shape), self.w, f"{name}proj")

        def scores(self, name: str, x: Array, head: int) -> Array:
            if kind == "random":
                return self.w[f"{name}score_table"][head]
            if kind == "factorized":
                rows, columns = self.w[f"{name}row_table"], self.w[f"{name}column_table"]
                return rows[head] @ columns[head].T
            hidden = np.maximum(dense(x, self.w, f"{name}hidden"), 0)
            hidden = hidden.reshape(*x.shape[:2], self.heads, -1)[:, :, head]
            weight, bias = self.w[f"{name}score_weight"], self.w[f"{name}score_bias"]
            return hidden @ weight[head].T + bias[head, 0]

    return lambda options: Synthesizer
