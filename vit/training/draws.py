"""Random numbers of a training step that do not depend on the number of processes.

They are drawn for all images of the step, on every process alike, and each process takes the rows
of its own images. Shapes: b batch of one process.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from vit.models.encoder import DropPath
from vit.seeds import step_seed
from vit.shapes import Float

Purpose = Literal["depth", "mixing", "mixup", "cutmix"]
_PURPOSES: tuple[Purpose, ...] = get_args(Purpose)


@dataclass(frozen=True, kw_only=True)
class StepDraws:
    """The draws of one batch of one process."""

    seed: int
    """Seed of the optimizer step, the same on all processes."""
    global_batch: int
    """Number of images of the step, in all processes and accumulated batches."""
    places: list[int]
    """Places of this batch's images among them (`vit.seeds.places`)."""

    def uniforms(self, purpose: Purpose, count: int) -> Float[Tensor, "b count"]:
        """`count` numbers in [0, 1) for each image."""
        return torch.rand(self.global_batch, count, generator=self._generator(purpose))[self.places]

    def beta(self, purpose: Purpose, alpha: float) -> Float[Tensor, " b"]:
        """A number from Beta(alpha, alpha) for each image, float64."""
        parameters = torch.full((self.global_batch, 2), alpha, dtype=torch.float64)
        # What torch.distributions.Beta calls, which takes no generator.
        draw = torch._sample_dirichlet  # pyright: ignore[reportPrivateImportUsage]
        drawn = draw(parameters, generator=self._generator(purpose))
        return drawn[self.places, 0]

    def _generator(self, purpose: Purpose) -> torch.Generator:
        seed = step_seed(self.seed, -1, _PURPOSES.index(purpose))
        return torch.Generator().manual_seed(seed)


def batch_draws(images: int) -> StepDraws:
    """Draws of a batch that is a whole step, with a seed from torch's generator on the CPU."""
    seed = int(torch.randint(2**63 - 1, ()))
    return StepDraws(seed=seed, global_batch=images, places=list(range(images)))


def set_depth(network: nn.Module, draws: StepDraws | None) -> None:
    """Gives the layers with stochastic depth their draws; None lets them draw for themselves."""
    paths = [layer for layer in network.modules() if isinstance(layer, DropPath)]
    if draws is None or not paths:
        for path in paths:
            path.draws = None
        return
    device = next(network.parameters()).device
    numbers = draws.uniforms("depth", len(paths)).T.contiguous()
    if device.type == "cuda":
        numbers = numbers.pin_memory()  # so that the copy waits for nothing
    for path, row in zip(paths, numbers.to(device, non_blocking=True), strict=True):
        path.draws = row
