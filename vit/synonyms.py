"""Words of other packages, on the command line and in Python, by the table `synonyms`."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from vit.errors import UserError
from vit.tables import resolve, rows

P = ParamSpec("P")
R = TypeVar("R")
Synonyms = Callable[[list[str]], list[str] | None]
"""A row of the table `synonyms`: a command, or a name of Python with a name that it lacks, in our
words, or None if there are no words of other packages. UserError with what to type."""


def in_our_words(typed: list[str]) -> list[str] | None:
    """The words by the first row of `synonyms` that knows them, or None."""
    translations = (resolve(row)(typed) for row in rows("synonyms").values())
    return next((ours for ours in translations if ours is not None), None)


class Missing(AttributeError):
    """The first argument has no attribute of the second's name. The text, made when it is read,
    answers for another package's name."""

    def __str__(self) -> str:
        owner, name, answer = *self.args, ""
        try:
            in_our_words([owner, name])
        except UserError as error:
            answer = f": {error}"
        return f"{owner} has no attribute {name!r}{answer}"


def keywords(call: Callable[P, R]) -> Callable[P, R]:
    """Decorator: if a call fails, keywords of another package are understood, or answered."""

    @wraps(call)
    def understood(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except (TypeError, UserError) as error:
            mistake = error
        ours = in_our_words([f"{call.__qualname__}()", *kwargs])  # not its context
        if ours is None:
            raise mistake
        return call(*args, **dict(zip(ours[1:], kwargs.values(), strict=True)))  # pyright: ignore

    return understood
