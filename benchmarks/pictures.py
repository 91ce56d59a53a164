"""Pictures of the pages in docs, from a finished run and from photos.

python -m benchmarks.pictures report RUN                    docs/images/report.jpg; needs chromium
python -m benchmarks.pictures inspection MODEL PHOTO...     inspection_photos.jpg and _page.jpg
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from PIL import Image

from benchmarks.lib.pages import ROOT

IMAGES = ROOT / "docs" / "images"


def report(run: Path) -> None:
    """The upper part of report.html: the headline, the confusion, and some errors."""
    save(shot(run / "report.html", 1280, 1830), 960, "report.jpg")


def shot(page: Path, width: int, height: int) -> Image.Image:
    """The upper part of a page in a light browser, pixels."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "shot.png"
        command = ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars"]
        command += [f"--screenshot={file}", f"--window-size={width},{height}"]
        subprocess.run([*command, page.resolve().as_uri()], check=True)
        return Image.open(BytesIO(file.read_bytes()))


def inspection(model: str, photos: Sequence[str]) -> None:
    """What `vit inspect` draws of each photo, in one column, and the upper part of its page."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["vit", "inspect", model, *photos, "--out", folder], check=True)
        files = sorted(Path(folder).glob("[0-9][0-9]_*.png"))
        drawn = [Image.open(file) for file in files if not file.stem.endswith("_heads")]
        sheet = Image.new("RGB", (drawn[0].width, sum(image.height for image in drawn)))
        top = 0
        for image in drawn:
            sheet.paste(image, (0, top))
            top += image.height
        save(sheet, 768, "inspection_photos.jpg")
        save(shot(Path(folder) / "inspection.html", 900, 1010), 760, "inspection_page.jpg")


def save(image: Image.Image, width: int, name: str) -> None:
    size = (width, round(width / image.width * image.height))
    image.convert("RGB").resize(size, Image.Resampling.LANCZOS).save(IMAGES / name, quality=85)


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "report":
        report(Path(arguments[0]))
    else:
        inspection(arguments[0], arguments[1:])
