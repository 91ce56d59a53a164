"""docs/complexity.md and its figure."""

import math
import statistics
from textwrap import fill
from typing import Any, NamedTuple

from benchmarks.lib.pages import ROOT, filled, generate, load, table
from benchmarks.lib.sweep import power
from benchmarks.papers.complexity.run import HEAD

PAGE = ROOT / "docs" / "complexity.md"
GRADIENTS = ROOT / "docs" / "images" / "complexity_gradients.png"
NEAR = 0.2
"""Two exponents that differ by less are the same."""
UPPER = {"tokens": 512, "width": 256}
"""Where the calls themselves no longer take much of the time."""

METHOD = """\
One layer of a mixer alone, for one image in float32: forward and backward, the gradient of the
tokens included. Tokens: {tokens} at width {width}; widths: {widths} at {at} tokens; heads of {head}
channels. {rounds} rounds in which all mixers take turns, of each size after the other; CPU time of
one thread of a shared {cpu}, torch {torch}; {minutes:.0f} minutes. An exponent is the slope of log
time (the median of the rounds) over log size, its interval the 95 % one from the distances of the
sizes to the line (Student's t): these contain the machine's drift from size to size, and what is
not a straight line. Both ranges have the size of {at} tokens at width {width}: between the two
measurements the machine changed by factors of {low:.2f} to {high:.2f}, by mixer. The exponent of
the operations, which PyTorch counts for both passes, is over the same range, so that it is no whole
number where two terms add up. Bytes are those that autograd keeps for the backward pass, parameters
apart. Options: {options}.
"""


class Kind(NamedTuple):
    """What theory says of an arm: n tokens, d width, k sums or kernel, g patches along an axis."""

    cost: str
    steps: str
    path: str
    layers: Any
    """From rows and columns of the grid to the longest path in layers."""


def near(rows: int, columns: int) -> int:
    """Kernels of 7 reach 3 tokens further in every layer."""
    return math.ceil((rows * columns - 1) / 3)


def shifted(rows: int, columns: int) -> int:
    """Windows of 4, which in every other layer lie 2 further."""
    return 2 * max(rows, columns) // 4 - 1


def one(rows: int, columns: int) -> int:
    return 1


def two(rows: int, columns: int) -> int:
    return 2


THEORY = {
    "softmax": Kind("n² d + n d²", "1", "1", one),
    "window": Kind("s n d + n d²", "1", "2 g / √s - 1", shifted),
    "axial": Kind("n^1.5 d + n d²", "1", "1", one),
    "axial, alternate": Kind("n^1.5 d + n d²", "1", "2", two),
    "bigbird": Kind("n d + n d²", "1", "2", two),
    "linformer": Kind("k n d + n d²", "1", "1", one),
    "rnn": Kind("n d²", "n", "1", one),
    "lstm": Kind("n d²", "n", "1", one),
    "gru": Kind("n d²", "n", "1", one),
    "convolution": Kind("k n d²", "1", "⌈2 (n - 1) / (k - 1)⌉", near),
    "convolution, depthwise": Kind("k n d + n d²", "1", "⌈2 (n - 1) / (k - 1)⌉", near),
    "lightweight": Kind("k n d + n d²", "1", "⌈2 (n - 1) / (k - 1)⌉", near),
    "dynamic": Kind("k n d + n d²", "1", "⌈2 (n - 1) / (k - 1)⌉", near),
    "synthesizer, dense": Kind("n² d + n d²", "1", "1", one),
    "synthesizer, random": Kind("n² d + n d²", "1", "1", one),
    "synthesizer, factorized": Kind("n² d + n d²", "1", "1", one),
}
MIXED = "products as operations; copies, softmax and calls at most linearly"
STEPS = "256 steps of calls, which take most of the time at small widths"
WRITTEN = "n x n scores are written and read, and outgrow the caches"
SEPARATE = "products as operations; kernels that read and write at most linearly"
EXPLAINED = {
    **{("width", arm): MIXED for arm in ("window", "axial", "axial, alternate", "bigbird")},
    **{("width", arm): MIXED for arm in ("linformer", *(a for a in THEORY if "synth" in a))},
    **{("width", arm): SEPARATE for arm in ("convolution, depthwise", "lightweight", "dynamic")},
    **{("width", arm): STEPS for arm in ("rnn", "gru")},
    **{("tokens", arm): WRITTEN for arm in ("synthesizer, dense", "synthesizer, factorized")},
}
"""Why the time does not grow as the operations do, by axis and arm. For widths: by torch.profiler,
summed over matrix products and over all else, from 64 to 1,024 at 256 tokens."""


