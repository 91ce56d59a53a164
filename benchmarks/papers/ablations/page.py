"""The tables and the figure of docs/ablations.md.

The operations of the paper's models are those of papers/compute/results.json.
"""

import itertools
import math
import statistics
from textwrap import fill
from typing import Any

from benchmarks.lib.pages import ROOT, filled, generate, load, over, span, table
from benchmarks.lib.sweep import (
    NOISE,
    NOT_SEEN,
    SEEN,
    by_seed,
    half_interval,
    interval,
    minus,
    verdict,
)
from benchmarks.papers.ablations.run import CENTRE, HEAD_RATES, HEADS, OPTIMIZERS, SHAPES, arms
from vit.extensions.compute.tables import amount

PAGE = ROOT / "docs" / "ablations.md"
ALIKE = 2.0
"""Points within which two accuracies are called similar."""
COMPARABLE = 2.0
"""Factor within which two speeds are called comparable."""
INSTEAD = {"centre": "centre", "all": "depth, width and MLP"}
TABLE7 = (("ResNet50, average of five", 89.33, 88.79), ("ResNet152x2", 94.01, 93.72))
"""Adam and SGD."""
Rows = list[dict[str, Any]]


class Results:
    """The rows by sweep, name and value."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.rows: Rows = content["rows"]
        self.seeds = sorted({row["seed"] for row in self.rows})

    def of(self, sweep: str, name: str, value: float, of: str = "accuracy") -> dict[int, float]:
        """Seed -> accuracy on test in per cent, or on val."""
        wanted = {"sweep": sweep, "name": name, "value": value}
        return by_seed(self.rows, lambda row: 100 * row[of], **wanted)

    def best(self, sweep: str, name: str, rates: tuple[float, ...]) -> float | None:
        """The rate with the highest mean on val."""
        means = {
            rate: statistics.mean(values)
            for rate in rates
            if (values := self.of(sweep, name, rate, "val").values())
        }
        return max(means, key=lambda rate: means[rate]) if len(means) == len(rates) else None

    def axis(self, name: str, seed: int) -> dict[float, dict[str, Any]]:
        """Value on an axis of the shapes -> row of a seed, with the centre."""
        field, middle = next(iter(SHAPES[name][0])), ("shape", "centre", 0.0)
        found = {}
        for row in self.rows:
            if row["seed"] == seed and row["sweep"] == "shape" and row["name"] == name:
                found[row["value"]] = row
            if row["seed"] == seed and (row["sweep"], row["name"], row["value"]) == middle:
                found[CENTRE[field]] = row
        return dict(sorted(found.items()))

    def complete(self) -> list[int]:
        """Seeds that have all shapes."""
        shapes = sum(arm[0] == "shape" for arm in arms())
        have = [row["seed"] for row in self.rows if row["sweep"] == "shape"]
        return [seed for seed in self.seeds if have.count(seed) == shapes]


def alike(values: list[float]) -> str:
    """Whether the 95 % interval lies within ALIKE points of 0, or beyond them."""
    if len(values) < 2:
        return verdict(values)
    middle, half = abs(statistics.mean(values)), half_interval(values)
    return SEEN if middle + half <= ALIKE else NOT_SEEN if middle - half > ALIKE else NOISE


def heads(found: Results) -> str:
    """Accuracy on val by rate, and on test at the best one."""
    lines = []
    for head in HEADS:
        best = found.best("head", head, HEAD_RATES)
        each = [over([*found.of("head", head, r, "val").values()]) for r in HEAD_RATES]
        test = [] if best is None else [*found.of("head", head, best).values()]
        lines.append((head, *each, "-" if best is None else f"{best:g}", over(test)))
    columns = (f"{rate:g}, val %" for rate in HEAD_RATES)
    return table(("head", *columns, "best rate", "there, test %"), lines)


def best_by_seed(found: Results, head: str) -> dict[int, float]:
    """Seed -> log2 of the rate with the highest accuracy on val."""
    values = {rate: found.of("head", head, rate, "val") for rate in HEAD_RATES}
    seeds = [seed for seed in found.seeds if all(seed in each for each in values.values())]
    best = {s: max((each[s], rate) for rate, each in values.items())[1] for s in seeds}
    return {seed: math.log2(rate) for seed, rate in best.items()}


def judged_heads(found: Results) -> str:
    """The two halves of Figure 9's caption."""
    token, mean, pooled = HEADS
    rates = minus(best_by_seed(found, token), best_by_seed(found, mean))
    there = "8e-4 for the class token, 3e-4 for the mean"
    first = ("they require different rates", there, f"log2 of the best rates, {token} - {mean}")
    lines: list[tuple[str, ...]] = [(*first, interval(rates), verdict(rates))]
    best = {head: found.best("head", head, HEAD_RATES) for head in HEADS}
    for other, there in ((token, "Figure 9"), (pooled, "not tried")):
        rates = best[other], best[mean]
        tests = [
            {} if None in rates else found.of("head", head, best[head] or 0.0)
            for head in (other, mean)
        ]
        gap = minus(*tests)
        measured = f"{other} - {mean}, each at its best rate, points"
        claim = ("both work similarly well", there, measured)
        lines.append((*claim, interval(gap), alike(gap)))
    return table(("claim", "paper", "measured", "here", "verdict"), lines)


