"""Lists of names in messages."""

from collections.abc import Callable

import pytest

from vit.checkpoints.layout import listed
from vit.data.sources import shorten
from vit.errors import UserError, some_of

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


@pytest.mark.parametrize(
    ("shortened", "expected"),
    [
        (lambda: shorten(["b", "a's", "c"], limit=2), "'b', \"a's\" and 1 more"),
        (lambda: listed({"b", "a", "c"}, "-", most=2), "-a -b and 1 more"),
    ],
    ids=["names of users, in their order", "keys of weights, sorted"],
)
def test_names_and_keys_are_shortened_alike(shortened: Callable[[], str], expected: str) -> None:
    assert shortened() == expected


def test_an_overlong_value_is_cut_and_a_long_path_is_not() -> None:
    path = "/" + "/".join(["folder"] * 50)
    message = str(UserError(f"depth='{'9' * 5000}' of {path} must be smaller"))
    assert len(message) < 700 and path in message and message.endswith("must be smaller")
    assert "more characters" in message and message.startswith("depth='999")
