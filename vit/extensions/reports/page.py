"""HTML pages that load nothing from outside, and follow the browser's light or dark setting.

The templates escape all text.
"""

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from PIL import Image

from vit.extensions.reports.drawing import DARK, LIGHT, PIXEL_ART, PNG_DPI, Theme, png
from vit.extensions.reports.wording import percent

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parents[1]),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)


def page(template: str, *, script: str = "", **values: object) -> str:
    """The document of a template below vit/. Its policy admits `script`, by its digest, alone."""
    digest = b64encode(sha256(script.encode()).digest()).decode() if script else ""
    return TEMPLATES.get_template(template).render(
        themes=(LIGHT, DARK), script=Markup(script), digest=digest, **values
    )


def address(content: bytes, kind: str = "png") -> str:
    """An image file as a data address."""
    return f"data:image/{kind};base64,{b64encode(content).decode()}"


@dataclass(frozen=True)
class Plot:
    """A figure on a page."""

    light: bytes
    dark: bytes
    """PNG files for the two settings of the browser."""
    size: tuple[int, int]
    """Width and height in CSS pixels."""
    description: str


def plot(draw: Callable[[Theme], Figure], description: str, *, crop: bool = False) -> Plot:
    """The figure in both themes, as large on the page as on paper."""
    light, dark = (png(draw(theme), crop=crop) for theme in (LIGHT, DARK))
    with Image.open(BytesIO(light)) as image:
        width, height = (round(side * 96 / PNG_DPI) for side in image.size)
    return Plot(light, dark, (width, height), description)


def thumbnail(image: Image.Image) -> Markup:
    """A small RGB image; one of few pixels keeps them as crisp squares."""
    out, crisp = BytesIO(), max(image.size) < PIXEL_ART
    image.save(out, "PNG" if crisp else "JPEG", quality=85)
    source = address(out.getvalue(), "png" if crisp else "jpeg")
    style = Markup(' class="pixels"') if crisp else ""
    return Markup('<img{} src="{}" alt="">').format(style, source)


TEMPLATES.policies["json.dumps_kwargs"] = {}  # by default, keys are sorted
TEMPLATES.filters |= {"percent": percent, "thumbnail": thumbnail, "address": address}