def shapes(found: Results) -> str:
    """Every shape, by axis."""
    lines = []
    for axis in SHAPES:
        seeds = [found.axis(axis, seed) for seed in found.seeds]
        for value, row in (seeds[0] if seeds else {}).items():
            values = [100 * each[value]["accuracy"] for each in seeds if value in each]
            sizes = (f"{row['parameters'] / 1e3:,.0f}", amount(row["flops"] / 1e6))
            name = INSTEAD.get(axis, axis)
            shown = f"depth {value:g}" if axis == "all" else f"{value:g}"
            lines.append((name, shown, *sizes, over(values), len(values)))
    head = ("scaled", "value", "parameters, 1e3", "forward, MFLOP", "accuracy, %", "seeds")
    return table(head, lines)


def slope(rows: dict[float, dict[str, Any]], size: str = "training_flops") -> float:
    """Points of accuracy per doubling of a size."""
    x = [math.log2(row[size]) for row in rows.values()]
    return statistics.linear_regression(x, [100 * r["accuracy"] for r in rows.values()]).slope


def steps(rows: dict[float, dict[str, Any]], *, falling: bool = False) -> list[float]:
    """Gains of accuracy from each value to the next larger model, in points."""
    values = [100 * row["accuracy"] for row in rows.values()]
    values = values[::-1] if falling else values
    return [after - before for before, after in itertools.pairwise(values)]


def explained(rows: Rows, size: str) -> float:
    """Share of the variance of accuracy that the logarithm of a size explains, in per cent."""
    x, y = [math.log2(row[size]) for row in rows], [row["accuracy"] for row in rows]
    return 100 * statistics.correlation(x, y) ** 2


