"""The paper's Table 6 and our counts: results, tables and figure of docs/compute.md.

    python -m benchmarks.papers.compute.run

With --check: exit status 1 if the page is not that of the results, or if a ViT, a ResNet or a
hybrid is counted differently. All named models are counted at full depth, which takes a few
minutes.
"""

import json
import sys
from functools import cache
from typing import Any

import torch

from benchmarks.lib.harness import save
from benchmarks.lib.pages import ROOT, filled, generate, load, results_path, table
from benchmarks.papers.compute.table2 import core_days, shares
from vit.extensions.compute.comparison import model_rows, training_rows
from vit.extensions.compute.table6 import JFT_SIZE, TABLE6, TITLES, Point
from vit.extensions.compute.tables import amount
from vit.extensions.compute.trainings import CostOptions
from vit.extensions.reports.drawing import png
from vit.extensions.reports.scaling import compute_figure
from vit.models.config import ROOT_CHANNELS, ResNetConfig
from vit.models.resnet import StdConv2d, same_padding
from vit.models.zoo import ZOO, model_config
from vit.weights.building import build_empty

PAGE = ROOT / "docs" / "compute.md"
NAME = "papers/compute/results"
FIGURE = ROOT / "docs" / "compute.png"
MISPRINT = next(point for point in TABLE6 if point.exaflops == 859)
JFT_CLASSES = 18_291  # BiT (arXiv:1912.11370), section 3.1; the ViT paper says 18k
CHECKED = ["vit_b32", "bit_r50x1", "r50_vit_b32"]

Rows = list[dict[str, Any]]


def jft(*models: str, **options: Any) -> Rows:
    """The rows of `vit compare --recipe jft`, with the count that leaves out padding."""
    rows = training_rows(CostOptions(recipe="jft", models=models, **options))[0]
    for row in rows:
        inside = row["exaflops"] - row["images"] * padding_flops(row["model"]) / 1e18
        row["exaflops_without_padding"] = inside
        row["ratio_without_padding"] = inside / row["paper_exaflops"]
    return rows


@cache
def padding_flops(name: str) -> int:
    """Operations of a training step that multiply zeros beside the image, for one image.

    XLA's cost analysis does not count them (xla/service/hlo_cost_analysis.cc,
    GetConvolutionFlops).
    """
    model, padded = build_empty(model_config(name)), 0

    def count(conv: StdConv2d, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        nonlocal padded
        kernel, stride = conv.kernel_size[0], conv.stride[0]
        whole = inside = conv.in_channels * conv.out_channels
        for size, out in zip(inputs[0].shape[-2:], output.shape[-2:], strict=True):
            before = same_padding(size, kernel, stride)[0] if conv.same else kernel // 2
            starts = [i * stride - before for i in range(out)]
            whole *= out * kernel
            inside *= sum(min(start + kernel, size) - max(start, 0) for start in starts)
        # The pixels have no gradient.
        padded += 2 * (whole - inside) * (2 if conv.in_channels == 3 else 3)

    for module in model.modules():
        if isinstance(module, StdConv2d):
            module.register_forward_hook(count)  # pyright: ignore[reportArgumentType]
    model(torch.empty(1, 3, JFT_SIZE, JFT_SIZE, device="meta"))
    return padded


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


def hypotheses(rows: Rows, jft_head: Rows, xla: list[float]) -> dict[str, list[float]]:
    """Counting methods, each with the ratio of our to the paper's exaFLOPs per row."""
    early = [
        (row["exaflops"] - saved_by_early_stride(point)) / point.exaflops
        for row, point in zip(rows, TABLE6, strict=True)
    ]
    return {
        "ours: stride on the 3x3 convolution, 1000 classes": [row["ratio"] for row in rows],
        f"a head of {JFT_CLASSES:,} classes": [row["ratio"] for row in jft_head],
        "300 million images instead of 303": [300 / 303 * row["ratio"] for row in rows],
        "stride on the first 1x1 convolution": early,
        "without padding": [row["ratio_without_padding"] for row in rows],
        f"without padding, {JFT_CLASSES:,} classes": [
            row["ratio_without_padding"] for row in jft_head
        ],
        "XLA's count of the whole step, norms and activations included": [
            exaflops / point.exaflops for exaflops, point in zip(xla, TABLE6, strict=True)
        ],
    }


def span(ratios: list[float], family: str) -> str:
    """Range of a family's deviations in per cent, without the misprinted row."""
    chosen = [
        100 * (ratio - 1)
        for ratio, point in zip(ratios, TABLE6, strict=True)
        if point.family == family and point is not MISPRINT
    ]
    return f"{min(chosen):+.1f} to {max(chosen):+.1f}"


def table6(rows: Rows, xla: list[float]) -> str:
    """The paper's table with our counts."""
    head = "model|epochs|parameters, M|forward, GFLOP/image|ours, exaFLOPs|paper|ours/paper"
    head += "|without padding/paper|XLA/paper"
    lines = [
        (
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
        for row, counted in zip(rows, xla, strict=True)
    ]
    return table(head.split("|"), lines)


def explanations(hypotheses: dict[str, list[float]]) -> str:
    """Deviation from the paper by counting method."""
    families = ("ViT", "hybrid", "ResNet")
    lines = [(name, *(span(each, f) for f in families)) for name, each in hypotheses.items()]
    return table(("counted", "ViT, %", "hybrids, %", "ResNets, %"), lines)


def models(rows: Rows) -> str:
    """Cost of every named model at 224 pixels."""
    head = "model|parameters, M|multiply-adds, G|training step, GFLOP|activations, MiB"
    head += "|checkpointed, MiB|largest batch in 80 GiB|checkpointed"
    lines = [
        (
            f"`{row['model']}`",
            amount(row["params"] / 1e6),
            amount(row["macs"] / 1e9),
            amount(row["training_flops"] / 1e9),
            amount(row["activation_bytes"] / 2**20),
            amount(row["activation_bytes_checkpointing"] / 2**20),
            f"{row['largest_batch']:,}",
            f"{row['largest_batch_checkpointing']:,}",
        )
        for row in rows
    ]
    return table(head.split("|"), lines)


def counted(xla: list[float]) -> dict[str, Any]:
    """The results."""
    rows, jft_head = jft(), jft(classes=JFT_CLASSES)
    return {
        "what": "vit compare --recipe jft",
        "torch": torch.__version__,
        "rows": rows,
        "hypotheses": hypotheses(rows, jft_head, xla),
        "models": model_rows(CostOptions(models=list(ZOO), device="a100"))[0],
    }


def unchanged(document: dict[str, Any]) -> bool:
    """Whether CHECKED are counted as the results say."""
    rows = [row for row in document["rows"] if row["model"] in CHECKED]
    wanted = [row for name in CHECKED for row in rows if row["model"] == name]
    return json.loads(json.dumps(jft(*CHECKED))) == wanted


def main() -> int:
    check, xla = "--check" in sys.argv, load("papers/compute/xla")["exaflops"]
    document = load(NAME) if check else counted(xla)
    rows = document["rows"]
    page = filled(
        PAGE,
        table6=table6(rows, xla),
        explanations=explanations(document["hypotheses"]),
        models=models(document["models"]),
        core_days=core_days(document["models"]),
        shares=shares(load("papers/compute/shares")),
    )
    if check:
        return int(generate(PAGE, page) or not FIGURE.is_file() or not unchanged(document))
    save(document, results_path(NAME))
    FIGURE.write_bytes(png(compute_figure(rows, TABLE6, "imagenet", TITLES["imagenet"])))
    return generate(PAGE, page)


if __name__ == "__main__":
    raise SystemExit(main())
