"""`vit robustness` of a model after 250 steps on CIFAR-10 (JPEG), and a sheet of all corruptions.

    python -m benchmarks.papers.robustness.run --data cifar10/ --out DIR [--quick]

`--data` has train/ and test/ with one folder per class. Fixed before the first result: 250 steps of
the recipe cifar10, 500 test images, seed 0. Interrupted, the same command goes on. Also
writes the picture of docs/robustness.md.
"""

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_sample_image

from benchmarks.lib.harness import ROOT, arguments, document, publish, run_fit, timed
from vit.extensions.evaluation.corruptions import KINDS, STRENGTHS, corrupt

SHEET = ROOT / "docs" / "images" / "robustness.jpg"
SIDE, SHOWN, LABEL = 224, 100, 15


def sheet() -> bytes:
    """A JPEG of all kinds and strengths of one photograph of 224 pixels, smaller than that."""
    photo = load_sample_image("flower.jpg")[101:325, 246:470]
    page = Image.new("RGB", (10 * SHOWN + 10, 8 * (SHOWN + LABEL)), "white")
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(LABEL - 3)

    def show(picture: np.ndarray, left: int, top: int) -> None:
        small = Image.fromarray(picture).resize((SHOWN, SHOWN), Image.Resampling.BICUBIC)
        page.paste(small, (left, top + LABEL))

    for number, kind in enumerate([*KINDS, "the photograph"]):
        left, top = number // 8 * (5 * SHOWN + 10), number % 8 * (SHOWN + LABEL)
        draw.text((left, top - 1), kind.replace("_", " "), "black", font)
        if kind not in KINDS:
            show(photo, left, top)
            continue
        for place, strength in enumerate(STRENGTHS):
            show(corrupt(photo, kind, strength, key="flower"), left + place * SHOWN, top)
    file = io.BytesIO()
    page.save(file, "JPEG", quality=80, optimize=True)
    return file.getvalue()


def scored(run: Path, data: Path, limit: int, *options: str) -> dict[str, Any]:
    """The table of `vit robustness`, and its CPU seconds; one that is there already is read."""
    file = run / "robustness.json"
    if file.is_file():
        return json.loads(file.read_text())
    command = [sys.executable, "-m", "vit", "robustness", str(run), "--data", str(data), "--json"]
    command += ["--limit", str(limit), "--device", "cpu", "--num-workers", "0", *options]
    printed, seconds = timed(command)
    found = {**json.loads(printed), **{name: round(n, 1) for name, n in seconds.items()}}
    file.write_text(json.dumps(found))
    return found


def main() -> None:
    options = arguments(__doc__, "data", "out").parse_args()
    fit = ["-c", "cifar10", "--data.root", str(options.data), "--seed_everything=0"]
    fit += [f"--trainer.max_steps={2 if options.quick else 250}", "--trainer.accelerator=cpu"]
    summary = run_fit(fit, options.out / "run")
    scores = scored(options.out / "run", options.data, 4 if options.quick else 500)
    rows = scores.pop("rows")
    kept = ("train_cpu_seconds", "steps", "parameters", "metrics")
    training = {"recipe": "cifar10", **{name: summary[name] for name in kept}}
    facts = {**scores, "model": "run", "data": "CIFAR-10 (JPEG)", "training": training}
    if not options.quick:
        SHEET.write_bytes(sheet())
    publish(document("vit robustness", rows, **facts), options, "papers/robustness/results")


if __name__ == "__main__":
    main()
