import random
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vit.data.sampler import TrainBatchSampler
from vit.extensions.sources.blocks import block_order


@dataclass
class At:
    consumed_samples: int = 0


def sampler(
    num_samples: int, batch_size: int, at: int = 0, rank: int = 0, world: int = 1, **options: Any
) -> TrainBatchSampler:
    return TrainBatchSampler(
        num_samples,
        batch_size,
        **{"seed": 0, "rank": rank, "world_size": world, "progress": At(at), **options},
    )


def all_ranks(num_samples: int, batch_size: int, world: int, **options: Any) -> list[list[list]]:
    """Batches of every rank."""
    ranks = range(world)
    return [list(sampler(num_samples, batch_size, rank=r, world=world, **options)) for r in ranks]


CASES = [
    (random.Random(case).randint(1, 70), random.Random(-case - 1).randint(1, 9), case % 5 + 1)
    for case in range(30)
]


@pytest.mark.parametrize(("num_samples", "batch_size", "world"), CASES)
def test_ranks_share_a_prefix_of_the_permutation_equally(num_samples, batch_size, world):
    ranks = all_ranks(num_samples, batch_size, world, at=0)
    lengths = {len(batches) for batches in ranks}
    assert lengths == {max(1, num_samples // (batch_size * world))}
    assert {len(batch) for batches in ranks for batch in batches} == {batch_size}
    order = sampler(num_samples, batch_size, world=world).order(0)[0].tolist()
    used = Counter(index for batches in ranks for batch in batches for _, index, _ in batch)
    assert used == Counter(order)
    if num_samples >= batch_size * world:
        assert set(used.values()) == {1}
    else:
        assert max(used.values()) - min(used[index] for index in range(num_samples)) <= 1
    keys = [key for batches in ranks for batch in batches for key in batch]
    assert len(set(keys)) == len(keys), "a repeated image is augmented differently"


def run(sampled: TrainBatchSampler, batches: int) -> list[list]:
    """That many batches, over epochs, with the progress counted as training does."""
    progress, seen = sampled.progress, []
    while len(seen) < batches:
        for batch in sampled:
            seen.append(batch)
            progress.consumed_samples += sampled.batch_size * sampled.world_size
            if len(seen) == batches:
                break
    return seen


def test_order_depends_on_seed_and_epoch_only():
    first = sampler(100, 10).order(0)[0].tolist()
    torch.manual_seed(5)
    assert sampler(100, 10, at=300).order(0)[0].tolist() == first
    assert sampler(100, 10).order(1)[0].tolist() != first
    assert sampler(100, 10, seed=1).order(0)[0].tolist() != first


def test_the_global_generator_is_not_touched():
    before = torch.get_rng_state()
    list(sampler(100, 10, weights=torch.ones(100)))
    assert torch.equal(before, torch.get_rng_state())


def test_a_pass_from_inside_an_epoch_goes_over_into_the_next():
    whole = list(sampler(100, 10)) + list(sampler(100, 10, at=100))
    assert [batch[0][0] for batch in whole] == [0] * 10 + [1] * 10
    assert list(sampler(100, 10, at=70)) == whole[7:17]


def test_length_is_that_of_a_whole_epoch():
    resumed = sampler(100, 8, at=40, rank=1, world=3)
    assert len(resumed) == len(list(resumed)) == 4


def test_repeated_augmentation_keeps_the_length_and_spreads_copies_over_ranks():
    ranks = all_ranks(90, 5, 3, repeats=3)
    keys = [key for batches in ranks for batch in batches for key in batch]
    assert len(keys) == 90
    counts = Counter(index for _, index, _ in keys)
    assert len(counts) == 30 and set(counts.values()) == {3}
    for index in counts:
        assert {copy for _, i, copy in keys if i == index} == {0, 1, 2}
        holders = [
            r
            for r, batches in enumerate(ranks)
            if any(i == index for batch in batches for _, i, _ in batch)
        ]
        assert holders == [0, 1, 2]


def test_weights_set_the_frequencies():
    weights = torch.tensor([1.0] * 90 + [9.0] * 10, dtype=torch.float64)
    drawn = [
        index for batch in run(sampler(100, 10, weights=weights), 500) for _, index, _ in batch
    ]
    rare = sum(index >= 90 for index in drawn) / len(drawn)
    # Standard deviation of 5,000 draws at 1/2: 0.007.
    assert abs(rare - 0.5) < 0.03


def test_draws_of_the_same_image_in_an_epoch_are_different_copies():
    keys = [key for batch in sampler(20, 10, weights=torch.ones(20)) for key in batch]
    assert len(set(keys)) == 20 and len({index for _, index, _ in keys}) < 20


def test_blocks_are_permuted_and_a_few_mixed_at_a_time():
    blocks = np.random.default_rng(0).permutation(np.repeat(np.arange(30), 20))
    options = {"permuted": partial(block_order, blocks, 4)}
    first, second = (sampler(600, 10, **options).order(epoch)[0].tolist() for epoch in (0, 1))
    assert sampler(600, 10, at=300, **options).order(0)[0].tolist() == first
    assert sampler(600, 10, seed=1, **options).order(0)[0].tolist() != first
    together = []
    for order in (first, second):
        assert sorted(order) == list(range(600))
        places = [np.flatnonzero(blocks[order] == block) for block in range(30)]
        opened = [
            {block for block, at in enumerate(places) if at[0] <= place <= at[-1]}
            for place in range(600)
        ]
        # 30 blocks are 8 runs of 3 or 4, and the images of a run are mixed.
        assert max(map(len, opened)) == 4 and np.mean(list(map(len, opened))) > 3
        together.append(opened[300])
    assert together[0] != together[1]


# Any number of ranks, and another one

Division = tuple[int, int, int]
"""Images in a batch of one rank, ranks, batches of a rank in a step."""


@st.composite
def divisions(draw: st.DrawFn) -> tuple[int, list[Division]]:
    """A global batch and some ways to divide it."""
    whole = draw(st.integers(1, 24))
    ways = [
        (batch, ranks, whole // batch // ranks)
        for batch in range(1, whole + 1)
        for ranks in range(1, 7)
        if whole % (batch * ranks) == 0
    ]
    return whole, draw(st.lists(st.sampled_from(ways), min_size=1, max_size=4))


def steps_of(
    num_samples: int, division: Division, at: int, count: int, **options: Any
) -> list[list[tuple[int, int, int]]]:
    """Keys of so many steps from a count of samples on, those of each step sorted."""
    batch, ranks, accumulated = division
    options |= {"world": ranks, "accumulated": accumulated}
    parts = [
        run(sampler(num_samples, batch, at, rank=rank, **options), count * accumulated)
        for rank in range(ranks)
    ]
    assert {len(keys) for part in parts for keys in part} == {batch}
    return [
        sorted(key for part in parts for keys in part[i : i + accumulated] for key in keys)
        for i in range(0, count * accumulated, accumulated)
    ]


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 70), divisions(), st.integers(0, 9),
    st.lists(st.integers(1, 5), min_size=4, max_size=4),
    st.sampled_from(["none", "repeats", "weights", "blocks"]),
)  # fmt: skip
def test_changes_of_ranks_and_batches_change_no_step(
    num_samples: int, divided: tuple[int, list[Division]], start: int, counts: list[int],
    option: str,
) -> None:  # fmt: skip
    whole, ways = divided
    options: dict[str, dict[str, Any]] = {
        "none": {},
        "repeats": {"repeats": 3},
        "weights": {"weights": torch.ones(num_samples)},
        "blocks": {"permuted": partial(block_order, np.arange(num_samples) // 7, 3)},
    }
    total = sum(counts[: len(ways)])
    expected = steps_of(num_samples, (whole, 1, 1), start * whole, total, **options[option])
    actual, at = [], start
    for way, count in zip(ways, counts, strict=False):
        actual += steps_of(num_samples, way, at * whole, count, **options[option])
        at += count
    assert actual == expected