def sentences(axes: dict[str, dict[float, dict[str, Any]]]) -> list[tuple[str, str, float]]:
    """Sentences of appendix D.2, what is measured, and a seed's value, above 0 if it holds."""
    slopes = {axis: slope(rows) for axis, rows in axes.items()}
    depth, width, mlp, patch = (slopes[a] for a in ("depth", "width", "MLP", "patch size"))
    gains = steps(axes["depth"])
    rows = [*{id(row): row for each in axes.values() for row in each.values()}.values()]
    better = explained(rows, "training_flops") - explained(rows, "parameters")
    doubling = "points per doubling of compute"
    return [
        (
            "scaling the depth results in the biggest improvements",
            f"{doubling}, depth - the next",
            depth - max(width, mlp, patch),
        ),
        (
            "diminishing returns are visible after 16 layers",
            "points from 1 to 4 layers - from 4 to 16",
            sum(gains[:2]) - sum(gains[2:]),
        ),
        (
            "scaling the width seems to result in the smallest changes",
            f"{doubling}, the next - width",
            min(depth, mlp, patch) - width,
        ),
        (
            "decreasing the patch size shows surprisingly robust improvements",
            "the smaller of the gains from 16 to 8 and from 8 to 4 pixels, points",
            min(steps(axes["patch size"], falling=True)),
        ),
        (
            "compute might be a better predictor than the number of parameters",
            "variance explained by log compute - by log parameters, %",
            better,
        ),
        (
            "scaling all dimensions proportionally results in robust improvements",
            "the smaller of the gains from depth 2 to 4 and from 4 to 8, points",
            min(steps(axes["all"])),
        ),
    ]


def judged_shapes(found: Results) -> str:
    """The sentences of appendix D.2."""
    each = [sentences({a: found.axis(a, seed) for a in SHAPES}) for seed in found.complete()]
    lines = []
    for of_seeds in zip(*each, strict=True):
        values = [value for *_, value in of_seeds]
        lines.append((*of_seeds[0][:2], interval(values), verdict(values)))
    head = ("sentence", "measured", "here", "verdict")
    return table(head, lines) if lines else "No seed is complete."


def per_doubling(found: Results) -> str:
    """Points of accuracy per doubling of compute, by axis."""
    complete = found.complete()
    lines = [
        (INSTEAD.get(axis, axis), interval([slope(found.axis(axis, s)) for s in complete]))
        for axis in SHAPES
    ]
    return table(("scaled", "points per doubling of compute"), lines)


def optimizers(found: Results) -> str:
    """AdamW and SGD at their best rates, and the paper's."""
    lines: list[tuple[object, ...]] = [
        (name, adam, sgd, f"{adam - sgd:+.2f}", "", "") for name, adam, sgd in TABLE7
    ]
    best = {name: found.best("optimizer", name, rates) for name, (*_, rates) in OPTIMIZERS.items()}
    tests = {
        name: {} if rate is None else found.of("optimizer", name, rate)
        for name, rate in best.items()
    }
    gap = minus(tests["AdamW"], tests["SGD"])
    each = [over([*test.values()]) for test in tests.values()]
    rates = ", ".join("-" if rate is None else f"{rate:g}" for rate in best.values())
    lines.append(("R[1, 1] here, in domain", *each, interval(gap), rates, verdict(gap)))
    head = ("model", "Adam, %", "SGD, %", "Adam - SGD", "rates", "Adam above SGD")
    return table(head, lines)


def counted_models() -> dict[str, dict[str, Any]]:
    """The counts of every named model, by its name."""
    return {row["model"]: row for row in load("papers/compute/results")["models"]}


def per_flop(content: dict[str, Any]) -> str:
    """Operations per second against ViT-B/16's, and the largest batch."""
    models = counted_models()
    lines = []
    for row in content["speed"]:
        ratio = span(row)
        rate, gflops = f"{row['images_per_second']:.2f}", f"{row['flops_per_second'] / 1e9:.0f}"
        batch = f"{models[row['model']]['largest_batch']:,}"
        lines.append((f"`{row['model']}`", row["way"], rate, gflops, ratio, batch))
    head = ("model", "", "images/s", "GFLOP/s", "per FLOP, against ViT-B/16", "largest batch")
    return table(head, lines) if lines else "Not measured yet."


