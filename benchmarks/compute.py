"""The paper's Table 6 and our counts: results, tables and figure of docs/compute.md.

python benchmarks/compute.py          writes benchmarks/results/compute_table6.json and the page
python benchmarks/compute.py --check  exit status 1 if either is not up to date

The results include the counts of PyTorch's counter for every named model at full depth, which takes
a minute or two; the check compares the formulas with them.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vit.compute.candidate import candidate
from vit.compute.comparison import Comparison, model_rows, training_rows
from vit.compute.table6 import JFT_CLASSES, TABLE6, Point, column_title
from vit.compute.tables import amount
from vit.models.config import ROOT_CHANNELS, ResNetConfig
from vit.models.zoo import ZOO
from vit.reports.drawing import png
from vit.reports.scaling import compute_figure

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "compute.md"
FIGURE = ROOT / "docs" / "compute.png"
MISPRINT = next(point for point in TABLE6 if point.exaflops == 859)

Rows = list[dict[str, Any]]


def jft(**options: Any) -> Rows:
    """The rows of `vit compare --recipe jft`."""
    return training_rows(Comparison(recipe="jft", **options))[0]


def saved_by_early_stride(point: Point) -> float:
    """ExaFLOPs saved by a stride on the first 1x1 convolution of a unit, as in ResNet v1.

    Only that convolution changes, to a quarter of its outputs, at the start of each later stage.
    """
    config = ZOO[point.model].config
    if isinstance(config, ResNetConfig):
        depths, root = config.depths, config.root_channels
    else:
        depths, root = config.stem_depths or (), ROOT_CHANNELS
    macs = 0.0
    for s in range(1, len(depths)):
        side, inputs, mid = 56 // 2 ** (s - 1), 4 * root * 2 ** (s - 1), root * 2**s
        macs += 0.75 * side**2 * inputs * mid
    return point.epochs * 303e6 * 6 * macs / 1e18


def hypotheses() -> list[tuple[str, list[float]]]:
    """Counting methods, each with the ratio of our to the paper's exaFLOPs per row."""
    rows, jft_head = jft(), jft(classes=JFT_CLASSES)
    fewer = jft(images=300e6)
    xla = json.loads((RESULTS / "compute_xla.json").read_text())["exaflops"]

    def ratios(value: Callable[[int], float]) -> list[float]:
        return [value(i) / point.exaflops for i, point in enumerate(TABLE6)]

    return [
        ("ours: stride on the 3x3 convolution, 1000 classes", [row["ratio"] for row in rows]),
        (f"a head of {JFT_CLASSES:,} classes", [row["ratio"] for row in jft_head]),
        ("300 million images instead of 303", [row["ratio"] for row in fewer]),
        (
            "stride on the first 1x1 convolution",
            ratios(lambda i: rows[i]["exaflops"] - saved_by_early_stride(TABLE6[i])),
        ),
        ("without padding", [row["ratio_without_padding"] for row in rows]),
        (
            f"without padding, {JFT_CLASSES:,} classes",
            [row["ratio_without_padding"] for row in jft_head],
        ),
        ("XLA's count of the whole step, norms and activations included", ratios(lambda i: xla[i])),
    ]


def span(ratios: list[float], family: str) -> str:
    """Range of a family's deviations in per cent, without the misprinted row."""
    chosen = [
        100 * (ratio - 1)
        for ratio, point in zip(ratios, TABLE6, strict=True)
        if point.family == family and point is not MISPRINT
    ]
    return f"{min(chosen):+.1f} to {max(chosen):+.1f}"


def table6(rows: Rows) -> str:
    """The paper's table with our counts."""
    xla = json.loads((RESULTS / "compute_xla.json").read_text())["exaflops"]
    lines = [
        "| model | epochs | parameters, M | forward, GFLOP/image | ours, exaFLOPs | paper "
        "| ours/paper | without padding/paper | XLA/paper |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row, counted in zip(rows, xla, strict=True):
        cells = (
            row["paper_name"],
            f"{row['epochs']:g}",
            amount(row["params"] / 1e6),
            amount(row["flops"] / 1e9),
            amount(row["exaflops"]),
            f"{row['paper_exaflops']:,}",
            f"{row['ratio']:.3f}",
            f"{row['ratio_without_padding']:.3f}",
            f"{counted / row['paper_exaflops']:.3f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def explanations() -> str:
    """Deviation from the paper by counting method."""
    lines = ["| counted | ViT, % | hybrids, % | ResNets, % |", "|---|---|---|---|"]
    for name, ratios in hypotheses():
        cells = (name, *(span(ratios, family) for family in ("ViT", "hybrid", "ResNet")))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def models() -> str:
    """Cost of every named model at 224 pixels."""
    lines = [
        "| model | parameters, M | multiply-adds, G | training step, GFLOP | activations, MiB "
        "| checkpointed, MiB | largest batch in 80 GiB | checkpointed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in model_rows(Comparison(models=list(ZOO), device="a100"))[0]:
        cells = (
            f"`{row['model']}`",
            amount(row["params"] / 1e6),
            amount(row["macs"] / 1e9),
            amount(row["training_flops"] / 1e9),
            amount(row["activation_bytes"] / 2**20),
            amount(row["activation_bytes_checkpointing"] / 2**20),
            f"{row['largest_batch']:,}",
            f"{row['largest_batch_checkpointing']:,}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def filled(page: str, tables: dict[str, str]) -> str:
    """The page with new tables between their markers."""
    for name, text in tables.items():
        start, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, rest = page.split(start)
        page = f"{before}{start}\n{text}\n{end}{rest.split(end)[1]}"
    return page


def by_counter() -> dict[str, Any]:
    """Multiply-adds of each model and its training step at 224 pixels, as PyTorch counts them."""
    import torch

    counts = {name: candidate(name).counted for name in ZOO}
    return {
        "torch": torch.__version__,
        "macs": {name: [work.macs, work.training_macs] for name, work in counts.items()},
    }


def main() -> int:
    rows, check = jft(), "--check" in sys.argv
    file = RESULTS / "compute_table6.json"
    counter = json.loads(file.read_text())["counter"] if check else by_counter()
    for name, counts in counter["macs"].items():
        work = candidate(name).work
        if counts != [work.macs, work.training_macs]:
            print(f"{name}: the formula disagrees with PyTorch's counter", file=sys.stderr)
            return 1
    document = {"what": "vit compare --recipe jft", "rows": rows, "counter": counter}
    results = json.dumps(document, indent=1) + "\n"
    tables = {"table6": table6(rows), "explanations": explanations(), "models": models()}
    page = filled(PAGE.read_text(encoding="utf-8"), tables)
    if check:
        same = file.read_text() == results
        return int(not same or page != PAGE.read_text(encoding="utf-8") or not FIGURE.is_file())
    file.write_text(results)
    PAGE.write_text(page, encoding="utf-8")
    FIGURE.write_bytes(png(compute_figure(rows, TABLE6, "imagenet", column_title("imagenet"))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
