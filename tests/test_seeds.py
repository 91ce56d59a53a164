"""Seeds of neighbours differ, and their values are hashes of what they belong to."""

from hashlib import blake2b

import pytest

from vit.seeds import step_seed


def test_seeds_of_neighbouring_steps_processes_and_runs_differ() -> None:
    seeds = {
        step_seed(seed, consumed, rank)
        for seed in range(3)
        for consumed in range(0, 64_000, 64)
        for rank in range(8)
    }
    assert len(seeds) == 3 * 1000 * 8


@pytest.mark.parametrize("numbers", [(0, 0, 0), (7, 64_000, 3), (1, 5, -1)])
def test_a_step_seed_is_a_hash_of_three_numbers_without_its_last_bit(
    numbers: tuple[int, int, int],
) -> None:
    assert step_seed(*numbers) == digest(numbers) // 2
    assert step_seed(*numbers) < 2**63  # torch.manual_seed takes no more


def digest(numbers: tuple[int, ...]) -> int:
    text = b"".join(number.to_bytes(8, "little", signed=True) for number in numbers)
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