def judged_speed(content: dict[str, Any]) -> str:
    """The two sentences of Figure 12's caption."""
    models = counted_models()
    kept = {name: row["activation_bytes"] / row["training_flops"] for name, row in models.items()}
    speed = [row for row in content["speed"] if row["model"].startswith("bit_")]
    rounds = [row[end] for row in speed for end in ("ratio_min", "ratio_max")]
    lines: list[tuple[str, ...]] = []
    if rounds:
        near = all(1 / COMPARABLE <= ratio <= COMPARABLE for ratio in rounds)
        lines.append(
            (
                "ViT models have speed comparable to similar ResNets",
                f"BiTs per FLOP against ViT-B/16, all rounds within a factor of {COMPARABLE:g}",
                f"{min(rounds):.2f} to {max(rounds):.2f}",
                SEEN if near else NOT_SEEN,
            )
        )
    for vit, bit in (("vit_b16", "bit_r101x1"), ("vit_l16", "bit_r152x4")):
        less = kept[bit] / kept[vit]
        lines.append(
            (
                "ViT models are clearly more memory-efficient",
                f"activations per operation, `{bit}` over `{vit}`",
                f"{less:.2f}",
                SEEN if less > 1 else NOT_SEEN,
            )
        )
    return table(("sentence", "measured", "here", "verdict"), lines)


def facts(content: dict[str, Any]) -> str:
    """Settings and cost."""
    rows, settings = content["rows"], content["settings"]
    hours, planned = sum(r["cpu_seconds"] for r in rows) / 3600, settings["seeds"] * len(arms())
    count = f"{len(rows)}" + (f" of {planned}" if len(rows) < planned else "")
    images = rows[0]["images"] if rows else {"train": 0, "val": 0, "test": 0}
    return fill(
        f"{count} runs of {settings['steps']} steps of {settings['batch']} images on "
        f"{images['train']:,} images of train, {images['val']:,} of val and {images['test']:,} of "
        f"test, {hours:.2f} CPU hours on one thread of a shared {content['hardware']['cpu']}. ± "
        "behind an accuracy is the standard deviation over the seeds, behind a difference or a "
        "slope half of the 95 % interval (Student); differences are paired by seed.",
        100,
    )


def text(content: dict[str, Any]) -> dict[str, str]:
    """Everything between the markers."""
    found = Results(content)
    return {
        "facts": facts(content),
        "heads": heads(found),
        "judged_heads": judged_heads(found),
        "shapes": shapes(found),
        "per_doubling": per_doubling(found),
        "judged_shapes": judged_shapes(found),
        "optimizers": optimizers(found),
        "per_flop": per_flop(content),
        "judged_speed": judged_speed(content),
    }


def draw(content: dict[str, Any]) -> None:
    """Accuracy against compute for each axis of the shapes."""
    from matplotlib.ticker import FuncFormatter

    from vit.extensions.reports.drawing import LIGHT, label_axes, new_figure, png, style_axes

    found, figure = Results(content), new_figure(6.4, 4.0)
    axes = figure.add_subplot()
    style_axes(axes)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    colours = (LIGHT.accent, LIGHT.second, LIGHT.third, "#62a6d2", LIGHT.ink)
    for (axis, _), colour in zip(SHAPES.items(), colours, strict=True):
        seeds = [found.axis(axis, seed) for seed in found.seeds]
        names = seeds[0] if seeds else {}
        middle = next((r["training_flops"] for r in found.rows if r["name"] == "centre"), 1)
        x = [row["training_flops"] / middle for row in names.values()]
        each = [[100 * s[value]["accuracy"] for s in seeds if value in s] for value in names]
        y = [statistics.mean(values) for values in each]
        error = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in each]
        style = {"color": colour, "marker": "o", "markersize": 4, "capsize": 2}
        axes.errorbar(x, y, error, label=INSTEAD.get(axis, axis), **style)
    label_axes(axes, x="compute, relative to the centre", y="test accuracy, %")
    axes.legend(frameon=False, fontsize=8, loc="lower right", labelcolor=LIGHT.ink)
    (ROOT / "docs" / "ablations.png").write_bytes(png(figure))


if __name__ == "__main__":
    results = load("papers/ablations/results")
    raise SystemExit(generate(PAGE, filled(PAGE, **text(results)), figure=lambda: draw(results)))
