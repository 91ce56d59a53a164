"""Seeds of single steps: hashes, the same on every machine and in a resumed run.

Also, which images of a step each process takes.
"""

import struct
from hashlib import blake2b


def places(batch_size: int, rank: int, world_size: int, accumulated: int, batch: int) -> list[int]:
    """Places of the images of a process's batch among all images of the step, from 0.

    Image i and image i + half of the step come together to a process, at j and j + half of its
    batch: they are partners in mixing. Neighbours in the order, which may be copies of one image,
    go to different processes. Batches of an odd size hold every `world_size`-th image instead.

    Args:
        batch_size: Images in a batch of one process.
        rank: Of the process.
        world_size: Number of processes.
        accumulated: Batches of each process in a step.
        batch: Which of these, from 0.
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
