"""Writes the tables of looks, of fresh heads and of dino beside the others of docs/pretraining.md.

python -m benchmarks.papers.self_supervised.page
"""

import statistics
from collections.abc import Sized
from textwrap import fill
from typing import Any

from benchmarks.lib.harness import Rows
from benchmarks.lib.pages import ROOT, filled, generate, load, over, results_path, table
from benchmarks.lib.sweep import by_seed, interval, minus, verdict
from benchmarks.papers.self_supervised.run import OTHERS, RANDOM, STUDENT, TEACHER

PAGE = ROOT / "docs" / "pretraining.md"
HEAD = {
    "ours": "twice at 0.05 / looks",
    "once": "once at 0.05 / looks",
    "paired": "paired 95 % interval, once",
    "own interval": "95 % interval of the start, once",
}
KINDS = ("neighbours", "logistic")
LAYERS = {"pooled": "class token", "patches": "patches"}
SCORES = {f"{k}, {layer}": f"{k}, {LAYERS[layer]}" for k in KINDS for layer in LAYERS}
"""Names in the results file, and in the tables."""
COSTS = {"steps": "steps", "crops": "crops", "cpu_seconds": "CPU s"}


def course(row: dict[str, Any]) -> str:
    if row["points"] < 0:
        return f"loses {-row['points']:g} at once"
    return f"gains {row['points']:g}" if row["points"] else "stays"


def stops(rule: dict[str, Any], sick: bool) -> str:
    at = f", look {rule['median_look']:g}" if sick and rule["stopped"] else ""
    return f"{100 * rule['share']:.3g} %{at}"


def looks(rows: list[dict[str, Any]]) -> str:
    """Shares of the runs that each rule stops, and at which look by the median."""
    cells = [
        [f"{row['images']:,}", course(row)]
        + [stops(row["rules"][rule], row["kind"] == "sick") for rule in HEAD]
        for row in rows
    ]
    return table(["images", "accuracy, points", *HEAD.values()], cells)


def heads(content: dict[str, Any]) -> str:
    """Information and loss of fresh heads by temperature, centring and rate."""
    cells = [
        [
            " to ".join(dict.fromkeys(f"{row[n]:g}" for n in ("first_temperature", "temperature"))),
            row["centring"],
            f"{row['rate']:g}",
            f"{row['after']:.2f}",
            f"{row['loss']:.2f}",
        ]
        for row in content["rows"]
    ]
    starts = {row["centring"]: f"{row['before']:.2f}" for row in content["rows"]}
    start = ", ".join(f"{value} ({name})" for name, value in starts.items())
    head = ["teacher's temperature", "centring", "rate", f"nats; at the start {start}"]
    return table([*head, f"loss; uniform {content['uniform_loss']:.2f}"], cells)


def counted(seeds: Sized) -> str:
    return f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}"


def cpus(rows: Rows) -> str:
    """Names of the CPUs on which the rows were measured."""
    return " or ".join(sorted({row["cpu"] for row in rows}))


def equal_time(content: dict[str, Any]) -> str:
    """A row for each objective: scores, and neighbours above those of random weights."""
    rows: Rows = content["rows"]
    s, first = content["settings"]["setting"], next(iter(SCORES))
    base = by_seed(rows, lambda row: row[first], arm=RANDOM)
    lines = []
    for arm in (RANDOM, STUDENT, TEACHER, *OTHERS):
        these = [row for row in rows if row["arm"] == arm]
        gains = minus(by_seed(rows, lambda row: row[first], arm=arm), base)
        against = ["-"] * 2 if arm == RANDOM else [interval(gains), verdict(gains)]
        cost = [f"{statistics.mean(row[n] for row in these):,.0f}" for n in COSTS]
        values = [over([row[name] for row in these]) for name in SCORES]
        lines.append([arm, *values, *against, *cost])
    steps = content["settings"]["steps"]
    text = (
        f'The encoder of "In miniature" below, {s["batch"]} images of CIFAR-10 (JPEG) per step. '
        f"`dino_toy`, with two global and two local crops, learns {steps:,} steps; the others as "
        "many as two short trainings predict for its CPU time (last column: what they took), on "
        f"one thread of a shared {cpus(rows)}. Accuracy in % on "
        f"{s['test_per_class'] * 10:,} test images from the frozen class token or the mean of the "
        "patches, which MAE and masked patches have for a class token, too, "
        f"with the labels of 10 % of train: {s['neighbours']} neighbours, and logistic "
        f"regression. {counted(base)}; ± is the standard deviation over the seeds, behind a "
        "difference half of its 95 % interval."
    )
    above = f"{SCORES[first]}: over random weights"
    head = ["objective", *SCORES.values(), above, "", *COSTS.values()]
    return f"{fill(text, 118)}\n\n{table(head, lines)}"


def continued(content: dict[str, Any]) -> str:
    """Scores of published weights and of those trained on, and their differences."""
    start, *rows = content["rows"]
    sizes = content["settings"]["sizes"]
    lines = []
    for name, label in SCORES.items():
        gains = [row[name] - start[name] for row in rows]
        values = over([row[name] for row in rows])
        lines.append([label, f"{start[name]:.1f}", values, interval(gains), verdict(gains)])
    steps = content["settings"]["steps"]
    best = ", ".join(f"{row['kept']:,}" for row in rows)
    hours = statistics.mean(row["cpu_seconds"] for row in rows) / 3600
    text = (
        "A ViT-S/14 of DINOv2's training, tuned for saliency since, at "
        f"{sizes['--data.image_size']} pixels, trained on with the 50,000 images of CIFAR-10 "
        "(JPEG) by `dinov2_continue`: "
        f"{steps:,} steps of {sizes['--data.batch_size']} images, {sizes['--data.crops.local']} "
        f"local crops of {sizes['--data.crops.local_size']} pixels, "
        f"{sizes['--model.heads.prototypes']:,} prototypes, a momentum from "
        f"{sizes['--model.teacher.momentum']}, {hours:.1f} CPU hours per seed of "
        f"a shared {cpus(rows)}. Nothing was chosen by these images. The yardstick kept the "
        f"weights of step {best}. Accuracy in %, {counted(rows)}; ± as above."
    )
    return f"{fill(text, 118)}\n\n{table(['', 'before', 'after', 'points', ''], lines)}"


MEASURED = (
    ("equal_time", "papers/self_supervised/results", equal_time),
    ("continued", "papers/self_supervised/continued", continued),
)
"""Table, its results file, and what writes it."""


if __name__ == "__main__":
    tables = {
        "looks": looks(load("papers/self_supervised/looks")["rows"]),
        "heads": heads(load("papers/self_supervised/heads")),
    }
    for name, results, text in MEASURED:
        if results_path(results).is_file():
            tables[name] = text(load(results))
    raise SystemExit(generate(PAGE, filled(PAGE, **tables)))
