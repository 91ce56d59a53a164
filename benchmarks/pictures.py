"""Pictures of the pages in docs, from a finished run and from photos.

python -m benchmarks.pictures report RUN                    docs/images/report.jpg; needs chromium
python -m benchmarks.pictures inspection MODEL PHOTO...     inspection_photos.jpg and _page.jpg
python -m benchmarks.pictures serve RUN PHOTO...            serve.jpg; needs playwright, too
"""

import shutil
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


def serve(run: str, photos: Sequence[str]) -> None:
    """The page of `vit serve` with some photos, one of them under its map: wide, and on a phone."""
    from playwright.sync_api import sync_playwright

    command = ["vit", "serve", run, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().split()[1]
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"))
            shots = []
            for width, height, scheme in ((1280, 1000, "light"), (390, 1000, "dark")):
                page = browser.new_page(
                    viewport={"width": width, "height": height}, color_scheme=scheme
                )
                page.goto(address)
                page.set_input_files("input[type=file][multiple]", photos)
                page.wait_for_function(f"document.querySelectorAll('li').length >= {len(photos)}")
                page.locator("button.picture").first.click()
                page.locator("button.picture img:not([hidden])[src^=blob]").nth(1).wait_for()
                page.get_by_text(f"{len(photos)} of {len(photos)} answered").wait_for()
                page.wait_for_timeout(500)
                page.evaluate("scrollTo(0, 0)")
                shots.append(Image.open(BytesIO(page.screenshot())))
        server.terminate()
    sheet = Image.new("RGB", (sum(image.width for image in shots) + 20, 1000), "white")
    sheet.paste(shots[0], (0, 0))
    sheet.paste(shots[1], (shots[0].width + 20, 0))
    save(sheet, 1130, "serve.jpg")


def save(image: Image.Image, width: int, name: str) -> None:
    size = (width, round(width / image.width * image.height))
    image.convert("RGB").resize(size, Image.Resampling.LANCZOS).save(IMAGES / name, quality=85)


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "report":
        report(Path(arguments[0]))
    elif what == "serve":
        serve(arguments[0], arguments[1:])
    else:
        inspection(arguments[0], arguments[1:])
