"""The order of training: a pure function of the arguments and the samples consumed so far.

So one integer in a checkpoint is all the state that the order has.
"""

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Protocol, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from vit.data.batches import batches_per_epoch, labelled_part
from vit.data.settings import Labels
from vit.data.sources import ImageSet
from vit.errors import UserError
from vit.preprocessing import check_choice
from vit.seeds import hashed, indices_in_step
from vit.tables import resolve, rows

Key = tuple[int, int, int]
"""(epoch, index, number of the image's copy in this epoch)."""


class Order(Protocol):
    """A row of the table of orders, made of an ImageSet."""

    def __call__(self, generator: torch.Generator) -> Tensor:
        """A permutation of the images, int64 `n`."""
        ...

    def digest(self) -> str:
        """Digest of what decides the permutations beside the names of the images."""
        ...


class Progress(Protocol):
    """Counts the samples in all epochs so far, on all ranks together."""

    consumed_samples: int


def check_words(labels: str, shuffle: str, *, balanced: bool) -> None:
    """Raises UserError for an unknown word, and for an order of balanced draws."""
    check_choice("labels", labels, get_args(Labels))
    check_choice("shuffle", shuffle, ("images", *rows("orders")))
    if shuffle != "images" and balanced:
        raise UserError(f"data.shuffle={shuffle} and data.sampling.balanced exclude each other")


def order_of(shuffle: str, images: ImageSet) -> Order | None:
    """The order by data.shuffle; None for that of single images."""
    return None if shuffle == "images" else resolve(rows("orders")[shuffle])(images)


def balancing(labels: np.ndarray) -> Tensor:
    """Weights `n` of samples, one over the images of their class, for balanced draws.

    `labels`: a class per sample `n`.
    """
    counts = torch.from_numpy(np.bincount(labels)).double()
    return 1 / counts[torch.from_numpy(labels)]


def evaluated(num_samples: int, limit: int | list[int] | None, seed: int) -> Sequence[int]:
    """The images that an evaluation shows: all, `limit` of them drawn by the seed and ascending, or
    those at the positions `limit`."""
    if isinstance(limit, list):
        return limit
    if limit is None or limit >= num_samples:
        return range(num_samples)
    order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed))
    return sorted(order[:limit].tolist())


@dataclass(eq=False)
class TrainBatchSampler(Sampler[list[Key]]):
    """Batches of (epoch, index, copy) for one rank; a pass goes on from `progress`.

    A global batch is `batch_size * world_size * accumulated` samples in a row of the epoch's order,
    the same on any number of ranks; each rank takes those that `vit.seeds.places` names. Samples
    after the last full global batch sit out the epoch; a set smaller than one global batch is
    repeated to fill it.

    A pass has `len(self)` batches. One that starts inside an epoch goes over into the next: after
    a resume Lightning takes only the batches that its own count lacks, and with
    `limit_train_batches` every image has its turn.

    Args:
        num_samples: Images in the set.
        batch_size: Images of one rank.
        seed: Of the orders.
        rank: Of this process.
        world_size: Processes that train together.
        accumulated: Batches of each rank in a global batch.
        repeats: Repeated augmentation (arXiv:1902.05509, arXiv:2012.12877): copies of each image
            drawn, in a row and so on different ranks. An epoch keeps its length, so it holds
            `1 / repeats` of the images.
        crops: Crops of each image, which later epochs and copies show again. None: all differ.
        weights: `n`, relative frequency of each image; an epoch is then drawn with replacement.
        permuted: Without weights, another order than that of single images.
        others: Indices of images that fill each global batch after those of the set, and their
            number per image of the set. An epoch is counted in images of the set; the others go
            through permutations of their own, from one epoch to the next.
        progress: Read at the start of each pass.
    """

    num_samples: int
    batch_size: int
    _: KW_ONLY
    seed: int
    rank: int
    world_size: int
    progress: Progress
    accumulated: int = 1
    repeats: int = 1
    crops: int | None = None
    weights: Tensor | None = None
    permuted: Order | None = None
    others: tuple[np.ndarray, float] | None = None

    def __post_init__(self) -> None:
        self.global_batch = self.batch_size * self.world_size * self.accumulated
        ratio = self.others[1] if self.others else 0.0
        self._part = labelled_part(self.global_batch, ratio)
        self._steps = batches_per_epoch(self.num_samples, self.global_batch, ratio)

    def __len__(self) -> int:
        """Batches in an epoch, and in a pass."""
        return self._steps * self.accumulated

    def __iter__(self) -> Iterator[list[Key]]:
        # After a change of the batch the count may fall inside one, which is then repeated.
        first = self.progress.consumed_samples // (self.batch_size * self.world_size)
        epoch, skipped = divmod(first, len(self))
        order, copies = self.order(epoch)
        for batch in range(skipped, skipped + len(self)):
            if batch == len(self):
                epoch += 1
                order, copies = self.order(epoch)
            step, part = divmod(batch % len(self), self.accumulated)
            process = self.batch_size, self.rank, self.world_size, self.accumulated
            mine = torch.tensor(indices_in_step(*process, part)) + step * self.global_batch
            pairs = zip(order[mine].tolist(), copies[mine].tolist(), strict=True)
            if self.crops is None:
                yield [(epoch, index, copy) for index, copy in pairs]
            else:
                yield [(epoch % self.crops, index, 0) for index, _ in pairs]

    def order(self, epoch: int) -> tuple[Tensor, Tensor]:
        """The epoch's indices on all ranks, and which copy of its image each one is."""
        generator = torch.Generator().manual_seed(hashed(self.seed, epoch, -1, 0))
        count = self._steps * self._part
        drawn = -(-count // self.repeats)
        if self.weights is not None:
            order = torch.multinomial(self.weights, drawn, replacement=True, generator=generator)
        else:
            if self.permuted is None:
                order = torch.randperm(self.num_samples, generator=generator)
            else:
                order = self.permuted(generator)
            order = order.repeat(-(-drawn // self.num_samples))[:drawn]
        order = order.repeat_interleave(self.repeats)[:count]
        if self.others is not None:
            parts = (order, self._order_of(torch.from_numpy(self.others[0]), epoch))
            order = torch.cat([part.view(self._steps, -1) for part in parts], 1).flatten()
        return order, times_before(order)

    def _order_of(self, others: Tensor, epoch: int) -> Tensor:
        """The epoch's part of permutations of the others, one after the other."""
        count, total = self._steps * (self.global_batch - self._part), len(others)
        drawn = -(-count // self.repeats)
        first, skipped = divmod(epoch * drawn, total)
        orders = []
        for number in range(first, first + 1 + (skipped + drawn) // total):
            generator = torch.Generator().manual_seed(hashed(self.seed, number, -1, 1))
            orders.append(others[torch.randperm(total, generator=generator)])
        order = torch.cat(orders)[skipped : skipped + drawn]
        return order.repeat_interleave(self.repeats)[:count]


def times_before(order: Tensor) -> Tensor:
    """Counts of equal entries before each one: [5, 7, 5] -> [0, 0, 1]."""
    values, positions = torch.sort(order, stable=True)
    steps = torch.arange(len(order))
    is_first = torch.ones(len(order), dtype=torch.bool)
    is_first[1:] = values[1:] != values[:-1]
    first = torch.where(is_first, steps, 0).cummax(0).values
    copies = torch.empty_like(order)
    copies[positions] = steps - first
    return copies
