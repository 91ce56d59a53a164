"""Seeds of single steps and single samples: hashes, the same on every machine.

A draw that depends on nothing but such a seed is the same in a resumed run, in any order of the
images, on any number of processes and workers.
"""

import struct
from hashlib import blake2b


def step_seed(seed: int, consumed_samples: int, rank: int) -> int:
    """63 well mixed bits from (run seed, position, process)."""
    return _bits(seed, consumed_samples, rank) >> 1


def sample_seed(seed: int, epoch: int, index: int, repeat: int) -> int:
    """64 well mixed bits from (run seed, epoch, index of the image, which of its copies)."""
    return _bits(seed, epoch, index, repeat)


def _bits(*numbers: int) -> int:
    packed = struct.pack(f"<{len(numbers)}q", *numbers)
    return int.from_bytes(blake2b(packed, digest_size=8).digest(), "little")
