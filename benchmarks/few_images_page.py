"""Writes docs/finetuning.md's table and picture from the files in benchmarks/results.

python benchmarks/few_images_page.py          writes them
python benchmarks/few_images_page.py --check  exit status 1 if the table is not up to date
"""

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from vit.reports.drawing import LIGHT, png

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "finetuning.md"
PICTURE = ROOT / "docs" / "finetuning.png"
START, END = "<!-- results: begin -->", "<!-- results: end -->"
NAMES = {
    "random": "random weights",
    "probe": "`-c probe`",
    "finetune": "`-c finetune`",
    "lora": "`-c lora` (rank 16)",
}
COLOURS = {
    "random": LIGHT.muted,
    "probe": LIGHT.third,
    "finetune": LIGHT.first,
    "lora": LIGHT.second,
}


def read(name: str) -> Any:
    """Content of a results file, None where it is not there."""
    file = RESULTS / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def table(content: dict[str, Any]) -> list[str]:
    """Accuracy, its gain over the probe, and cost, by images per class and arm."""
    lines = [
        "| images per class | run | accuracy, % | draws | minus probe, points | loss "
        "| trained | CPU s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in content["rows"]:
        spread = "" if row["std"] is None else f" ± {row['std']:.1f}"
        gain = row.get("against_probe")
        losses = row["losses"]
        cells = (
            row["images_per_class"],
            NAMES[row["arm"]],
            f"{row['mean']:.1f}{spread}",
            len(row["seeds"]),
            "" if gain is None else f"{gain['points']:+.1f} ± {gain['half_interval']:.1f}",
            f"{sum(losses) / len(losses):.2f}",
            "head" if row["arm"] == "probe" else f"{row['trained_parameters'] / 1e6:.1f} M",
            f"{sum(row['train_cpu_seconds']) / len(losses):.0f}",
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def peers(rows: list[dict[str, Any]], content: dict[str, Any]) -> list[str]:
    """Other packages with the CPU time of ours."""
    lines = [
        "",
        "| images per class | fine-tuning | accuracy, % | steps x batch | CPU s |",
        "|---|---|---|---|---|",
    ]
    for cell in sorted({row["cell"] for row in rows}, key=lambda cell: int(cell.split(":")[0])):
        images, seed = map(int, cell.split(":"))
        for ours in content["rows"]:
            if ours["images_per_class"] == images and ours["arm"] in ("finetune", "lora"):
                at = ours["seeds"].index(seed) if seed in ours["seeds"] else None
                if at is not None:
                    lines.append(
                        f"| {images} | {NAMES[ours['arm']]} | {ours['accuracies'][at]:.1f} | "
                        f"{ours['steps']} x 32 | {ours['train_cpu_seconds'][at]:.0f} |"
                    )
        lines += [
            f"| {images} | {row['package']} {row['version']}, {row['settings']} | "
            f"{row['accuracy']:.1f} | {row['steps']} x {row['batch']} | "
            f"{row['train_cpu_seconds']:.0f} |"
            for row in rows
            if row["cell"] == cell
        ]
    return lines


def text() -> str:
    """Everything between the markers."""
    content = read("few_images")
    machine = content["hardware"]
    lines = [
        f"CIFAR-10 (JPEG), {content['pixels']} pixels, {content['test_images']:,} test images; a "
        "ViT-S/14 (DINOv2,",
        "tuned for saliency). ± behind an accuracy is the standard deviation over the draws;",
        "behind a difference, half of the paired 95 % interval over the test images. CPU seconds",
        f"of training, one thread of a shared {machine['cpu']}.",
        "",
        *table(content),
        "",
        "![accuracy against images per class](finetuning.png)",
    ]
    others = read("finetune_peers")
    if others:
        lines += peers(others, content)
    return "\n".join(lines)


def draw() -> None:
    """Accuracy against images per class."""
    rows = read("few_images")["rows"]
    figure = Figure(figsize=(6.4, 4.0), dpi=110, facecolor=LIGHT.paper, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for arm, colour in COLOURS.items():
        mine = sorted((r for r in rows if r["arm"] == arm), key=lambda r: r["images_per_class"])
        if mine:
            counts = [row["images_per_class"] for row in mine]
            axes.errorbar(
                counts,
                [row["mean"] for row in mine],
                yerr=[row["std"] or 0.0 for row in mine],
                color=colour,
                marker="o",
                capsize=3,
                label=NAMES[arm].replace("`", ""),
            )
    axes.set_xscale("log")
    ticks = sorted({row["images_per_class"] for row in rows})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("images per class")
    axes.set_ylabel("test accuracy, %")
    axes.grid(color=LIGHT.grid)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    PICTURE.write_bytes(png(figure))


def main(args: list[str]) -> int:
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(START)
    written = f"{before}{START}\n{text()}\n{END}{rest.split(END)[1]}"
    if "--check" in args:
        return int(written != page)
    PAGE.write_text(written, encoding="utf-8")
    draw()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
