"""Tables of docs/compute.md: core-days of the paper's Table 2, and measured shares of the peak."""

from typing import Any

from benchmarks.lib.pages import span, table
from benchmarks.lib.sweep import NOT_SEEN, SEEN
from vit.extensions.compute.cost import DEVICES
from vit.extensions.compute.table6 import JFT_IMAGES
from vit.extensions.compute.tables import amount

IMAGENET, IMAGENET21K = 1_281_167, 14_197_122
LABELLED = 350 * IMAGENET
"""Images with labels that Noisy Student's EfficientNet-L2 sees (arXiv:1911.04252, section 3.1)."""
L2_STEP = 3 * 341.786e9
"""Three forward passes of EfficientNet-L2 at 475 pixels, as PyTorch's counter has them for timm's
`tf_efficientnet_l2` of 480.3 million parameters."""
TABLE2: tuple[tuple[str, str | float, str, float, int], ...] = (
    ("ViT-H/14", "vit_h14", "JFT, 14 epochs", 14 * JFT_IMAGES, 2_500),
    ("ViT-L/16", "vit_l16", "JFT, 14 epochs", 14 * JFT_IMAGES, 680),
    ("ViT-L/16", "vit_l16", "ImageNet-21k, 90 epochs", 90 * IMAGENET21K, 230),
    ("ViT-L/16", "vit_l16", "ImageNet-21k, 30 epochs", 30 * IMAGENET21K, 230),
    ("BiT-L (R152x4)", "bit_r152x4", "JFT, 40 epochs", 40 * JFT_IMAGES, 9_900),
    ("BiT-L (R152x4)", "bit_r152x4", "JFT, 30 epochs", 30 * JFT_IMAGES, 9_900),
    ("Noisy Student (L2)", L2_STEP, "ImageNet, 350 epochs; JFT, 14 times", 15 * LABELLED, 12_300),
)
"""Model, its name here or operations of a step, data, images, and TPUv3-core-days."""


def core_days(counts: list[dict[str, Any]]) -> str:
    """Share of the peak that the core-days imply, from the counts of every named model."""
    steps = {row["model"]: row["training_flops"] for row in counts}
    peak = DEVICES["tpu-v3-core"].tflops * 1e12 * 86_400
    lines = []
    for name, model, data, images, days in TABLE2:
        work = images * (steps[model] if isinstance(model, str) else model)
        share = f"{100 * work / peak / days:.0f} %"
        lines.append((name, data, amount(work / 1e18), f"{days:,}", share))
    return table(("model", "data", "exaFLOPs", "TPUv3-core-days", "of the peak"), lines)


def shares(content: dict[str, Any]) -> str:
    """Measured shares of the peak, and whether the ViT's is the larger in all rounds."""
    lines = []
    for row in content["rows"]:
        verdict = SEEN if row["ratio_min"] > 1 else NOT_SEEN
        percents = [f"{100 * row[name]:.0f} %" for name in ("vit_share", "bit_share")]
        pair = f"`{row['vit']}`, `{row['bit']}`"
        lines.append((pair, row["way"], *percents, span(row), verdict))
    head = ("pair", "", "ViT, of the peak", "BiT, of the peak", "ratio", "ViT above BiT")
    measured = "{hardware[cpu]}, one thread, {precision}, batches of {batch}, {rounds} rounds"
    return f"{table(head, lines)}\n\n{measured.format(**content)}"
