"""docs/positions.md."""

import statistics
from collections.abc import Callable
from textwrap import fill
from typing import Any, NamedTuple

from benchmarks.lib.pages import ROOT, filled, generate, load, over, table
from benchmarks.lib.sweep import by_seed, half_interval
from benchmarks.papers.positions.run import ARMS, PLACES, SHAW, TEST_SIZES

PAGE = ROOT / "docs" / "positions.md"
NAMES = {"digits": "digits", "cifar10": "CIFAR-10 (JPEG)"}
BLEU = {0: "12.5", 1: "25.5", 2: "25.8", 4: "25.9"}
"""Shaw et al. (arXiv:1803.02155), Table 3."""
Score = Callable[[dict[str, Any]], float]

METHOD = """\
A ViT of width {width} and depth {depth} with the mean of the patches as its features, from random
weights: {steps}. AdamW at {lr:g}, {warmup} steps of warm-up, linear decay, no augmentation but
mirroring of CIFAR-10's. Settings and claims were written down before the first result; nothing is
chosen on any score, and the last weights count. ± is the standard deviation over the seeds. 5-shot:
ridge regression on features of five images per class that the training did not see, mean of five
draws. n/a: not in the paper's table, which is of ViT-B/16, pre-trained on JFT, 5-shot on ImageNet.
{count} trainings, {hours:.1f} CPU hours, one thread of a shared {cpu}.
"""


class Claim(NamedTuple):
    """A sentence of a paper as a difference of scores, paired by seed."""

    text: str
    first: list[str]
    second: list[str]
    """Arms, whose scores are averaged."""
    equal: bool = False
    """The claim is that there is no difference."""
    score: Score = lambda row: row["accuracy"]
    data: tuple[str, ...] = ("digits", "cifar10")


POSITIONED = [f"{kind}, {where}" for kind in ("1-D", "2-D") for where in PLACES] + ["relative"]


def lost(row: dict[str, Any]) -> float:
    """Points that a model of 32 pixels loses at 64."""
    return row["by_size"]["64"] - row["by_size"]["32"]


def five_shot(row: dict[str, Any]) -> float:
    return row["five_shot"]


CLAIMS = (
    Claim("without positions it is worse", POSITIONED, ["none"]),
    Claim("the same, 5-shot", POSITIONED, ["none"], score=five_shot),
    Claim("2-D is as good as 1-D", ["2-D, stem"], ["1-D, stem"], equal=True),
    Claim("relative is as good as 1-D", ["relative"], ["1-D, stem"], equal=True),
    Claim("1-D: every layer is as good as the stem", ["1-D, layers"], ["1-D, stem"], equal=True),
    Claim("1-D: shared is as good as the stem", ["1-D, shared"], ["1-D, stem"], equal=True),
    Claim("Shaw: k = 1 is better than k = 0", ["Shaw, k=1"], ["Shaw, k=0"]),
    Claim("Shaw: k = 8 is as good as k = 2", ["Shaw, k=8"], ["Shaw, k=2"], equal=True),
    Claim(
        "ALiBi loses less than learned 1-D from 32 to 64 pixels",
        ["ALiBi"],
        ["1-D, stem"],
        score=lost,
        data=("cifar10",),
    ),
)


class Rows:
    """The trainings of the results file."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.rows: list[dict[str, Any]] = content["rows"]

    def of(self, data: str, arm: str, score: Score) -> dict[int, float]:
        """Scores by seed."""
        return by_seed(self.rows, score, data=data, arm=arm)

    def cell(self, data: str, arm: str, score: Score) -> str:
        """Mean and deviation over the seeds."""
        values = [*self.of(data, arm, score).values()]
        return over(values) if values else ""

    def difference(self, data: str, claim: Claim) -> tuple[float, float, int] | None:
        """Mean of first - second over the seeds that all arms have, half of its 95 % interval, and
        the number of seeds; None below three."""
        sides = [
            [self.of(data, arm, claim.score) for arm in arms]
            for arms in (claim.first, claim.second)
        ]
        seeds = set.intersection(*(set(scores) for side in sides for scores in side))
        gains = [
            statistics.mean(scores[seed] for scores in sides[0])
            - statistics.mean(scores[seed] for scores in sides[1])
            for seed in sorted(seeds)
        ]
        if len(gains) < 3:
            return None
        return statistics.mean(gains), half_interval(gains), len(gains)


def verdict(mean: float, half: float, equal: bool) -> str:
    """Of a difference and half of its interval."""
    if abs(mean) <= half:
        return "within noise" + (", as claimed" if equal else "")
    return "seen" if mean > 0 and not equal else "not seen"


def table8(rows: Rows, data: str, score: Score) -> str:
    """In the paper's shape."""
    lines = [
        (kind, *(rows.cell(data, arm, score) or "n/a" for arm in arms))
        for kind, arms in {
            "none": ("none",),
            **{kind: tuple(f"{kind}, {where}" for where in PLACES) for kind in ("1-D", "2-D")},
            "relative": ("relative",),
        }.items()
    ]
    lines = [(*line, *("n/a",) * (4 - len(line))) for line in lines]
    return table(("positions", "stem", "every layer", "every layer, shared"), lines)


