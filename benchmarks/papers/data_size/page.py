"""The tables and the figure of docs/data_size.md."""

import statistics
from collections.abc import Callable
from textwrap import fill
from typing import Any, NamedTuple

from benchmarks.lib.pages import ROOT, filled, generate, load, over, table
from benchmarks.lib.sweep import by_seed, interval, minus, power, verdict
from benchmarks.papers.data_size.run import SWEEPS, cells

PAGE = ROOT / "docs" / "data_size.md"
NAMES = {
    "vit": "ViT",
    "bit": "BiT",
    "hybrid": "hybrid",
    "vit_48": "ViT (width 48)",
    "vit_32": "ViT (width 32)",
}
MAIN = ("vit", "bit", "hybrid")
SMALL = "vit_32"
Rows = list[dict[str, Any]]
Value = Callable[[dict[str, Any]], float]


def accuracy(row: dict[str, Any]) -> float:
    return 100 * row["accuracy"]


def shots(count: int) -> Value:
    """Few-shot accuracy from so many images of a class."""
    return lambda row: 100 * row["few_shot"][str(count)]


def overfit(row: dict[str, Any]) -> float:
    """How far the loss on val is above that on train when the run ends."""
    return row["last_val_loss"] - row["last_train_loss"]


class Results:
    """The rows by run, and by seed."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.rows: Rows = content["rows"]
        self.percent: list[float] = sorted(content["settings"]["percent"])

    def of(self, sweep: str, model: str, percent: float, share: float = 1.0) -> dict[int, Any]:
        """Seed -> row."""
        wanted = {"sweep": sweep, "model": model, "percent": percent, "share": share}
        return by_seed(self.rows, lambda row: row, **wanted)

    def values(self, sweep: str, model: str, percent: float, value: Value) -> dict[int, float]:
        """Seed -> value."""
        return {seed: value(row) for seed, row in self.of(sweep, model, percent).items()}

    def gaps(self, sweep: str, pair: tuple[str, str], percent: float, value: Value) -> list[float]:
        """First model minus second, for the seeds that have both."""
        return minus(*(self.values(sweep, model, percent, value) for model in pair))


def by_size(found: Results, sweep: str, value: Value) -> str:
    """A row for each share of train."""
    head = ["train", "images", "epochs", *(f"{NAMES[model]}, %" for model in MAIN)]
    head += ["ViT - BiT", "hybrid - BiT", "seeds"]
    lines = []
    for percent in found.percent:
        runs = found.of(sweep, "vit", percent)
        if not runs:
            continue
        first = next(iter(runs.values()))
        images = first["images"]["train"]
        each = [[*found.values(sweep, model, percent, value).values()] for model in MAIN]
        gaps = [found.gaps(sweep, (m, "bit"), percent, value) for m in ("vit", "hybrid")]
        facts = (f"{percent:g} %", f"{images:,}", f"{first['images_seen'] / images:.1f}")
        lines.append((*facts, *map(over, each), *map(interval, gaps), min(map(len, each))))
    return table(head, lines) if lines else "None of these runs is complete."


class Claim(NamedTuple):
    """A sentence of section 4.3; `values`, one for each seed, are above 0 if it holds."""

    sentence: str
    there: str
    here: str
    values: list[float]


def claims(found: Results) -> list[Claim]:
    """The sentences in their order."""
    low, large, high = found.percent[0], *found.percent[-2:]
    five, pair = shots(5), ("vit", "bit")

    def gap(percent: float, value: Value = accuracy, pair: tuple[str, str] = pair) -> list[float]:
        return found.gaps("part", pair, percent, value)

    def less(first: list[float], second: list[float]) -> list[float]:
        return [a - b for a, b in zip(first, second, strict=False)]

    larger = ("vit", SMALL)
    smaller = [-value for value in gap(low, pair=larger)]
    both = [(a + b) / 2 for a, b in zip(gap(large, five), gap(high, five), strict=False)]
    return [
        Claim(
            "When pre-trained on the smallest dataset, ViT-Large underperforms ViT-Base",
            "B/16 - L/16 on ImageNet: +1.4",
            f"width 32 - width 64, {low:g} %",
            smaller,
        ),
        Claim(
            "Only with JFT-300M do we see the full benefit of larger models",
            "L/16 - B/16, JFT against ImageNet: +4.4",
            f"width 64 - width 32, {high:g} against {low:g} %",
            less(gap(high, pair=larger), gap(low, pair=larger)),
        ),
        Claim(
            "The BiT CNNs outperform ViT on ImageNet [the smallest]",
            "Figure 3",
            f"BiT - ViT in domain, {low:g} %",
            [-value for value in gap(low)],
        ),
        Claim(
            "with the larger datasets, ViT overtakes",
            "Figure 3",
            f"ViT - BiT in domain, {high:g} %",
            gap(high),
        ),
        Claim(
            "ViTs overfit more than ResNets of comparable cost on smaller datasets",
            "Figure 4",
            f"loss on val above that on train, ViT - BiT, {low:g} %",
            gap(low, overfit),
        ),
        Claim(
            "ViT-B/32 performs much worse than ResNet50 on the 9M subset",
            "Figure 4",
            f"BiT - ViT, 5-shot, {low:g} %",
            [-value for value in gap(low, five)],
        ),
        Claim(
            "but better on 90M+ subsets",
            "Figure 4",
            f"ViT - BiT, 5-shot, {large:g} and {high:g} %",
            both,
        ),
        Claim(
            "The convolutional bias is useful for smaller datasets, but for larger ones learning "
            "from data is sufficient, even beneficial",
            "Figures 3 and 4",
            f"ViT - BiT in domain, {high:g} against {low:g} %",
            less(gap(high), gap(low)),
        ),
        Claim(
            "the same, few-shot",
            "Figure 4",
            f"ViT - BiT, 5-shot, {high:g} against {low:g} %",
            less(gap(high, five), gap(low, five)),
        ),
    ]


def judged(found: Results) -> str:
    """A row for each sentence."""
    head = ("sentence", "there", "here", "points", "verdict")
    lines = []
    for claim in claims(found):
        form = "+.2f" if "loss" in claim.here else "+.1f"
        measured = interval(claim.values, form), verdict(claim.values)
        lines.append((claim.sentence, claim.there, claim.here, *measured))
    return table(head, lines)


def fits(found: Results) -> str:
    """Exponents of the error against images, compute and size."""
    low, high = found.percent[0], found.percent[-1]
    shares = sorted({row["share"] for row in found.rows})
    curves: list[tuple[str, str, Rows, str]] = []
    for sweep in ("part", "all"):
        for model in MAIN:
            rows = [r for p in found.percent for r in found.of(sweep, model, p).values()]
            curves.append((f"images, {sweep} of the classes", NAMES[model], rows, "images"))
    for model in MAIN:
        rows = [r for share in shares for r in found.of("part", model, high, share).values()]
        curves.append((f"steps, {high:g} %", NAMES[model], rows, "steps"))
    for percent in (low, high):
        family = [m for m in NAMES if m.startswith("vit")]
        rows = [r for model in family for r in found.of("part", model, percent).values()]
        curves.append((f"operations of a ViT, {percent:g} %", "widths 32 to 64", rows, "size"))
    sizes: dict[str, Callable[[dict[str, Any]], float]] = {
        "images": lambda row: row["images"]["train"],
        "steps": lambda row: row["steps"],
        "size": lambda row: row["training_flops"],
    }
    lines = []
    for against, model, rows, size in curves:
        x = [sizes[size](row) for row in rows]
        if len(set(x)) < 3:
            continue
        found_fit = power(x, [1 - row["accuracy"] for row in rows])
        shown = f"{found_fit['exponent']:+.3f} ± {found_fit['half_interval']:.3f}"
        lines.append((against, model, shown, len(set(x)), len(rows)))
    head = ("error against", "model", "exponent", "sizes", "runs")
    return table(head, lines) if lines else "None of these lines is complete."


def facts(content: dict[str, Any]) -> str:
    """Settings and cost."""
    rows, settings = content["rows"], content["settings"]
    hours = sum(row["cpu_seconds"] for row in rows) / 3600
    flops = {row["model"]: row["training_flops"] / 1e6 for row in reversed(rows)}
    cost = ", ".join(f"{NAMES[m]} {flops[m]:.1f}" for m in NAMES if m in flops)
    each_seed = [cells(sweep, [*settings["models"]], settings["percent"]) for sweep in SWEEPS]
    planned = settings["seeds"] * sum(map(len, each_seed))
    count = f"{len(rows)}" + (f" of {planned}" if len(rows) < planned else "")
    text = (
        f"{count} runs of {settings['steps']} steps of {settings['batch']} images (fewer in the "
        f"fits against steps), {hours:.2f} CPU hours on one thread of a shared "
        f"{content['hardware']['cpu']}, {rows[0]['precision']}. Operations of a training step per "
        f"image, in millions: {cost}. ± behind an accuracy is the standard deviation over the "
        "seeds, behind a difference or an exponent half of the 95 % interval (Student). "
        "Differences are paired by seed."
    )
    return fill(text, 100)


def text(content: dict[str, Any]) -> dict[str, str]:
    """Everything between the markers."""
    found = Results(content)
    return {
        "facts": facts(content),
        "domain": by_size(found, "part", accuracy),
        "few_shot": by_size(found, "part", shots(5)),
        "more_shots": by_size(found, "part", shots(25)),
        "all": by_size(found, "all", accuracy),
        "verdicts": judged(found),
        "fits": fits(found),
    }


def draw(content: dict[str, Any]) -> None:
    """Accuracy against images, in domain and few-shot, and for all classes."""
    from vit.extensions.reports.drawing import LIGHT, label_axes, new_figure, png, style_axes

    found = Results(content)
    panels = [
        ("part", accuracy, "six classes, in domain"),
        ("part", shots(5), "the other four, 5-shot"),
        ("all", accuracy, "ten classes, in domain"),
    ]
    have = {row["sweep"] for row in found.rows}
    panels = [panel for panel in panels if panel[0] in have]
    figure = new_figure(3.2 * len(panels), 3.3)
    colours = dict(zip(MAIN, (LIGHT.accent, LIGHT.second, LIGHT.third), strict=True))
    for place, (sweep, value, title) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), place + 1)
        style_axes(axes)
        axes.set_xscale("log")
        for model, colour in colours.items():
            sizes = [p for p in found.percent if found.of(sweep, model, p)]
            each = [[*found.values(sweep, model, p, value).values()] for p in sizes]
            rows = [next(iter(found.of(sweep, model, p).values())) for p in sizes]
            counts = [row["images"]["train"] for row in rows]
            means = [statistics.mean(values) for values in each]
            errors = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in each]
            style = {"color": colour, "marker": "o", "markersize": 4, "capsize": 3}
            axes.errorbar(counts, means, errors, label=NAMES[model], **style)
            if counts:
                axes.set_xticks(counts, [f"{count:,}" for count in counts])
        axes.minorticks_off()
        axes.set_title(title, color=LIGHT.ink, fontsize=9)
        label_axes(axes, x="training images", y="" if place else "test accuracy, %")
        if not place:
            axes.legend(frameon=False, fontsize=8, loc="lower right", labelcolor=LIGHT.ink)
    (ROOT / "docs" / "data_size.png").write_bytes(png(figure))


if __name__ == "__main__":
    results = load("papers/data_size/results")
    raise SystemExit(generate(PAGE, filled(PAGE, **text(results)), figure=lambda: draw(results)))
