"""Seeds of training steps, made by hashing, and the images of a step that a process takes."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch's CPU generator, and restores its state at the end.

    Unlike `torch.manual_seed`, it leaves accelerators, from which dropout draws, as they are.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def indices_in_step(
    batch_size: int, rank: int, world_size: int, accumulated: int, batch: int
) -> list[int]:
    """Indices, among all images of a step, of those in a batch of a process.

    Images i and i + half of the step, which are mixed, are at j and j + half of one batch.
    Neighbours in the order, which may be copies of one image, go to different processes. Batches of
    an odd size hold every `world_size`-th image instead. `batch` counts the `accumulated` batches
    of a process in a step, from 0.
    """
    paired = batch_size % 2 == 0
    count = batch_size // 2 if paired else batch_size
    first = batch * world_size * count + rank
    indices = list(range(first, first + world_size * count, world_size))
    half = batch_size * world_size * accumulated // 2
    return [*indices, *(index + half for index in indices)] if paired else indices


def step_seed(seed: int, consumed_samples: int, rank: int) -> int:
    """A 63-bit hash of the run's seed, the images seen so far, and the process."""
    return hashed(seed, consumed_samples, rank) >> 1


def hashed(*numbers: int) -> int:
    """A 64-bit hash of integers of up to 63 bits and a sign."""
    packed = struct.pack(f"<{len(numbers)}q", *numbers)
    return int.from_bytes(blake2b(packed, digest_size=8).digest(), "little")
