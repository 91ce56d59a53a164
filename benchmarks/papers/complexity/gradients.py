"""How much the output of token n still depends on token 1: why recurrence loses long sequences.

    python -m benchmarks.papers.complexity.gradients

One layer with its initial weights, on random tokens: the norm of the Jacobian d y_n / d x_1, by
random directions (the mean of |J' r|^2 over normal r is the squared norm), in float64. Of a linear
network, h_n = W x_n + U h_(n-1), the Jacobian is U^(n-1) W: its norm is computed as such. With
entries of U uniform within 1 / sqrt(d), whose variance is 1 / (3 d), a step multiplies the squared
norm by 1/3 in the mean, for large d: the closed form is |W| 3^(-(n-1)/2).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.lib.harness import Rows, arguments, document, publish
from benchmarks.papers.complexity.run import mixers
from vit.models.encoder import Place

ARMS: dict[str, dict[str, Any]] = {
    "rnn": {"name": "rnn", "two_way": False},
    "lstm": {"name": "lstm", "two_way": False},
    "gru": {"name": "gru", "two_way": False},
    "attention": {"name": "softmax"},
}
"""One way, so that the path from token 1 to n has n - 1 steps."""
WIDTH, SIDE, SEEDS, DIRECTIONS = 256, 16, 5, 32


def jacobian_norms(
    layer: Callable[[Tensor], Tensor], tokens: Tensor, places: list[int], directions: Tensor
) -> list[float]:
    """Norms of the Jacobians of outputs at places, from 1, by the first token.

    `tokens` `n d`, `directions` `r d`; the layer takes and gives `1 n d`.
    """
    first = tokens[:1].clone().requires_grad_()
    outputs = layer(torch.cat([first, tokens[1:]])[None])[0]
    norms = []
    for place in places:
        squares = [
            torch.autograd.grad(outputs[place - 1] @ direction, first, retain_graph=True)[0]
            .square()
            .sum()
            for direction in directions
        ]
        norms.append(float(torch.stack(squares).mean().sqrt()))
    return norms


def power_norms(inputs: Tensor, states: Tensor, places: list[int]) -> list[float]:
    """Norms of U^(n-1) W at places n, for W `inputs` and U `states`, `d d` each."""
    norms, product = {}, inputs
    for n in range(1, max(places) + 1):
        norms[n] = float(product.norm())
        product = states @ product
    return [norms[place] for place in places]


def measured(width: int, side: int, seeds: int, directions: int) -> Rows:
    """A row for each network: places, and norms of each seed."""
    count, places = side**2, [2**k for k in range((side**2).bit_length())]
    norms: dict[str, list[list[float]]] = {}
    for seed in range(seeds):
        torch.manual_seed(seed)
        tokens = torch.randn(count, width, dtype=torch.float64)
        probes = torch.randn(directions, width, dtype=torch.float64)
        for arm, part in ARMS.items():
            [mixer] = mixers(part, [side, side], width, 0, 1)
            mixer.double()
            if arm == "attention":
                layer = lambda x, mixer=mixer: mixer(x, Place(side, side, 0))  # noqa: E731
            else:
                layer = mixer.mixed
            norms.setdefault(arm, []).append(jacobian_norms(layer, tokens, places, probes))
        bound = width**-0.5
        inputs, states = (
            torch.empty(width, width, dtype=torch.float64).uniform_(-bound, bound) for _ in "WU"
        )
        norms.setdefault("linear", []).append(power_norms(inputs, states, places))
        closed = [float(inputs.norm()) * 3 ** (-(place - 1) / 2) for place in places]
        norms.setdefault("closed form", []).append(closed)
    return [{"network": arm, "places": places, "norms": each} for arm, each in norms.items()]


def main(words: list[str] | None = None) -> Rows:
    options = arguments(__doc__).parse_args(words)
    sizes = (16, 4, 2, 4) if options.quick else (WIDTH, SIDE, SEEDS, DIRECTIONS)
    rows = measured(*sizes)
    names = ("width", "side", "seeds", "directions")
    facts = dict(zip(names, sizes, strict=True))
    publish(document("gradients", rows, **facts), options, "papers/complexity/gradients")
    return rows


if __name__ == "__main__":
    main()
