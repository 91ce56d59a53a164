"""The tables and the picture of docs/finetuning.md."""

import statistics
import sys
from typing import Any

from benchmarks.lib.pages import ROOT, filled, generate, load, plus_minus, table

PAGE = ROOT / "docs" / "finetuning.md"
NAMES = {
    "random": "random weights",
    "probe": "`-c probe`",
    "finetune": "`-c finetune`",
    "lora": "`-c lora` (rank 16)",
}
HEAD = """\
CIFAR-10 (JPEG), {pixels} pixels, {test_images:,} test images; a ViT-S/14 (DINOv2,
tuned for saliency). ± behind an accuracy is the standard deviation over the draws;
behind a difference, half of the paired 95 % interval over the test images. CPU seconds
of training, one thread of a shared {hardware[cpu]}.
"""
PARTS = ("old", "new", "all")
MORE = """\
    python -m benchmarks.papers.few_images.more_classes --data cifar10/ --weights FILE --out DIR

CIFAR-10 (JPEG) at {pixels} pixels, the same weights, frozen: a head for eight classes, fitted to
{head_images} images of each, then two more classes with {new_images} images of each. Mean and
standard deviation of three draws of classes and images; {test_images:,} test images. The old head
answers the images of its own classes alone. CPU seconds of the fit, features not counted, one
thread of a shared {hardware[cpu]}.
"""


def cells(row: dict[str, Any]) -> tuple[object, ...]:
    """Accuracy, its gain over the probe, and cost, for images per class and arm."""
    gain = row.get("against_probe")
    return (
        row["images_per_class"],
        NAMES[row["arm"]],
        plus_minus(row["mean"], row["std"]),
        len(row["seeds"]),
        "" if gain is None else f"{gain['points']:+.1f} ± {gain['half_interval']:.1f}",
        f"{statistics.mean(row['losses']):.2f}",
        "head" if row["arm"] == "probe" else f"{row['trained_parameters'] / 1e6:.1f} M",
        f"{statistics.mean(row['train_cpu_seconds']):.0f}",
    )


def peers(rows: list[dict[str, Any]], content: dict[str, Any]) -> list[tuple[object, ...]]:
    """Other packages with the CPU time of ours, below ours."""
    lines: list[tuple[object, ...]] = []
    for cell in sorted({row["cell"] for row in rows}, key=lambda cell: int(cell.split(":")[0])):
        images, seed = map(int, cell.split(":"))
        for ours in content["rows"]:
            shown = ours["images_per_class"] == images and ours["arm"] in ("finetune", "lora")
            if shown and seed in ours["seeds"]:
                at = ours["seeds"].index(seed)
                accuracy, seconds = ours["accuracies"][at], ours["train_cpu_seconds"][at]
                steps = f"{ours['steps']} x 32"
                lines.append(
                    (images, NAMES[ours["arm"]], f"{accuracy:.1f}", steps, f"{seconds:.0f}")
                )
        lines += [
            (
                images,
                f"{row['package']} {row['version']}, {row['settings']}",
                f"{row['accuracy']:.1f}",
                f"{row['steps']} x {row['batch']}",
                f"{row['train_cpu_seconds']:.0f}",
            )
            for row in rows
            if row["cell"] == cell
        ]
    return lines


def text() -> str:
    """Everything between the markers."""
    content = load("papers/few_images/results")
    costs = ("minus probe, points", "loss", "trained", "CPU s")
    head = ("images per class", "run", "accuracy, %", "draws", *costs)
    others = ("images per class", "fine-tuning", "accuracy, %", "steps x batch", "CPU s")
    return "\n".join(
        [
            HEAD.format(**content),
            table(head, map(cells, content["rows"])),
            "\n![accuracy against images per class](finetuning.png)\n",
            table(others, peers(load("papers/few_images/peers"), content)),
        ]
    )


def more() -> str:
    """A class more: the head's old rows, or a head that is fitted as a whole."""
    content = load("papers/few_images/more_classes")
    names = {
        "eight": "the old head, of eight classes",
        "kept": "old rows kept, two fitted",
        "whole": "ten rows fitted",
        "chosen": "`-c probe`, which fits both",
    }
    head = ("images per old class", "head", *(f"{part} classes, %" for part in PARTS), "CPU s")
    first = content["rows"][0]
    rows = [("", names["eight"], plus_minus(*first["old"]), "", "", "")]
    rows += [
        (
            row["old_images"],
            names[row["arm"]],
            *(plus_minus(*row[part]) for part in PARTS),
            "" if row["arm"] == "chosen" else f"{row['seconds'][0]:.1f}",
        )
        for row in content["rows"]
        if row["arm"] != "eight"
    ]
    return "\n".join([MORE.format(**content), table(head, rows)])


def draw() -> None:
    """Accuracy against images per class."""
    from vit.extensions.reports.drawing import LIGHT, label_axes, new_figure, png, style_axes

    rows = load("papers/few_images/results")["rows"]
    figure = new_figure(6.4, 4.0)
    axes = figure.add_subplot()
    style_axes(axes)
    colours = (LIGHT.muted, LIGHT.third, LIGHT.accent, LIGHT.second)
    for (arm, name), colour in zip(NAMES.items(), colours, strict=True):
        mine = sorted((r for r in rows if r["arm"] == arm), key=lambda r: r["images_per_class"])
        counts, means = [r["images_per_class"] for r in mine], [r["mean"] for r in mine]
        deviations = [r["std"] or 0.0 for r in mine]
        style = {"color": colour, "marker": "o", "capsize": 3}
        if mine:
            axes.errorbar(counts, means, deviations, label=name.replace("`", ""), **style)
    axes.set_xscale("log")
    ticks = sorted({row["images_per_class"] for row in rows})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    label_axes(axes, x="images per class", y="test accuracy, %")
    axes.legend(frameon=False, loc="lower right", labelcolor=LIGHT.ink)
    (ROOT / "docs" / "finetuning.png").write_bytes(png(figure))


if __name__ == "__main__":
    status = generate(PAGE, filled(PAGE, results=text(), more=more()))
    if "--check" not in sys.argv:
        draw()
    raise SystemExit(status)
