"""Accuracy of trained models before and after `vit export --int8`, on labelled test images.

    vit fit -c cifar10 --data.root CIFAR10 --run_dir A
    vit fit -c probe --data.root CIFAR10 --model.pretrained DINOV2 --image-size 112 --run_dir B
    python -m benchmarks.parity.int8 CIFAR10 "ViT of CIFAR-10=A" "DINOv2, probe, 112 pixels=B"

CIFAR10 has train/CLASS/ and test/CLASS/. Calibrated on images of train, compared on all of test.
Writes benchmarks/results/int8.json, in which rows of other models stay, and the table in
docs/export.md; `--check` only compares that.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.lib.harness import document, installed, results_path, save
from benchmarks.lib.pages import ROOT, filled, generate, load, table
from vit.extensions.serving.engines import SUFFIXES
from vit.extensions.serving.quantize import QUANTIZERS, export_int8


def measure(name: str, run: str, data: Path) -> list[dict[str, Any]]:
    """A row for each format."""
    rows = []
    for format in QUANTIZERS:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, f"model{SUFFIXES[format]}")
            done = export_int8(run, file, data / "train", data / "test", max_drop=100.0)
        paired = done.accuracy
        low, high = paired.interval
        row = {"model": name, "format": format, "images": paired.count}
        row |= {"before": paired.before, "after": paired.after, "drop": paired.drop}
        rows.append(row | {"drop_low": low, "drop_high": high})
        print(rows[-1], flush=True)
    return rows


def text(content: dict[str, Any]) -> str:
    """The table of docs/export.md."""
    lines = []
    for row in content["rows"]:
        before, after = (f"{row[name] / row['images']:.2%}" for name in ("before", "after"))
        drop = f"{row['drop']:.2f} ({row['drop_low']:.2f} to {row['drop_high']:.2f})"
        lines.append((row["model"], row["format"], f"{row['images']:,}", before, after, drop))
    head = ("model", "format", "test images", "float32", "int8", "points lost")
    names = ", ".join(f"{n} {content['versions'][n]}" for n in ("onnxruntime", "openvino", "nncf"))
    return f"{content['hardware']['cpu']}, {content['date']}, {names}.\n\n{table(head, lines)}"


def main() -> int:
    """Measures, writes the results and the page."""
    page = ROOT / "docs" / "export.md"
    if "--check" not in sys.argv:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("data", type=Path)
        parser.add_argument("runs", nargs="+", metavar="NAME=RUN")
        options = parser.parse_args()
        rows = [
            row
            for name, _, run in (pair.rpartition("=") for pair in options.runs)
            for row in measure(name, run, options.data)
        ]
        measured, content = {row["model"] for row in rows}, document("int8", rows)
        content["versions"] |= installed("onnxruntime", "openvino", "nncf")
        old = load("results/int8")
        if (old["versions"], old["hardware"]["cpu"]) == (
            content["versions"],
            content["hardware"]["cpu"],
        ):
            content["rows"][:0] = [row for row in old["rows"] if row["model"] not in measured]
        save(content, results_path("results/int8"))
    return generate(page, filled(page, int8=text(load("results/int8"))))


if __name__ == "__main__":
    raise SystemExit(main())
