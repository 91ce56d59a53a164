"""Models and ways of running them, measured alternately under the same conditions.

A training step is forward pass, loss, backward pass and fused AdamW on random images on the device:
the cost of the model without loading and augmenting images.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from vit.compute.candidate import Candidate
from vit.compute.steps import Step, inference, training
from vit.compute.timing import SHORTEST, Call, Times, finisher, in_turns
from vit.console import Meter
from vit.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

What = Literal["inference", "training"]

ROUNDS = 5
GPU_SHORTEST = 0.2
"""Minimum seconds per turn on a GPU, where steps are queued faster than they run."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """A model and a way of running it."""

    model: Candidate
    what: What
    batch_size: int
    precision: str
    """fp32 or bf16: mixed in training, dtype of the weights in inference."""
    compile: str | None = None
    """Mode of torch.compile."""
    in_training: bool = False
    """Whether inference uses the network in training: float32 weights."""
    place: int = 0
    """Index among the named models; a name given twice is measured twice."""

    def __str__(self) -> str:
        compiled = "" if self.compile is None else f", compiled ({self.compile})"
        size = "x".join(map(str, self.model.image_size))
        how = f"{self.what}, {self.precision}{compiled}, batch {self.batch_size}"
        return f"{self.model.name} at {size} px, {how}"


class Workbench:
    """Networks, training steps and images on one device, shared between ways if possible."""

    def __init__(self, device: "torch.device") -> None:
        self.device = device
        self._networks: dict[tuple[object, ...], nn.Module] = {}
        self._steps: dict[tuple[object, ...], Step] = {}
        self._images: dict[tuple[object, ...], Tensor] = {}

    def network(self, way: Way) -> "nn.Module":
        """The network of a way, with fresh weights."""
        import torch

        key = self._key(way)
        if key not in self._networks:
            network = way.model.build().to(self.device)
            if not self._trained(way) and way.precision == "bf16":
                network = network.to(torch.bfloat16)
            if way.compile is not None:
                network.compile(mode=way.compile, dynamic=False)
            self._networks[key] = network
        return self._networks[key]

    def images(self, way: Way) -> "Tensor":
        """A random batch `b c h w`."""
        import torch

        shape = (way.batch_size, way.model.channels, *way.model.image_size)
        if shape not in self._images:
            self._images[shape] = torch.randn(shape, device=self.device)
        return self._images[shape]

    def call(self, way: Way) -> Call:
        """One forward pass or training step."""
        network, images = self.network(way), self.images(way)
        if way.what == "inference":
            return inference(network, images, way.precision if way.in_training else None)
        key = (*self._key(way), way.precision)
        if key not in self._steps:
            self._steps[key] = training(network, way.precision)
        return partial(self._steps[key], images)

    def _trained(self, way: Way) -> bool:
        return way.what == "training" or way.in_training

    def _key(self, way: Way) -> tuple[object, ...]:
        dtype = "float32" if self._trained(way) else way.precision
        return way.model, way.place, way.compile, self._trained(way), dtype


def measure(
    calls: Mapping[Any, Call], device: "torch.device", *, rounds: int, meter: Meter
) -> dict[Any, Times]:
    """Times of alternating calls on this device, for `vit bench` and `vit compare`."""
    return in_turns(
        calls,
        rounds=rounds,
        shortest=GPU_SHORTEST if device.type == "cuda" else SHORTEST,
        finish=finisher(device),
        meter=meter,
    )


@contextmanager
def out_of_memory(device: str, batch_size: int) -> Iterator[None]:
    """Converts an out-of-memory error of a device into a UserError."""
    try:
        yield
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        raise UserError(
            f"{device} ran out of memory with --batch-size {batch_size}: choose a smaller one, or "
            "measure fewer models at a time"
        ) from error
