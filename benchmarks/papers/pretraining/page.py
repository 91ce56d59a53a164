"""The tables of docs/pretraining.md; with --runs DIR also docs/images/pretraining.jpg."""

import math
import statistics
import sys
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import torch
from scipy.stats import t

from benchmarks.lib.pages import ROOT, filled, generate, load, over, span, table
from benchmarks.lib.sweep import NO_SEED, NOISE, NOT_SEEN, SEEN
from benchmarks.papers.pretraining.run import (
    ARMS,
    BEST_MAE,
    CLAIMS,
    COLUMNS,
    KINDS,
    MASKED,
    PERCENT,
    PREFIX,
    RANDOM,
    Claim,
    best_arms,
)

PAGE = ROOT / "docs" / "pretraining.md"
PICTURES = ROOT / "docs" / "images" / "pretraining.jpg"
NAMES = {"ridge 5": "ridge, 5 images", "ridge 25": "ridge, 25 images"}
SHOWN, ZOOM, GAP = 6, 3, 4
"""Images of the figure; pixels of it for one of theirs; pixels between them."""


class Results:
    """The rows of the results file."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.rows: list[dict[str, Any]] = content["rows"]
        self.best = best_arms(self.rows)

    def values(self, arm: str, *columns: str) -> list[float]:
        """For each seed of an arm, or of the best of a kind: first column less the others."""
        rows = [row for row in self.rows if row["arm"] == self.best.get(arm, arm)]
        return [row[columns[0]] - sum(row[column] for column in columns[1:]) for row in rows]

    def noise(self, *columns: str) -> tuple[float, int]:
        """Deviation over the seeds, pooled over the arms that have several, and its freedom."""
        groups = [self.values(arm, *columns) for arm in ARMS]
        groups = [values for values in groups if len(values) > 1]
        freedom = sum(len(values) - 1 for values in groups)
        squares = sum((len(values) - 1) * statistics.variance(values) for values in groups)
        return math.sqrt(squares / freedom) if freedom else math.nan, freedom

    def difference(self, claim: Claim) -> tuple[float, float] | None:
        """First less second, and half of its 95 % interval; None if one is missing, or the noise
        is unknown."""
        (arm, column), (other, against) = claim.first, claim.second
        if arm == other:
            sides, columns = [self.values(arm, column, against)], (column, against)
        else:
            sides, columns = [self.values(arm, column), self.values(other, against)], (column,)
        deviation, freedom = self.noise(*columns)
        if not all(sides) or not freedom:
            return None
        points = statistics.mean(sides[0]) - sum(statistics.mean(side) for side in sides[1:])
        error = deviation * math.sqrt(sum(1 / len(side) for side in sides))
        return points, float(t.ppf(0.975, freedom)) * error


def verdict(difference: tuple[float, float] | None) -> str:
    """Of a difference and half of its interval."""
    if difference is None:
        return NO_SEED
    points, half = difference
    return SEEN if points > half else NOT_SEEN if points < -half else NOISE


def scores(found: Results) -> str:
    """A row for each arm."""
    columns = [c for c in COLUMNS if c in found.rows[0]]
    head = ("pre-training", *(NAMES.get(c, c) for c in columns), "pre-training, CPU s", "seeds")
    lines = []
    for arm in ARMS:
        cost = found.values(arm, "pretraining_cpu_seconds")
        if not cost:
            continue
        name = f"**{arm}**" if arm == found.best[KINDS[arm]] else arm
        cells = [over(found.values(arm, column)) for column in columns]
        lines.append((name, *cells, f"{statistics.mean(cost):.0f}", len(cost)))
    return table(head, lines)


def judged(found: Results) -> str:
    """A row for each claim."""
    lines = []
    for claim in CLAIMS:
        gap = found.difference(claim)
        points = "-" if gap is None else f"{gap[0]:+.1f} ± {gap[1]:.1f}"
        lines.append((claim.text, claim.there, points, verdict(gap)))
    return table(("claim", "there", "points", "verdict"), lines)


def facts(content: dict[str, Any]) -> str:
    """Settings and cost."""
    s, rows = content["settings"]["setting"], content["rows"]
    minutes = sum(row["cpu_seconds"] for row in rows) / 60
    text = (
        f"A ViT of width {s['width']} and depth {s['depth']} with patches of 4 pixels learns "
        f"{s['steps']:,} steps of {s['batch']} images of CIFAR-10 (JPEG), 50,000 of 32 x 32 pixels "
        "less those of val: as many steps for each arm, and not as much time. It learns by the "
        "recipes of "
        f"`pretrain/`, and is fine-tuned in {s['finetune_steps']} steps of as many images by "
        f"`cifar10/mae`. The decoder of MAE has width {s['decoder_width']} and depth "
        f"{s['decoder_depth']}, the head of AIM two MLPs of width {s['head_width']}. Test: "
        f"{s['test_per_class']} images of each class. Probes learn from the images of the "
        f"{PERCENT[-1]} %, the average of the patches for all but the attentive one; ridge is the "
        f"mean of five draws of so many images of each class; {s['neighbours']} neighbours. "
        f"{len(rows)} rows, {minutes:.0f} CPU minutes on one thread of a shared "
        f"{content['hardware']['cpu']}. ± is the standard deviation over the seeds; bold is the "
        "best arm of its kind by the first seed's accuracy on val."
    )
    return fill(text, 100)


def cost() -> str:
    """What mask tokens in the encoder cost, in operations and time."""
    lines = []
    for row in load("papers/pretraining/cost")["rows"]:
        measured = span(row)
        share = f"{row['ratio'] / row['operations_ratio']:.2f}"
        lines.append((f"`{row['model']}`", f"{row['operations_ratio']:.2f}", measured, share))
    return table(("model", "operations", "time of a step", "time over operations"), lines)


def elsewhere(found: Results) -> str:
    """The gains of masked patches, here and in benchmarks/papers/masked_patches/run.py."""
    there = {entry["percent"]: entry for entry in load("papers/masked_patches/results")["margins"]}
    lines = []
    for percent in PERCENT:
        mean, std = (100 * there[percent][name] for name in ("mean", "std"))
        sides = [found.values(arm, f"{percent} %") for arm in (MASKED, RANDOM)]
        here = statistics.mean(sides[0]) - statistics.mean(sides[1]) if all(sides) else math.nan
        lines.append((f"{percent} %", f"{mean:.1f} ± {std:.1f}", f"{here:.1f}"))
    return table(("labels", "2,000 steps of 128 images, wider and deeper", "here"), lines)


def draw_pictures(runs: Path) -> None:
    """The JPEG of some images of val: true, seen and predicted by MAE, then by AIM."""
    from PIL import Image

    from vit.data.module import ImageData
    from vit.runs.evaluate import Subject

    columns: list[np.ndarray] = []
    for arm in (BEST_MAE, PREFIX):
        folder = runs / f"{list(ARMS).index(arm)}_0" / "pretrained"
        subject = Subject(folder, "val", [])
        data: ImageData = subject.data
        state = torch.load(folder / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
        options = (str(subject.weights), data.facts, subject.recorded["model"])
        model: Any = subject.module_class.for_scoring(*options, lambda state=state: state)
        places = torch.arange(SHOWN) * (len(data.image_set("val")) // SHOWN)
        shown = [data.preprocess(data.open_image("val", int(place))) for place in places]
        images = data.preprocess.normalize(torch.stack(shown))
        draws = torch.Generator().manual_seed(0)
        uniforms = torch.rand(SHOWN, 1, 64, generator=draws)
        if arm == PREFIX:
            uniforms[:] = 0.3
        model.corruption = lambda *_, model=model, uniforms=uniforms: model.draw(uniforms)
        found = model.eval().pictures(images, places)
        names = ("true", "seen", "predicted")[bool(columns) :]
        columns += [found[name].permute(0, 2, 3, 1).byte().numpy() for name in names]
    side = columns[0].shape[1] * ZOOM
    sheet = np.full((SHOWN * (side + GAP) - GAP, 5 * (side + GAP) - GAP, 3), 255, np.uint8)
    for column, pictures in enumerate(columns):
        for row, picture in enumerate(pictures):
            large = picture.repeat(ZOOM, 0).repeat(ZOOM, 1)
            top, left = row * (side + GAP), column * (side + GAP)
            sheet[top : top + side, left : left + side] = large
    Image.fromarray(sheet).save(PICTURES, "JPEG", quality=85, optimize=True)


def texts(content: dict[str, Any]) -> dict[str, str]:
    """The generated parts of the page."""
    found = Results(content)
    parts = {"facts": facts(content), "scores": scores(found), "verdicts": judged(found)}
    return {**parts, "cost": cost(), "elsewhere": elsewhere(found)}


if __name__ == "__main__":
    if "--runs" in sys.argv:
        draw_pictures(Path(sys.argv[sys.argv.index("--runs") + 1]))
    raise SystemExit(generate(PAGE, filled(PAGE, **texts(load("papers/pretraining/results")))))
