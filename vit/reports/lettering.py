"""Text in figures: any class name or file name, without crashes, tofu boxes or warnings.

Names come from the user's folders. They may be long, hold `$` (which matplotlib would read as
mathematics) or be in a script for which this machine has no font.
"""

from functools import lru_cache
from typing import TypedDict
from unicodedata import category, east_asian_width

from matplotlib import font_manager
from matplotlib.font_manager import FontProperties
from matplotlib.ft2font import FT2Font

DEFAULT_FAMILY = "DejaVu Sans"  # ships with matplotlib: Latin, Greek, Cyrillic, symbols
WIDE_SCRIPTS = ("Noto Sans", "PingFang", "Hiragino", "YaHei", "Arial Unicode", "WenQuanYi")
"""Families to try first for names that the default lacks; then every installed font."""


class TextStyle(TypedDict):
    fontproperties: FontProperties
    parse_math: bool


def text_style(text: str, size: float, *, bold: bool = False) -> TextStyle:
    """Keyword arguments for a matplotlib text: a font that can draw `text`, at `size` points."""
    file = None if _default_draws(text) else _font_file(frozenset(text))
    if file:
        font = FontProperties(fname=file, size=size)
    else:
        font = FontProperties(family=DEFAULT_FAMILY, size=size, weight="bold" if bold else "normal")
    return {"fontproperties": font, "parse_math": False}


def legible(text: str, instead: str) -> str:
    """`text` on one line, or `instead` where no single installed font can draw it."""
    line = " ".join(text.split())
    return line if line and (_default_draws(line) or _font_file(frozenset(line))) else instead


def nearest_legible(text: str) -> str:
    """`text` on one line with a question mark for each character that no font can draw."""
    line = " ".join(text.split())
    marked = "".join(legible(c, "?") if c != " " else c for c in line)
    return legible(marked, line.encode("ascii", "replace").decode())


def shorten(text: str, width: int) -> str:
    """At most `width` columns, with an ellipsis in the middle: numbered names differ at the end.

    Chinese, Japanese and Korean characters take two columns.
    """
    if columns(text) <= width:
        return text
    head, tail = text, text
    while columns(head) > (width - 1) - (width - 1) // 2:
        head = head[:-1]
    while columns(tail) > (width - 1) // 2:
        tail = tail[1:]
    return f"{head.rstrip()}…{tail.lstrip()}"


def columns(text: str) -> int:
    """Width of the text in character cells."""
    return sum(2 if east_asian_width(c) in "WF" else 1 for c in text)


@lru_cache(maxsize=1)
def _default_face() -> FT2Font:
    return FT2Font(font_manager.findfont(FontProperties(family=DEFAULT_FAMILY)))


def _default_draws(text: str) -> bool:
    face = _default_face()
    return all(face.get_char_index(ord(c)) for c in text)


@lru_cache(maxsize=4096)
def _font_file(needed: frozenset[str]) -> str | None:
    """An installed outline font with all of these characters."""
    # Private characters mean another thing in every font. Bytes of a file name that are not valid
    # Unicode arrive as surrogates, which some fonts claim to have and matplotlib refuses.
    if any(category(c) in ("Co", "Cs") for c in needed):
        return None
    return next((file for file in _other_fonts() if _covers(file, needed)), None)


@lru_cache(maxsize=1)
def _other_fonts() -> tuple[str, ...]:
    """Font files, likely ones first: wide scripts, then upright regular faces, then by name."""
    entries = sorted(
        font_manager.fontManager.ttflist,
        key=lambda e: (
            not any(family in e.name for family in WIDE_SCRIPTS),
            e.style != "normal",
            abs(int(e.weight) - 400) if str(e.weight).isdigit() else 0,
            e.fname,
        ),
    )
    # Last Resort, which matplotlib ships and Apple installs, has a box for every character, and
    # says no more than a missing glyph does.
    return tuple(dict.fromkeys(e.fname for e in entries if "last resort" not in _spaced(e.name)))


def _spaced(name: str) -> str:
    return name.replace("LastResort", "Last Resort").lower()


def _covers(file: str, needed: frozenset[str]) -> bool:
    try:
        face = FT2Font(file)
    except (OSError, RuntimeError):  # the cached font list outlives uninstalled fonts
        return False
    # Bitmap fonts, such as colour emoji, cannot be drawn at other sizes.
    return face.scalable and all(face.get_char_index(ord(c)) for c in needed)
