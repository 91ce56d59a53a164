"""Seconds of calls taken in turns, and the limit that matrix products set on the same machine.

Machines change their speed within a minute, by heat and by other programs; calls that take turns
meet the same machine, and their ratios, round by round, keep their meaning.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal

from vit.models.config import ViTConfig

if TYPE_CHECKING:
    import torch

    from vit.models.zoo import ModelConfig

Clock = Literal["wall", "cpu"]
"""Time that passed, or time that this process computed, of all its threads together: what a busy
machine leaves unchanged, but meaningless for a GPU."""
Call = Callable[[], object]

SHORTEST = 0.05
"""Seconds that a turn lasts at least: a shorter call is repeated within it."""


@dataclass(frozen=True)
class Times:
    """Seconds of one call, one value a round."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle round."""
        return median(self.values)

    @property
    def spread(self) -> float:
        """Half the distance from fastest to slowest round, as a share of the median."""
        return (max(self.values) - min(self.values)) / 2 / self.median

    def faster_than(self, other: "Times") -> float:
        """The middle of the rounds' ratios: 2.0 takes half of the other's time."""
        return median(b / a for a, b in zip(self.values, other.values, strict=True))


def in_turns(
    calls: Mapping[str, Call],
    *,
    rounds: int,
    clock: Clock = "wall",
    shortest: float = SHORTEST,
    finish: Call = lambda: None,
    report: Callable[[str], object] = lambda line: None,
) -> dict[str, Times]:
    """Times of all calls, each in its turn, `rounds` times after one that does not count.

    `finish` waits for a device that works on after a call has returned; see `finisher`.
    """
    now = time.perf_counter if clock == "wall" else time.process_time

    def turn(call: Call, repeats: int) -> float:
        finish()
        start = now()
        for _ in range(repeats):
            call()
        finish()
        return (now() - start) / repeats

    repeats, found = {}, {name: [] for name in calls}
    for name, call in calls.items():
        report(f"warming up: {name}")
        turn(call, 1)
        repeats[name] = max(1, round(shortest / max(turn(call, 1), 1e-9)))
    for i in range(rounds):
        for name, call in calls.items():
            report(f"round {i + 1}/{rounds}: {name}")
            found[name].append(turn(call, repeats[name]))
    return {name: Times(tuple(values)) for name, values in found.items()}


def finisher(device: "torch.device") -> Call:
    """What waits for the device; nothing to wait for on a CPU."""
    import torch

    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


SQUARE = {"cpu": 2048, "cuda": 8192}
"""Rows and columns of the product that a model without dense layers is held against."""


def products(
    config: "ModelConfig | None", batch_size: int, device: "torch.device"
) -> list[tuple[int, int, int]]:
    """The dense products of an encoder layer for a batch, without attention: (m, d, k) is `m d`
    times `d k`. Every layer has these, and little else costs as much.

    A network of convolutions has one large square product instead.
    """
    if not isinstance(config, ViTConfig):
        side = SQUARE[device.type]
        return [(side, side, side)]
    m, d = batch_size * config.num_tokens, config.width
    return [(m, d, 3 * d), (m, d, d), (m, d, config.mlp_hidden_width), (m, config.mlp_dim, d)]


@dataclass(frozen=True)
class Limit:
    """Matrix products alone, as the fastest library of this machine computes them."""

    call: Call
    flops: int
    """Operations of one call."""

    def share(self, flops: float, times: Times, own: Times) -> float:
        """Of the limit, what a call of `flops` operations in `times` reaches; `own` is the limit's.

        The middle of the rounds' values, so that both sides met the same machine.
        """
        pairs = zip(times.values, own.values, strict=True)
        return median(flops / t / (self.flops / o) for t, o in pairs)


def limit(
    shapes: Sequence[tuple[int, int, int]],
    dtype: "torch.dtype",
    device: "torch.device",
    *,
    packed: bool = False,
) -> Limit:
    """The products of these shapes, one after the other; `packed` is for forward passes."""
    import torch

    from vit.models import matmul

    inputs = [torch.randn(m, d, device=device).to(dtype) for m, d, _ in shapes]
    weights = [torch.randn(k, d, device=device).to(dtype) for _, d, k in shapes]
    # oneDNN or MKL, whichever is the faster one in float32; PyTorch takes oneDNN in bfloat16.
    own = device.type == "cpu" and matmul.works(dtype)
    if own and packed:
        product, weights = matmul.packed_product, [matmul.packed_copy(w) for w in weights]
    elif own and dtype == torch.float32 and matmul.current_float32_route() == "onednn":
        product = matmul.packed_product
    else:
        product, weights = torch.mm, [weight.t() for weight in weights]

    def call() -> object:
        with torch.inference_mode():
            return [product(x, weight) for x, weight in zip(inputs, weights, strict=True)]

    return Limit(call, sum(2 * m * d * k for m, d, k in shapes))


def inference(model: "torch.nn.Module", images: "torch.Tensor") -> Call:
    """A forward pass for the model's logits, in the dtype of its weights, packed on a CPU."""
    import torch

    from vit.models.matmul import pack

    pack(model.eval())
    images = images.to(next(model.parameters()).dtype)

    def call() -> object:
        with torch.inference_mode():
            return model(images)

    return call


def training(model: "torch.nn.Module", images: "torch.Tensor", precision: str) -> Call:
    """A step with fused AdamW: forward, backward, update. `precision` is fp32 or bf16 (mixed)."""
    import torch

    from vit.compute.memory import training_loss

    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)

    def call() -> object:
        training_loss(model, images, precision).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return call
