"""What training asks of the data module. Shapes: b batch, c channels, h w pixels."""

from collections.abc import Iterable
from typing import Any, Literal, Protocol

from lightning.pytorch import Trainer
from torch import Tensor

Split = Literal["train", "val", "test"]


class _Sampling(Protocol):
    @property
    def balanced(self) -> bool: ...


class _Preprocess(Protocol):
    def normalize(self, images: Tensor) -> Tensor:
        """uint8 `b c h w` -> float32 `b c h w`."""
        ...


class CountedData(Protocol):
    """A data module that counts its samples; vit.ImageData is one."""

    seed: int
    consumed_samples: int
    """Training samples of all processes that the run has used."""
    batch_size: int
    """Images in a batch of one process."""

    @property
    def num_classes(self) -> int: ...

    @property
    def multilabel(self) -> bool: ...

    @property
    def sampling(self) -> _Sampling: ...

    @property
    def preprocess(self) -> _Preprocess: ...

    def samples_per_epoch(self, world_size: int) -> int:
        """Training samples in an epoch of `world_size` processes together."""
        ...

    def expected_images(self, split: Split) -> int:
        """Images of the split, which an evaluation counts on all processes together."""
        ...

    def skipped_images(self, split: Split) -> int:
        """Images of the split that this process left out of evaluations as unreadable."""
        ...

    def evaluation_loader(self, split: Split, *, limit: int | None = None) -> Iterable[Any]:
        """This process's share of a split without augmentation, every image once."""
        ...


def counting_data(trainer: Trainer) -> CountedData | None:
    """The Trainer's data module if it counts its samples as ImageData does, else None."""
    data = getattr(trainer, "datamodule", None)
    return None if getattr(data, "consumed_samples", None) is None else data
