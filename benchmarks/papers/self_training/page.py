"""The tables of docs/self_training.md."""

import statistics
from textwrap import fill
from typing import Any

from benchmarks.lib.pages import ROOT, filled, generate, load, over, table
from benchmarks.lib.sweep import interval, minus, verdict
from benchmarks.papers.self_training.longer import STUDENT as STUDENTS
from benchmarks.papers.self_training.run import ARMS, LABELLED, VAL

PAGE = ROOT / "docs" / "self_training.md"
Key = tuple[str, int]
"""Arm and iteration."""
TEACHER, STUDENT, QUIET = ("teacher", 0), "noisy student", ("without noise", 1)
CLAIMS: list[tuple[str, str, Key, Key]] = [
    ("the student generalizes better than the teacher", "-", (STUDENT, 1), TEACHER),
    ("iterating the process: the second student", "-", (STUDENT, 2), (STUDENT, 1)),
    ("iterating the process: the third", "-", (STUDENT, 3), (STUDENT, 2)),
    ("all iterations", "87.6 to 88.4", (STUDENT, 3), (STUDENT, 1)),
    ("the performance consistently drops with noise function removed", "-", (STUDENT, 1), QUIET),
    ("without noise the student gains on the teacher, too", "-", QUIET, TEACHER),
    ("soft labels are better than hard ones", "-", (STUDENT, 1), ("hard labels", 1)),
    ("filter and balance help", "-", (STUDENT, 1), ("no filter", 1)),
]
"""Sentence, the source's number, and the arms of which the first is to be above the second."""


def values(content: dict[str, Any], key: Key, name: str = "accuracy") -> dict[int, float]:
    """Seed -> test accuracy in per cent; `corrupted`: under corruption."""
    rows = [row for row in content["rows"] if (row["arm"], row["iteration"]) == key]
    return {row["seed"]: 100 * row[name] for row in rows if row.get(name) is not None}


def gaps(content: dict[str, Any], first: Key, second: Key, name: str = "accuracy") -> list[float]:
    """First minus second, for the seeds that have both."""
    return minus(values(content, first, name), values(content, second, name))


def scores(content: dict[str, Any]) -> str:
    """A row for each arm."""
    keys = [TEACHER, *((STUDENT, i + 1) for i in range(content["settings"]["iterations"]))]
    lines = []
    for key in [*keys, *((name, 1) for name in ARMS)]:
        found = values(content, key)
        rows = [r for r in content["rows"] if (r["arm"], r["iteration"]) == key and r.get("images")]
        cells = ("-", "-")
        if rows:
            images, sure = (
                statistics.mean(r[name] for r in rows) for name in ("images", "confidence")
            )
            cells = (f"{images:,.0f}", f"{100 * sure:.1f}")
        name = f"{key[0]}, iteration {key[1]}" if key[1] else key[0]
        against = interval(gaps(content, key, TEACHER)) if key[1] else "-"
        corrupted = over([*values(content, key, "corrupted").values()])
        lines.append((name, *cells, over([*found.values()]), against, corrupted, len(found)))
    head = ("model", "unlabelled images", "teacher's confidence, %", "accuracy, %", "over teacher")
    return table((*head, "under corruption, %", "seeds"), lines)


def judged(content: dict[str, Any]) -> str:
    """A row for each sentence."""
    lines = []
    for sentence, there, first, second in CLAIMS:
        points = gaps(content, first, second)
        lines.append((sentence, there, interval(points), verdict(points)))
    points = gaps(content, (STUDENT, 3), TEACHER, "corrupted")
    sentence = "Noisy Student improves the accuracy under corruption"
    lines.append((sentence, "-", interval(points), verdict(points)))
    return table(("sentence", "there", "points", "verdict"), lines)


def facts(content: dict[str, Any]) -> str:
    """Settings and cost."""
    settings, rows = content["settings"], content["rows"]
    minutes = sum(row.get("cpu_seconds") or 0 for row in rows) / 60
    pseudo, size = settings["pseudo"], settings["image_size"]
    text = (
        f"{100 * LABELLED:.0f} % of train keep their labels, and {100 * VAL:.0f} % of these are "
        f"val. Every run takes {settings['steps']:,} steps of {settings['batch']} images of {size} "
        f"x {size} pixels, a student {pseudo['ratio']:g} unlabelled ones for each labelled one; "
        f"confidence {pseudo['confidence']:g}, {pseudo['per_class']:,} images of each class. "
        f"{minutes:.0f} CPU minutes on one thread of a shared {content['hardware']['cpu']}. ± "
        "behind an accuracy is the standard deviation over the seeds, behind points half of the "
        "95 % interval (Student), paired by seed."
    )
    return fill(text, 100)


def searched(content: dict[str, Any]) -> str:
    """A row for each setting on the seed of the choice."""
    lines = []
    for row in content["search"]:
        name = row["setting"]
        name = f"**{name}**" if name == content["chosen"] else name
        lines.append((name, f"{100 * row['accuracy']:.1f}"))
    return table(("student", "accuracy, %"), lines)


def longer(content: dict[str, Any]) -> str:
    """A row for each arm."""
    rows = content["rows"]
    percents = ([100 * accuracy for accuracy in row["of_seeds"]] for row in rows)
    lines = [(row["arm"], over(each), row["n"]) for row, each in zip(rows, percents, strict=True)]
    return table(("model", "accuracy, %", "seeds"), lines)


def few_claims(content: dict[str, Any]) -> str:
    """A row for each arm above which the student is to be."""
    accuracies = {row["arm"]: dict(enumerate(row["of_seeds"])) for row in content["rows"]}
    lines = []
    for claim in content["claims"]:
        low, high = claim["interval"]
        other = claim["over"]
        gains = [100 * gain for gain in minus(accuracies[STUDENTS], accuracies[other])]
        images = f"{claim['points']:+.1f} ({low:+.1f} to {high:+.1f})"
        lines.append((f"above {other}", images, interval(gains), verdict(gains)))
    return table(
        ("the student is", "points, other images", "points, other seeds", "verdict"), lines
    )


if __name__ == "__main__":
    results, few = load("papers/self_training/results"), load("papers/self_training/longer")
    texts = {"facts": facts(results), "scores": scores(results), "verdicts": judged(results)}
    texts |= {"searched": searched(few), "longer": longer(few), "few claims": few_claims(few)}
    raise SystemExit(generate(PAGE, filled(PAGE, **texts)))
