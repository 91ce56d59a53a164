"""The trainings of transfers: those of the ViT paper by data set, and that of VTAB-1k."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Protocol:
    """The training of one transfer."""

    steps: int
    lr_grid: tuple[float, ...]
    val_fraction: float
    """Share of train on which learning rates are compared."""

    @property
    def warmup_steps(self) -> int:
        """500, or a fifth of short runs (google-research/big_vision, configs/transfer.py)."""
        return min(500, self.steps // 5)


GRID = (0.001, 0.003, 0.01, 0.03)
_CIFAR = Protocol(10_000, GRID, 0.02)
_SMALL = Protocol(500, GRID, 0.1)
PAPER = {
    "cifar10": _CIFAR,
    "cifar100": _CIFAR,
    "oxford_iiit_pet": _SMALL,
    "flowers102": _SMALL,
    "imagenet": Protocol(20_000, (0.003, 0.01, 0.03, 0.06), 0.01),
}
"""Name in vit/data/catalog.py -> arXiv:2010.11929, Table 4 and section B.1.1."""
VTAB = Protocol(2_500, (0.01,), 0.2)
"""arXiv:2010.11929, section B.1.1."""
