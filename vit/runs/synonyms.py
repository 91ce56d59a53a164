"""Commands in words of other packages."""

from collections.abc import Callable

from vit.tables import resolve, rows

Synonyms = Callable[[list[str]], list[str] | None]
"""A row of the table `synonyms`: a command in our words, or None if it has no words of other
packages. UserError with what to type."""


def in_our_words(typed: list[str]) -> list[str] | None:
    """A command with a mistake by the first row of `synonyms` that knows its words, or None."""
    translations = (resolve(row)(typed) for row in rows("synonyms").values())
    return next((ours for ours in translations if ours is not None), None)
