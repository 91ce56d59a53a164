"""A self-contained HTML page from blocks: tables, figures, code, folded sections.

Every block function takes plain text and returns HTML; text is escaped here and nowhere else.
The page loads nothing external, has no script unless one is given, and follows the light or dark
setting of the browser.
"""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from importlib.resources import files
from io import BytesIO

from PIL import Image

from vit.reports.drawing import DARK, LIGHT, PIXEL_ART, PNG_DPI

# The page has the colours of the figures, so that these have no visible frame.
COLOURS = f"""
:root {{ --paper:{LIGHT.paper}; --ink:{LIGHT.ink}; --muted:{LIGHT.muted}; --line:{LIGHT.grid};
  --accent:{LIGHT.first}; --wrong:#b84f00; --soft:#f5f7f8; color-scheme:light dark; }}
@media (prefers-color-scheme:dark) {{ :root {{ --paper:{DARK.paper}; --ink:{DARK.ink};
  --muted:{DARK.muted}; --line:{DARK.grid}; --accent:{DARK.first}; --wrong:{DARK.second};
  --soft:#1c2227; }} }}
"""

# Only embedded images and styles: also a safeguard against a name that is not escaped.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def page(title: str, blocks: Sequence[str], *, style: str = "", script: str = "") -> str:
    """The whole document; `blocks` are HTML. `style` and `script` are the page's own.

    The policy admits this script by its digest, and no other.
    """
    style = COLOURS + files("vit.reports").joinpath("page.css").read_text("utf-8") + style
    policy, end = POLICY, ""
    if script:
        digest = b64encode(sha256(script.encode()).digest()).decode()
        policy, end = f"{POLICY}; script-src 'sha256-{digest}'", f"<script>{script}</script>\n"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(block for block in blocks if block)
        + f"\n</main>\n{end}</body>\n</html>\n"
    )


def section(title: str, *blocks: str) -> str:
    """A section with a heading; empty if every block is empty."""
    held = "\n".join(block for block in blocks if block)
    return f"<section>\n<h2>{escape(title)}</h2>\n{held}\n</section>" if held else ""


def title(words: str, below: str) -> str:
    """The title of the page with a line below it."""
    return f'<h1>{escape(words)}</h1>\n<p class="muted">{escape(below)}</p>'


def text(words: str, *, quiet: bool = False) -> str:
    """A paragraph."""
    kind = ' class="muted small"' if quiet else ""
    return f"<p{kind}>{escape(words)}</p>"


def headline(name: str, value: str, note: str) -> str:
    """The main result in large type."""
    return (
        f'<div class="headline"><span>{escape(name)}</span><b>{escape(value)}</b>'
        f'<p class="muted">{escape(note)}</p></div>'
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> str:
    """A table; the first `words` columns are left-aligned text, the others right-aligned numbers.

    It scrolls on narrow screens. Empty without rows.
    """
    if not rows:
        return ""
    # Long names wrap, but not at every word.
    longest = [max(len(row[i]) for row in rows) for i in range(words)]
    kinds = [' class="long"' if length > 14 else "" for length in longest]
    kinds += [' class="number"'] * (len(head) - words)
    top = "".join(f"<th{kind}>{escape(h)}</th>" for kind, h in zip(kinds, head, strict=True))
    body = "\n".join(
        f"<tr>{''.join(f'<td{k}>{escape(c)}</td>' for k, c in zip(kinds, row, strict=True))}</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll"><table>\n<thead><tr>{top}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def facts(rows: Sequence[tuple[str, str]]) -> str:
    """Names and values; long values, such as paths and commands, wrap."""
    if not rows:
        return ""
    body = "\n".join(f"<tr><td>{escape(k)}</td><td>{escape(v)}</td></tr>" for k, v in rows)
    return f'<div class="scroll"><table class="wrap"><tbody>\n{body}\n</tbody></table></div>'


def beside(*blocks: str, cell: str = "18rem") -> str:
    """Blocks in a row if the screen has width `cell` for each, otherwise stacked."""
    held = "".join(f"<div>{block}</div>" for block in blocks if block)
    return f'<div class="row" style="--cell:{cell}">{held}</div>' if held else ""


def heading(words: str) -> str:
    """A heading inside a section."""
    return f"<h3>{escape(words)}</h3>"


def code(words: str) -> str:
    """Preformatted text to copy."""
    return f"<pre>{escape(words)}</pre>"


def folded(title: str, block: str) -> str:
    """A folded section."""
    return f"<details><summary>{escape(title)}</summary>\n{block}\n</details>" if block else ""


def picture(light: bytes, dark: bytes, description: str) -> str:
    """A figure as two PNG files for the light and dark setting of the browser."""
    with Image.open(BytesIO(light)) as image:
        width, height = (round(side * 96 / PNG_DPI) for side in image.size)
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{_png(dark)}">'
        f'<img src="{_png(light)}" width="{width}" height="{height}"'
        f' alt="{escape(description)}"></picture>'
    )


@dataclass(frozen=True, kw_only=True)
class Card:
    """A small RGB image, perhaps a second one below it, and three lines of text."""

    image: Image.Image | None
    said: str
    share: str
    true: str
    name: str
    second: Image.Image | None = None


def cards(items: Sequence[Card]) -> str:
    """Small images in a grid that fills the width."""
    return f'<div class="cards">\n{"".join(map(_card, items))}</div>' if items else ""


def _card(card: Card) -> str:
    # File names are long words; allow line breaks after these characters.
    name = escape(card.name).replace("/", "/<wbr>").replace("_", "_<wbr>")
    lines = (
        f'<div class="said"><b>{escape(card.said)}</b><span>{escape(card.share)}</span></div>'
        f"<div>{escape(card.true)}</div>"
        f'<div class="muted small">{name}</div>'
    )
    second = "" if card.second is None else _thumbnail(card.second)
    return f"<figure>{_thumbnail(card.image)}{second}<figcaption>{lines}</figcaption></figure>\n"


def _thumbnail(image: Image.Image | None) -> str:
    if image is None:
        return '<div class="blank">cannot be opened</div>'
    out = BytesIO()
    if max(image.size) < PIXEL_ART:
        image.save(out, "PNG")
        return f'<img class="pixels" src="{_png(out.getvalue())}" alt="">'
    image.save(out, "JPEG", quality=85)
    return f'<img src="data:image/jpeg;base64,{b64encode(out.getvalue()).decode()}" alt="">'


def _png(content: bytes) -> str:
    return f"data:image/png;base64,{b64encode(content).decode()}"
