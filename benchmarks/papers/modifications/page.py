"""docs/variants.md."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import yaml
from scipy.stats import spearmanr

from benchmarks.lib.pages import ROOT, filled, generate, load, over, table
from benchmarks.papers.modifications.run import ARMS, BASELINE, MIXED, RATES
from benchmarks.papers.positions.page import NAMES, Rows
from benchmarks.papers.positions.run import POOL_PER_CLASS

PAGE = ROOT / "docs" / "variants.md"
PAPER: dict[str, list[float]] = yaml.safe_load(Path(__file__).with_name("paper.yaml").read_text())
"""Narang et al. (arXiv:2102.11972), Table 1: early and final loss of pre-training on C4."""

METHOD = """\
Rows of arXiv:2102.11972, Table 1, that an encoder has, and a few more. There: T5 of 223M
parameters, its loss in pre-training. Here: a ViT of width {width}, depth {depth} and {num_heads}
heads with the mean of the patches as its features, from random weights, and its cross-entropy on
{tests} test images of {name}: early, after {early} steps, and after all {steps}, of {batch} images
of {pixels} pixels in patches of {patch_size}. AdamW at {lr:g}: {choice}, a loss of the baseline
with another seed on {pool} images that are in neither train nor test. {warmup} steps of warm-up,
linear decay; mirroring is the only augmentation. Nothing else is chosen on any score, and the last
weights count. {count} trainings, {hours:.1f} CPU hours, one thread of a shared {cpu}. Operations
are multiply-adds times two, of one image; steps/s are training steps per CPU second, measured in
turns.
"""
RULE = """\
*Better* and *worse*: the loss differs from the baseline's mean by more than twice the deviation of
the baseline's {seeds} seeds, {twice:.3f}; *within noise*: it does not. A row with one seed says
less than its verdict. More layers have heads of the same size, and their number and the hidden size
divided by as much, so that parameters and operations stay. Windows are 4 x 4 patches and shifted,
axes alternate, and BigBird has blocks of 2 tokens, so that 64 are more than it sees. Experts and
recurrent networks cost more operations than the baseline, as the table shows.
Rows without steps/s were trained later, on another processor. Not in the paper: {absent}.
"""


class Claim(NamedTuple):
    """What the paper's table says of some rows."""

    text: str
    arms: tuple[str, ...]
    sign: int
    """Of the difference of losses: -1 better, 1 worse, 0 little."""


CLAIMS = (
    Claim("GELU and Swish are as good as ReLU", ("GELU", "Swish"), 0),
    Claim("ELU, SELU, sigmoid and softplus are worse", ("ELU", "SELU", "sigmoid", "softplus"), 1),
    Claim("gates are better", ("GLU", "GEGLU", "ReGLU", "SwiGLU", "LiGLU"), -1),
    Claim("RMSNorm is better", ("RMSNorm",), -1),
    Claim("ReZero is worse, with any norm", tuple(arm for arm in ARMS if "ReZero" in arm), 1),
    Claim("Fixup is worse", ("Fixup",), 1),
    Claim("depth against width changes little", tuple(a for a in ARMS if "x layers" in a), 0),
    Claim("shared layers are worse", ("layers shared",), 1),
    Claim("experts are better", ("mixture of experts", "Switch"), -1),
    Claim("a funnel is worse", ("funnel",), 1),
    Claim("synthesizers are worse", tuple(a for a in MIXED if "synthesizer" in a), 1),
    Claim("convolutions are worse", ("lightweight convolution", "dynamic convolution"), 1),
)


class Losses:
    """Final losses of the arms, and the noise of the baseline."""

    def __init__(self, rows: Rows, data: str) -> None:
        by_arm = {arm: list(rows.of(data, arm, lambda row: row["loss"]).values()) for arm in ARMS}
        self.of = {arm: statistics.mean(losses) for arm, losses in by_arm.items() if losses}
        baseline = by_arm[BASELINE]
        self.seeds = len(baseline)
        self.twice = 2 * statistics.stdev(baseline) if self.seeds > 1 else math.inf

    def sign(self, arms: Sequence[str]) -> int | None:
        """-1 for a lower loss than the baseline's, 1 for a higher one, 0 within noise; None where
        an arm is missing."""
        if not set(arms) <= self.of.keys():
            return None
        gap = statistics.mean(self.of[arm] for arm in arms) - self.of[BASELINE]
        return 0 if abs(gap) <= self.twice else int(math.copysign(1, gap))


VERDICTS = {-1: "better", 0: "within noise", 1: "worse", None: "not finished"}


