"""Seeds of steps by hashes, and the images of a step that each process takes."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch's CPU generator, and puts its state back at the end.

    Not `torch.manual_seed`: that also seeds every accelerator, from which dropout draws.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def places(batch_size: int, rank: int, world_size: int, accumulated: int, batch: int) -> list[int]:
    """Places of the images of a process's batch among all images of the step, from 0.

    Images i and i + half of the step, partners in mixing, are at j and j + half of one batch.
    Neighbours in the order, which may be copies of one image, go to different processes. Batches of
    an odd size hold every `world_size`-th image instead. `batch` is one of the `accumulated`
    batches of each process in a step, from 0.
    """
    paired = batch_size % 2 == 0
    count = batch_size // 2 if paired else batch_size
    first = batch * world_size * count + rank
    mine = list(range(first, first + world_size * count, world_size))
    half = batch_size * world_size * accumulated // 2
    return [*mine, *(place + half for place in mine)] if paired else mine


def step_seed(seed: int, consumed_samples: int, rank: int) -> int:
    """A 63-bit hash of (run seed, position, process)."""
    return hashed(seed, consumed_samples, rank) >> 1


def hashed(*numbers: int) -> int:
    """A 64-bit hash of integers of up to 63 bits and a sign."""
    packed = struct.pack(f"<{len(numbers)}q", *numbers)
    return int.from_bytes(blake2b(packed, digest_size=8).digest(), "little")
