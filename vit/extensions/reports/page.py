"""HTML pages that load nothing from outside, and follow the browser's light or dark setting.

The templates escape all text.
"""

import re
from base64 import b64encode
from hashlib import sha256
from io import BytesIO
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from vit.extensions.reports.drawing import LIGHT, PIXEL_ART
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
        light=vars(LIGHT), script=Markup(script), digest=digest, **values
    )


def address(content: bytes, kind: str = "png") -> str:
    """An image file as a data address."""
    return f"data:image/{kind};base64,{b64encode(content).decode()}"


def contents(html: str) -> list[tuple[str, Markup]]:
    """Identifier and heading of each section that has them."""
    sections = re.findall(r'<section id="([\w-]+)">\s*<h2>(.*?)</h2>', html)
    return [(name, Markup(heading)) for name, heading in sections]


def embedded(image: Image.Image) -> tuple[str, str]:
    """The address and the style of a small RGB image; one of few pixels keeps them as squares."""
    out, crisp = BytesIO(), max(image.size) < PIXEL_ART
    image.save(out, "PNG" if crisp else "JPEG", quality=80)
    return address(out.getvalue(), "png" if crisp else "jpeg"), "pixels" if crisp else ""


def thumbnail(image: Image.Image, description: str = "") -> Markup:
    """An element with a small RGB image."""
    source, style = embedded(image)
    return Markup('<img class="{}" src="{}" alt="{}">').format(style, source, description)


TEMPLATES.policies["json.dumps_kwargs"] = {}  # by default, keys are sorted
TEMPLATES.filters |= {"percent": percent, "thumbnail": thumbnail, "contents": contents}
