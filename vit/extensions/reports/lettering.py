"""Names in figures: any class or file name, in any script, also with a `$`."""

from functools import cache
from typing import Any
from unicodedata import east_asian_width

from matplotlib.font_manager import FontProperties, findfont, get_font, get_font_names

FAMILIES = (
    *("DejaVu Sans", "Noto Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC"),
    *("PingFang SC", "Hiragino Sans", "Arial Unicode MS", "Microsoft YaHei", "Malgun Gothic"),
    *("Nirmala UI", "WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback"),
)
"""Fonts for names, in order of preference. The first comes with matplotlib and has Latin, Greek,
Cyrillic and Arabic letters; the others are those of common systems."""


@cache
def _fonts() -> tuple[list[str], frozenset[int]]:
    """The installed families, and the characters that at least one of them has."""
    installed = set(get_font_names())
    families = [family for family in FAMILIES if family in installed]
    fonts = (get_font(findfont(FontProperties(family=family))) for family in families)
    return families, frozenset().union(*(font.get_charmap() for font in fonts))


def drawable(text: str) -> bool:
    """True if a font has every character of `text` on one line."""
    return all(ord(c) in _fonts()[1] for c in " ".join(text.split()))


def legible(text: str) -> str:
    """`text` on one line, with a question mark for each character that no font has."""
    _, characters = _fonts()
    return "".join(c if ord(c) in characters else "?" for c in " ".join(text.split()))


def columns(text: str) -> int:
    """Width of the text in character cells; Chinese, Japanese and Korean characters take two."""
    return sum(2 if east_asian_width(c) in "WF" else 1 for c in text)


def shorten(text: str, most: int) -> str:
    """The text in at most `most` character cells; a longer one loses its middle."""
    if columns(text) <= most:
        return text
    head, tail = text[:most], text[-most:]
    while columns(head) > (most - 1) - (most - 1) // 2:
        head = head[:-1]
    while columns(tail) > (most - 1) // 2:
        tail = tail[1:]
    return f"{head.rstrip()}…{tail.lstrip()}"


def text_style(size: float, *, bold: bool = False) -> dict[str, Any]:
    """Keyword arguments for a name in a figure. A `$` in it begins no formula."""
    weight = "bold" if bold else "normal"
    font = FontProperties(family=_fonts()[0], size=size, weight=weight)
    return {"fontproperties": font, "parse_math": False}