class Results:
    """The sizes of one axis, by what changes."""

    def __init__(self, content: dict[str, Any], axis: str) -> None:
        rows = [row for row in content["rows"] if row["axis"] == axis]
        self.axis = axis
        self.rows: dict[Any, Any] = {
            row[axis] if axis in row else axis: row["arms"] for row in rows
        }

    def seconds(self, arm: str, way: str, size: Any) -> float:
        """The median."""
        return statistics.median(self.rows[size][arm][way])

    def counted(self, arm: str, what: str, least: int = 0) -> float:
        """The exponent of bytes or operations."""
        sizes = [size for size in self.rows if size >= least]
        return power(sizes, [self.rows[size][arm][what] for size in sizes])["exponent"]

    def timed(self, arm: str, way: str, least: int = 0) -> tuple[float, float]:
        """The exponent of the time, and half of its interval."""
        sizes = [size for size in self.rows if size >= least]
        values = [self.seconds(arm, way, size) for size in sizes]
        found = power(sizes, values)
        return found["exponent"], found["half_interval"]

    def beats(self, arm: str, way: str) -> int | None:
        """The smallest size from which on the arm is faster than softmax attention."""
        found = None
        for size in reversed(self.rows):
            if self.seconds(arm, way, size) >= self.seconds("softmax", way, size):
                break
            found = size
        return found


def verdict(found: Results, arm: str, way: str) -> str:
    """Whether the time grows as the operations do; KeyError if that is not explained."""
    measured, counted = found.timed(arm, way)[0], found.counted(arm, "operations")
    if abs(measured - counted) <= NEAR:
        return "as operations"
    least = UPPER[found.axis]
    if len([size for size in found.rows if size >= least]) > 2:
        upper = found.timed(arm, way, least)[0], found.counted(arm, "operations", least)
        if abs(upper[0] - upper[1]) <= NEAR:
            return f"from {least} on as operations ({upper[0]:.2f}, {upper[1]:.2f})"
    return EXPLAINED[found.axis, arm]


def exponents(found: Results, arms: list[str]) -> str:
    """Of operations, time and bytes."""
    lines = []
    for arm in arms:
        times = [found.timed(arm, way) for way in ("forward", "both")]
        operations, kept = (found.counted(arm, what) for what in ("operations", "bytes"))
        cells = [f"{mean:.2f} ± {half:.2f}" for mean, half in times]
        forward, both = (verdict(found, arm, way) for way in ("forward", "both"))
        grow = both if forward == both else f"{both}; forward: {forward}"
        lines.append((arm, f"{operations:.2f}", cells[1], cells[0], grow, f"{kept:.2f}"))
    head = "mixer|operations|time, both passes|time, forward|the time grows|bytes kept"
    return table(head.split("|"), lines)


def theory(content: dict[str, Any]) -> str:
    """The columns of Table 1."""
    found, lines = Results(content, "tokens"), []
    for row in content["paths"]:
        kind, grids = THEORY[row["arm"]], content["settings"]["paths"]
        layers = [str(size["layers"]) for size in row["sizes"]]
        closed = [str(kind.layers(*grid)) for grid in grids]
        chains = [str(size["chain"]) for size in row["sizes"]]
        faster = found.beats(row["arm"], "both")
        lines.append(
            (
                *(row["arm"], kind.cost, kind.steps, ", ".join(chains)),
                *(kind.path, ", ".join(closed), ", ".join(layers)),
                "" if row["arm"] == "softmax" else "never" if faster is None else f"{faster:,}",
            )
        )
    sizes = " and ".join(str(rows * columns) for rows, columns in content["settings"]["paths"])
    head = (
        f"mixer|operations, order|steps|chain at {sizes} tokens|longest path, layers|at {sizes} "
        f"tokens|measured|faster than softmax from tokens"
    )
    return table(head.split("|"), lines)


def times(found: Results, arms: list[str]) -> str:
    """Milliseconds of both passes."""
    lines = [
        (arm, *(f"{1e3 * found.seconds(arm, 'both', size):,.3g}" for size in found.rows))
        for arm in arms
    ]
    return table(("mixer", *(f"{size:,}" for size in found.rows)), lines)


def vit_s(content: dict[str, Any]) -> str:
    """The tokens of ViT-S/16."""
    found, arms = Results(content, "vit_s16"), content["settings"]["arms"]
    lines = []
    for arm in arms:
        row = found.rows["vit_s16"][arm]
        ratios = [
            a / b
            for a, b in zip(row["both"], found.rows["vit_s16"]["softmax"]["both"], strict=True)
        ]
        ms = [f"{1e3 * found.seconds(arm, way, 'vit_s16'):.1f}" for way in ("forward", "both")]
        kept, count = f"{row['bytes'] / 2**20:.1f}", f"{row['operations'] / 1e9:.2f}"
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        lines.append((arm, count, *ms, spread, kept))
    head = "mixer|operations, 10⁹|forward, ms|both passes, ms|time over that of softmax|MiB kept"
    return table(head.split("|"), lines)


