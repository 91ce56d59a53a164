"""Names, lists of names and values in messages."""

import pytest

from vit.checkpoints.layout import listed
from vit.errors import UserError, columns, shorten, some_of

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
    assert shorten(10**5000) == "(a value too long to show)"


def test_wide_characters_take_two_columns() -> None:
    assert columns("猫cat") == 5
    assert shorten("猫猫猫猫猫猫", 7) == "猫…猫"


def test_an_overlong_value_is_cut_and_a_long_path_is_not() -> None:
    path = "/" + "/".join(["folder"] * 50)
    message = str(UserError(f"depth='{'9' * 5000}' of {path} must be smaller"))
    assert len(message) < 700 and path in message and message.endswith("must be smaller")
    assert "9…9" in message and message.startswith("depth='999")
