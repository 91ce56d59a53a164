"""Text in figures: any class name or file name, without crashes, tofu boxes or warnings.

Names come from the user's folders. They may be long, contain `$` (which matplotlib would interpret
as mathematics) or use a script without an installed font.
"""

from functools import lru_cache
from typing import TypedDict
from unicodedata import category

from matplotlib import font_manager
from matplotlib.font_manager import FontProperties
from matplotlib.ft2font import FT2Font

DEFAULT_FAMILY = "DejaVu Sans"  # ships with matplotlib: Latin, Greek, Cyrillic, symbols
WIDE_SCRIPTS = ("Noto Sans", "PingFang", "Hiragino", "YaHei", "Arial Unicode", "WenQuanYi")
"""Families tried first for characters missing in the default; then every installed font."""


class TextStyle(TypedDict):
    fontproperties: FontProperties
    parse_math: bool


def text_style(text: str, size: float, *, bold: bool = False) -> TextStyle:
    """Keyword arguments for a matplotlib text: fonts that can draw `text`, at `size` points."""
    families = list(dict.fromkeys([DEFAULT_FAMILY, *filter(None, map(_family, text))]))
    # The bold face of another family may lack characters of its regular face.
    weight = "bold" if bold and len(families) == 1 else "normal"
    font = FontProperties(family=families, size=size, weight=weight)
    return {"fontproperties": font, "parse_math": False}


def legible(text: str, instead: str) -> str:
    """`text` on one line, or `instead` if no installed font has one of its characters."""
    line = " ".join(text.split())
    return line if line and all(map(_family, line)) else instead


def nearest_legible(text: str) -> str:
    """`text` on one line with a question mark for each character that no font can draw."""
    return "".join(c if _family(c) else "?" for c in " ".join(text.split()))


@lru_cache(maxsize=4096)
def _family(character: str) -> str | None:
    """The first family that draws the character; None if no installed outline font does."""
    # Private-use characters differ between fonts. Bytes of a file name that are not valid
    # Unicode arrive as surrogates, which some fonts claim to have and matplotlib refuses.
    if category(character) in ("Co", "Cs"):
        return None
    return next((family for family in _families() if _draws(family, character)), None)


@lru_cache(maxsize=1)
def _families() -> tuple[str, ...]:
    """Installed families: the default, then wide scripts, then the others by name."""
    # Last Resort, which matplotlib ships and Apple installs, draws a box for every character.
    names = {entry.name for entry in font_manager.fontManager.ttflist}
    names = {name for name in names if "lastresort" not in name.replace(" ", "").lower()}
    others = sorted(names, key=lambda name: (not any(w in name for w in WIDE_SCRIPTS), name))
    return tuple(dict.fromkeys([DEFAULT_FAMILY, *others]))


def _draws(family: str, character: str) -> bool:
    """Whether the regular face that matplotlib would use for a family has the character."""
    face = _face(family)
    return face is not None and face.get_char_index(ord(character)) != 0


@lru_cache(maxsize=64)
def _face(family: str) -> FT2Font | None:
    try:
        file = font_manager.findfont(FontProperties(family=family), fallback_to_default=False)
        face = FT2Font(file)
    except (OSError, RuntimeError, ValueError):  # the cached font list outlives uninstalled fonts
        return None
    # Bitmap fonts, such as colour emoji, cannot be drawn at other sizes.
    return face if face.scalable else None