def texts(content: dict[str, Any]) -> dict[str, str]:
    """The generated parts of the page."""
    [(data, setting)] = content["settings"].items()
    rows = Rows(content)
    losses = Losses(rows, data)
    absent = ", ".join(arm for arm in ARMS if arm not in PAPER)
    rule = RULE.format(seeds=losses.seeds, twice=losses.twice, absent=absent)
    return {
        "arms": arms(rows, losses, data, content["steps_per_second"]),
        "method": f"{method(content, data, setting)}\n\n{fill(rule, 100)}",
        "claims": claims(losses),
        "agreement": fill(agreement(rows, losses, data), 100),
    }


def arms(rows: Rows, losses: Losses, data: str, speeds: dict[str, float]) -> str:
    """All rows, in the paper's order."""
    lines = []
    for arm in ARMS:
        mine = [row for row in rows.rows if (row["data"], row["arm"]) == (data, arm)]
        if not mine:
            continue
        early, final = (f"{value:.3f}" if value else "" for value in PAPER.get(arm, (0, 0)))
        cells = [
            f"{mine[0]['params'] / 1e3:.0f}k",
            f"{mine[0]['flops'] / 1e6:.1f}M",
            f"{speeds[arm]:.1f}" if arm in speeds else "",
            *(over([row[key] for row in mine], ".3f") for key in ("early_loss", "loss")),
            over([row["accuracy"] for row in mine]),
        ]
        verdict = "baseline" if arm == BASELINE else VERDICTS[losses.sign([arm])]
        lines.append((arm, *cells, len(mine), verdict, early, final))
    head = ("modification", "parameters", "operations", "steps/s", "early loss", "final loss")
    return table((*head, "accuracy, %", "seeds", "verdict", "early there", "final there"), lines)


def method(content: dict[str, Any], data: str, setting: dict[str, Any]) -> str:
    """How the figures were made."""
    hours = sum(row["seconds"] for row in content["rows"]) / 3600
    facts = {**setting, "name": NAMES[data], "hours": hours, "count": len(content["rows"])}
    facts |= {"early": setting["steps"] // 4, "tests": 10 * setting["test_per_class"]}
    tried = {row["arm"]: row["loss"] for row in content["rows"] if row["arm"] in RATES}
    choice = [f"{RATES[arm]:g} has {loss:.3f}" for arm, loss in tried.items()]
    facts |= {"choice": " and ".join(choice), "pool": 10 * POOL_PER_CLASS}
    return fill(METHOD.format(**facts, cpu=content["hardware"]["cpu"]), 100)


def claims(losses: Losses) -> str:
    """What the paper says of groups of rows, and what is seen here."""
    lines = []
    for claim in CLAIMS:
        sign, each = losses.sign(claim.arms), {losses.sign([arm]) for arm in claim.arms}
        if claim.sign == 0 and sign is not None:
            here = ", ".join(VERDICTS[one] for one in sorted(each))
            lines.append((claim.text, here, "seen" if each == {0} else "not seen"))
            continue
        answer = "not seen" if sign == 0 else "opposite"
        if sign in (None, claim.sign):
            answer = VERDICTS[None] if sign is None else "seen"
        lines.append((claim.text, VERDICTS[sign], answer))
    return table(("there", "here", "the claim is"), lines)


def agreement(rows: Rows, losses: Losses, data: str) -> str:
    """How the orders of losses of the two tables agree, and of our early and final losses."""
    both = [arm for arm in losses.of if arm in PAPER]
    early = {
        arm: statistics.mean(rows.of(data, arm, lambda row: row["early_loss"]).values())
        for arm in both
    }
    ours = [losses.of[arm] for arm in both]
    start, end = ([PAPER[arm][i] for arm in both] for i in (0, 1))
    pairs = {
        "our final losses and the paper's": (ours, end),
        "our early losses and the paper's": ([early[arm] for arm in both], start),
        "our early and final losses": ([early[arm] for arm in both], ours),
    }
    found = []
    for what, (first, second) in pairs.items():
        result: Any = spearmanr(first, second)
        rho = float(result.statistic)
        low, high = interval(rho, len(both))
        found.append(f"{what} {rho:.2f} ({low:.2f} to {high:.2f})")
    return (
        f"Spearman's rank correlation over the {len(both)} rows that both tables have, and its "
        f"95 % interval: {'; '.join(found)}. 1 is the same order, 0 none in common."
    )


def interval(rho: float, n: int) -> tuple[float, float]:
    """95 %, by Fisher's transformation with the variance of Bonett and Wright (2000)."""
    z, half = math.atanh(rho), 1.96 * math.sqrt((1 + rho**2 / 2) / (n - 3))
    return math.tanh(z - half), math.tanh(z + half)


if __name__ == "__main__":
    raise SystemExit(generate(PAGE, filled(PAGE, **texts(load("papers/modifications/results")))))
