"""The page about the pictures of a data set: what was found, with thumbnails."""

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from vit.extensions.reports.page import page

SHOWN = 24
"""Findings of a kind on the page."""


@dataclass(frozen=True)
class Card:
    """One finding."""

    name: str
    """Of the file, or of the class."""
    lines: Sequence[str]
    images: Sequence[Image.Image | None] = ()
    """The picture and its copy; None cannot be opened."""


@dataclass(frozen=True)
class Section:
    """The findings of one kind."""

    title: str
    advice: str
    count: int
    cards: Sequence[Card]
    """The first SHOWN of them."""


def findings_page(name: str, about: str, sections: Sequence[Section]) -> str:
    """The document. `about`: the line below the title."""
    return page(
        "datacheck/findings.html", name=name, kind="data check", about=about, sections=sections
    )