def method(content: dict[str, Any]) -> str:
    """How the figures were made."""
    settings = content["settings"]
    at, width = settings["grid"][0] * settings["grid"][1], settings["width"]
    by_tokens, by_width = Results(content, "tokens"), Results(content, "width")
    again = [
        by_width.seconds(arm, "both", width) / by_tokens.seconds(arm, "both", at)
        for arm in settings["arms"]
    ]
    facts = {
        "low": min(again),
        "high": max(again),
        "tokens": ", ".join(f"{rows * columns:,}" for rows, columns in settings["grids"]),
        "widths": ", ".join(f"{width:,}" for width in settings["widths"]),
        "at": at,
        "head": HEAD,
        "cpu": content["hardware"]["cpu"],
        "torch": content["versions"]["torch"],
        "minutes": sum(content["seconds"]) / 60,
        "options": "; ".join(
            f"{arm} ({', '.join(f'{key} {value}' for key, value in part.items() if key != 'name')})"
            for arm, part in settings["arms"].items()
            if len(part) > 1
        ),
    }
    return fill(METHOD.format(**settings | facts), 100)


def texts(content: dict[str, Any]) -> dict[str, str]:
    """The generated parts of the page."""
    arms = [*content["settings"]["arms"]]
    tokens, width = Results(content, "tokens"), Results(content, "width")
    return {
        "method": method(content),
        "theory": theory(content),
        "tokens": exponents(tokens, arms),
        "tokens_ms": times(tokens, arms),
        "width": exponents(width, arms),
        "width_ms": times(width, arms),
        "vit_s16": vit_s(content),
        "gradients": gradients(load("papers/complexity/gradients")),
    }


def geometric(norms: list[list[float]], place: int) -> float:
    """Mean over the seeds of the logarithm of the norms at a place."""
    return statistics.geometric_mean(seed[place] for seed in norms)


def gradients(content: dict[str, Any]) -> str:
    """Norms of the Jacobians, and their factor per token."""
    shown = (2, 16, 64, 256)
    lines = []
    for row in content["rows"]:
        norms = {n: geometric(row["norms"], k) for k, n in enumerate(row["places"])}
        factor = (norms[16] / norms[2]) ** (1 / 14)
        lines.append((row["network"], *(f"{norms[n]:.2g}" for n in shown), f"{factor:.3f}"))
    head = ("network", *(f"token {n}" for n in shown), "factor per token, 2 to 16")
    measured = (
        "Width {width}, {seeds} seeds (geometric mean), {directions} random directions, float64."
    )
    return f"{table(head, lines)}\n\n{measured.format(**content)}"


SHOWN = (
    *("softmax", "window", "axial, alternate", "bigbird", "linformer"),
    *("lstm", "convolution", "lightweight", "synthesizer, random"),
)
"""In the figure."""


def draw(content: dict[str, Any]) -> None:
    """Time and bytes against tokens, both in logarithms."""
    from vit.extensions.reports.drawing import LIGHT, label_axes, new_figure, png, style_axes

    found = Results(content, "tokens")
    figure = new_figure(9.6, 3.8)
    colours = (LIGHT.accent, LIGHT.second, LIGHT.third)
    styles = [(colour, line) for line in ("-", "--", ":") for colour in colours]
    for place, (title, unit) in enumerate((("both passes, ms", 1e3), ("MiB kept", 2**-20))):
        axes = figure.add_subplot(1, 2, place + 1)
        style_axes(axes)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for arm, (colour, line) in zip(SHOWN, styles, strict=True):
            y = [
                unit
                * (found.rows[size][arm]["bytes"] if place else found.seconds(arm, "both", size))
                for size in found.rows
            ]
            axes.plot([*found.rows], y, line, color=colour, marker="o", markersize=3, label=arm)
        axes.set_xticks([*found.rows], [f"{size:,}" for size in found.rows])
        axes.minorticks_off()
        label_axes(axes, x="tokens", y=title)
        if not place:
            ink = LIGHT.ink
            axes.legend(frameon=False, fontsize=7, ncols=2, handlelength=4, labelcolor=ink)
    PAGE.with_suffix(".png").write_bytes(png(figure))


def draw_gradients(content: dict[str, Any]) -> None:
    """Norms of the Jacobians against the token, both in logarithms."""
    from vit.extensions.reports.drawing import LIGHT, label_axes, new_figure, png, style_axes

    figure = new_figure(6.4, 3.8)
    axes = figure.add_subplot(1, 1, 1)
    style_axes(axes)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    colours = (LIGHT.accent, LIGHT.second, LIGHT.third)
    styles = [(colour, line) for line in ("-", "--") for colour in colours]
    for row, (colour, line) in zip(content["rows"], styles, strict=True):
        y = [geometric(row["norms"], place) for place in range(len(row["places"]))]
        axes.plot(
            row["places"], y, line, color=colour, marker="o", markersize=3, label=row["network"]
        )
    axes.set_ylim(1e-12, 100)
    axes.set_xticks(row["places"], [f"{n:,}" for n in row["places"]])
    axes.minorticks_off()
    label_axes(axes, x="token n", y="norm of its Jacobian by token 1")
    axes.legend(frameon=False, fontsize=7, handlelength=4, labelcolor=LIGHT.ink)
    GRADIENTS.write_bytes(png(figure))


def draw_both() -> None:
    draw(load("papers/complexity/results"))
    draw_gradients(load("papers/complexity/gradients"))


if __name__ == "__main__":
    content = texts(load("papers/complexity/results"))
    raise SystemExit(generate(PAGE, filled(PAGE, **content), figure=draw_both))
