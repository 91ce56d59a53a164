"""docs/notebooks/NAME.ipynb, from the text and the Python of each page that tests run."""

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.lib.pages import ROOT, generate

DOCS = ROOT / "docs"
PAGES = ("backbone", "evaluation", "inspection", "notebook", "weights", "your_own_loop")
"""Pages whose Python is run by tests."""

HOSTED = """\
# What a hosted notebook needs: the package, and a GPU for all but small images.
%pip install --quiet vitkit
import torch

print(torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU: see the settings")"""

FILES = """\
# The files that the page names: pictures, unless you upload folders of your own, and weights.
from pathlib import Path

import numpy as np
from PIL import Image

random = np.random.default_rng(0)
for name, colour in {"red": (200, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 200)}.items():
    folder = Path("my_photos", name)
    for i in range(0 if folder.exists() else 10):
        folder.mkdir(parents=True, exist_ok=True)
        pixels = random.normal(colour, 30, (40, 50, 3)).clip(0, 255).astype("uint8")
        Image.fromarray(pixels).save(folder / f"{i}.png")
!vit convert vit_b16.augreg_in21k_ft_in1k B_16.npz --to google"""

RUN = "!vit fit --data my_photos/ --image-size 112 --steps 20  # runs/my_photos-finetune"
"""For pages that name a run."""


def notebook(page: str) -> dict[str, Any]:
    """The notebook (nbformat 4.5) of a page's Markdown. A page that trains on the digits needs no
    files."""
    files = f"{FILES}\n{RUN}" if "runs/my_photos-finetune" in page else FILES
    cells = [("code", HOSTED)] if "runs/digits" in page else [("code", HOSTED), ("code", files)]
    page = re.sub(r"\]\((?!https?:|#)", "](../", page)  # links, from a folder below
    parts = re.split(r"^```python\n(.*?)^```\n", page, flags=re.DOTALL | re.MULTILINE)
    cells += [("code" if i % 2 else "markdown", part.strip("\n")) for i, part in enumerate(parts)]
    return {
        "cells": [_cell(i, kind, text) for i, (kind, text) in enumerate(cells) if text],
        "metadata": {
            "accelerator": "GPU",
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _cell(number: int, kind: str, text: str) -> dict[str, Any]:
    of_code = {"execution_count": None, "outputs": []} if kind == "code" else {}
    source = text.splitlines(keepends=True)
    return {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": source, **of_code}


def path_of(name: str) -> Path:
    """The notebook of a page."""
    return DOCS / "notebooks" / f"{name}.ipynb"


def main() -> int:
    """Writes or checks every notebook; the exit status."""
    status = 0
    for name in PAGES:
        content = notebook((DOCS / f"{name}.md").read_text(encoding="utf-8"))
        path_of(name).parent.mkdir(exist_ok=True)
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        status |= generate(path_of(name), text)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
