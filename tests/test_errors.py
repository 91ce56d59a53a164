"""Names, lists of names and values in messages."""

import pytest

from vit.errors import shorten, some_of
from vit.weights.building import listed

NAMES = [f"n{i:04}" for i in range(1200)]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, ""),
        (1, "n0000"),
        (2, "n0000, n0001"),
        (3, "n0000, n0001 and 1 more"),
        (1200, "n0000, n0001 and 1,198 more"),
    ],
)
def test_a_long_list_of_names_counts_the_omitted_ones(count: int, expected: str) -> None:
    assert some_of(iter(NAMES[:count]), 2) == expected


def test_keys_of_weights_are_sorted() -> None:
    assert listed({"b", "a", "c"}, "-", most=2) == "-a -b and 1 more"


def test_long_names_lose_their_middle() -> None:
    assert shorten("short", 10) == "short"
    long = "a very long class name 017"
    assert shorten(long, 12) == "a very…e 017"
    assert len(shorten(long, 12)) == 12
    assert shorten(long, 13).endswith("017") and shorten(long, 13) != shorten(long[:-1] + "8", 13)
    assert len(shorten("9" * 10**6)) == 60