def texts(content: dict[str, Any]) -> dict[str, str]:
    """The generated parts of the page."""
    rows, settings = Rows(content), trained(content)
    ours = [
        f"Ours, {NAMES[name]}, {what}, %:\n\n{table8(rows, name, score)}"
        for name in settings
        for what, score in (("test accuracy", CLAIMS[0].score), ("5-shot", five_shot))
    ]
    return {
        "ours": "\n\n".join(ours),
        "method": method(content),
        "claims": claims(rows, settings),
        "curves": curves(rows, settings),
        "sizes": sizes(rows),
        "shaw": shaw(rows, settings),
    }


def trained(content: dict[str, Any]) -> dict[str, Any]:
    """The settings of the data sets of which there are trainings."""
    data = {row["data"] for row in content["rows"]}
    return {name: setting for name, setting in content["settings"].items() if name in data}


def method(content: dict[str, Any]) -> str:
    """How the figures were made."""
    settings = trained(content)
    steps = "; ".join(
        f"{NAMES[name]}, {s['steps']} steps of {s['batch']} images of {s['pixels']} pixels in "
        f"patches of {s['patch_size']}"
        for name, s in settings.items()
    )
    hours = sum(row["seconds"] for row in content["rows"]) / 3600
    facts = {**next(iter(settings.values())), "steps": steps, "hours": hours}
    facts |= {"count": len(content["rows"]), "cpu": content["hardware"]["cpu"]}
    return fill(METHOD.format(**facts), 100)


def claims(rows: Rows, settings: dict[str, Any]) -> str:
    lines = []
    for claim in CLAIMS:
        for name in (name for name in settings if name in claim.data):
            found = rows.difference(name, claim)
            if found is None:
                lines.append((claim.text, NAMES[name], "", "", "not finished"))
                continue
            mean, half, n = found
            answer = verdict(mean, half, claim.equal)
            lines.append((claim.text, NAMES[name], f"{mean:+.1f} ± {half:.1f}", n, answer))
    return table(("claim", "data", "difference, points", "seeds", "verdict"), lines)


def curves(rows: Rows, settings: dict[str, Any]) -> str:
    parts = []
    for name, setting in settings.items():
        steps = [setting["steps"] * quarter // 4 for quarter in range(1, 5)]
        lines = [
            (
                arm,
                *(rows.cell(name, arm, lambda r, s=step: r["curve"][str(s)]) for step in steps),
                rows.cell(name, arm, five_shot),
                len(rows.of(name, arm, five_shot)),
            )
            for arm in ARMS
        ]
        head = ("positions", *(f"{step} steps" for step in steps), "5-shot", "seeds")
        parts.append(f"{NAMES[name]}, test accuracy, %:\n\n{table(head, lines)}")
    return "\n\n".join(parts)


def sizes(rows: Rows) -> str:
    lines = [
        (arm, *(rows.cell("cifar10", arm, lambda r, s=s: r["by_size"][str(s)]) for s in TEST_SIZES))
        for arm in ARMS
    ]
    head = ("positions", *(f"{size} pixels" for size in TEST_SIZES))
    return f"CIFAR-10 (JPEG), test accuracy, %:\n\n{table(head, lines)}"


def shaw(rows: Rows, settings: dict[str, Any]) -> str:
    lines = [
        (
            k,
            BLEU.get(k, ""),
            *(rows.cell(name, f"Shaw, k={k}", lambda r: r["accuracy"]) for name in settings),
        )
        for k in SHAW
    ]
    head = ("k", "BLEU there", *(f"{NAMES[name]}, %" for name in settings))
    return table(head, lines)


if __name__ == "__main__":
    raise SystemExit(generate(PAGE, filled(PAGE, **texts(load("papers/positions/results")))))
