"""Seeds of single steps and single samples: hashes, the same on every machine.

A draw that depends only on such a seed is the same in a resumed run, in any order of the images, on
any number of processes and workers.
"""

import struct
from hashlib import blake2b


def step_seed(seed: int, consumed_samples: int, rank: int) -> int:
    """A 63-bit hash of (run seed, position, process)."""
    return _bits(seed, consumed_samples, rank) >> 1


def sample_seed(seed: int, epoch: int, index: int, repeat: int) -> int:
    """A 64-bit hash of (run seed, epoch, index of the image, number of its copy)."""
    return _bits(seed, epoch, index, repeat)


def _bits(*numbers: int) -> int:
    packed = struct.pack(f"<{len(numbers)}q", *numbers)
    return int.from_bytes(blake2b(packed, digest_size=8).digest(), "little")
