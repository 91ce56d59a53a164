"""The data module as training sees it. Shapes: b batch, c channels, h w pixels."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn

from vit import signals
from vit.console import Meter
from vit.preprocessing import Preprocess

Split = Literal["train", "val", "test"]
Batch = Sequence[Tensor]
"""Images `b c h w`, labels, and places in the split `b`."""


class CountedData(Protocol):
    """A data module that counts its samples; vit.ImageData is one."""

    seed: int
    consumed_samples: int
    """Training samples of all processes that the run has used."""
    batch_size: int
    """Images in a batch of one process."""
    evaluation_split: Split
    """The split that the test loop gets."""
    num_classes: int
    multilabel: bool
    splits: Any
    """`val` is None without validation images."""
    sampling: Any
    """`balanced`, whether classes are drawn equally often."""
    preprocess: Preprocess

    def samples_per_epoch(self, world_size: int) -> int:
        """Training samples in an epoch of `world_size` processes together."""
        ...

    def expected_images(self, split: Split) -> int:
        """Images of the split, which an evaluation counts on all processes together."""
        ...

    def skipped_images(self, split: Split) -> int:
        """Images of the split that this process left out of evaluations as unreadable."""
        ...

    def evaluation_loader(
        self, split: Split, *, limit: int | None = None
    ) -> Iterable[tuple[Tensor, Tensor, Tensor]]:
        """Images, labels and places of this process's share, every image once."""
        ...


def counting_data(trainer: Trainer) -> CountedData | None:
    """The Trainer's data module if it counts its samples as ImageData does, else None."""
    data = getattr(trainer, "datamodule", None)
    return None if getattr(data, "consumed_samples", None) is None else data


def logits_of(
    trainer: Trainer,
    network: nn.Module,
    split: Split,
    limit: int | None = None,
    *,
    until_signal: bool = False,
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Computes float32 logits `b k`, with labels and with places in the split `b` on the CPU.

    One entry per batch of this process, of at most `limit` images together; with `until_signal` of
    those before a signal.
    """
    data = counting_data(trainer)
    assert data is not None
    device, training, outputs = trainer.strategy.root_device, network.training, []
    dtype = next(network.parameters()).dtype
    total = min(limit or 2**63, data.expected_images(split)) / trainer.world_size
    shown = trainer.progress_bar_callback is not None
    meter = Meter(f"features of {split}", total, "img", shown=shown)
    network.eval()
    with meter, torch.inference_mode():
        for images, labels, places in data.evaluation_loader(split, limit=limit):
            if until_signal and signals.received():  # the run ends before a part is used
                break
            meter.advance(len(images))
            pixels = data.preprocess.normalize(images.to(device)).to(dtype)
            # Also of no image, as all processes gather the shards of a network.
            with trainer.precision_plugin.forward_context():
                logits = network(pixels)
            if len(images):  # else a process without a share, or only unreadable images
                outputs.append((logits.float(), labels.to(device), places))
    network.train(training)
    return outputs
