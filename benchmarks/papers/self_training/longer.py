"""Noisy Student where a teacher has few labels: longer and wider students, noise by stages.

    python -m benchmarks.papers.self_training.longer --data cifar10/ --runs DIR

The experiment of run.py has students that are too short to learn under noise. Here 2 % of train
keep their labels, a tenth of which is val; all others are the unlabelled images. The recipe is
cifar10 of half the width on images of 24 pixels, Muon included; a teacher has crops and flips, a
student RandAugment, dropout and drop path besides, seven unlabelled images per labelled one.

SETTINGS are students of one teacher, of seed 99, which is in no result: the one with the best
accuracy on the first half of each class of test is chosen. Then three other seeds are scored on the
second half:

- teacher, and student: as chosen.
- labels alone: what the student is, in architecture, noise and length, without unlabelled images.
- student without noise: with the crops and flips of the teacher.

`difference` is that to the teacher, `claims` are those of the student to each other arm, with an
interval over images. An interrupted command goes on where it was.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lib.harness import (
    Rows,
    against,
    arguments,
    class_folders,
    document,
    finished,
    publish,
    run_fit,
    save,
    shuffled,
    target,
    timed,
    write_manifest,
)
from benchmarks.lib.sweep import schedule
from vit.extensions.transfer.divided import read_predictions

LABELLED, VAL, RATIO = 0.02, 0.1, 7
BATCH, VALIDATIONS = 64, 2
SEEDS, CHOICE = 3, 99
NOISE = (
    *("--data.augment.policy=vit.RandAugment", "--model.architecture.dropout=0.1"),
    "--model.architecture.drop_path=0.1",
)
NARROW = ("--model.architecture.width=64", "--model.architecture.mlp_dim=256")
WIDE = ("--model.architecture.width=96", "--model.architecture.mlp_dim=384")
TEACHER, STUDENT, ALONE, QUIET = "teacher", "student", "labels alone", "student without noise"
CLAIMS = (TEACHER, ALONE, QUIET)
"""Arms above which the student is to be."""


@dataclass(frozen=True, kw_only=True)
class Student:
    """A run that learns a teacher's answers."""

    steps: float = 1.0
    """Over those of the teacher."""
    sizes: tuple[str, ...] = NARROW
    noise: tuple[str, ...] = NOISE


SETTINGS: dict[str, list[Student]] = {
    "as long as its teacher": [Student()],
    "twice as long": [Student(steps=2)],
    "twice as long, wider": [Student(steps=2, sizes=WIDE)],
    "without noise, then twice as long": [Student(noise=()), Student(steps=2)],
}
"""Name -> the students, each of which teaches the next."""


def draw(options: Namespace, seed: int) -> tuple[Path, Path]:
    """A CSV of the labelled images and a half of test, and a folder of links to the others."""
    folder: Path = options.runs.resolve() / f"seed_{seed}"
    others, rows = folder / "unlabelled", []
    others.mkdir(parents=True, exist_ok=True)
    for place in class_folders(options.data.resolve()):
        name = place.name
        paths = shuffled(sorted(place.iterdir()), f"{seed} {name}")[: options.images]
        count = max(round(LABELLED * len(paths)), 4)
        held = max(round(VAL * count), 1)
        for path in paths[count:]:
            link = others / f"{name}_{path.name}"
            if not link.is_symlink():
                os.symlink(path, link)
        tests = sorted((options.data.resolve() / "test" / name).iterdir())[: options.images]
        half = len(tests) // 2
        tests = tests[:half] if seed == CHOICE else tests[half:]
        splits = {"val": paths[:held], "train": paths[held:count], "test": tests}
        rows += [(path, name, split) for split, each in splits.items() for path in each]
    write_manifest(rows, folder / "labelled.csv")
    return folder / "labelled.csv", others


def of_run(options: Namespace, manifest: Path, seed: int, student: Student) -> list[str]:
    """Options of a `vit fit`."""
    steps = round(options.steps * student.steps)
    return [
        *("-c", "cifar10", *student.sizes, *student.noise, "--data.image_size=24"),
        *(f"--data.root={manifest}", f"--data.batch_size={BATCH}", f"--seed_everything={seed}"),
        *schedule(steps, VALIDATIONS, "cpu"),
    ]


def taught(students: Sequence[Student], seed: int, options: Namespace, out: Path) -> Path:
    """The last student of the teacher of a seed."""
    manifest, unlabelled = draw(options, seed)
    teacher = teacher_of(seed, options)
    for number, student in enumerate(students):
        place = out / str(number)
        run = place / "student_1"
        if finished(run) is None:
            words = of_run(options, manifest, seed, student)
            chosen = ["--teacher", teacher, "--iterations", 1, "--ratio", RATIO, "--out", place]
            print(f"{run} ...", file=sys.stderr, flush=True)
            command = [sys.executable, "-m", "vit", "selftrain", *words, *chosen]
            timed([*command, "--unlabelled", unlabelled])
        teacher = run
    return teacher


def teacher_of(seed: int, options: Namespace) -> Path:
    """A run on the labelled images alone, with crops and flips."""
    run = options.runs.resolve() / f"seed_{seed}" / TEACHER
    run_fit(of_run(options, draw(options, seed)[0], seed, Student(noise=())), run)
    return run


def arms(name: str, seed: int, options: Namespace) -> dict[str, Path]:
    """Arm -> its run."""
    folder = options.runs.resolve() / f"seed_{seed}"
    students = SETTINGS[name]
    last = students[-1]
    alone, manifest = folder / "labels_alone", draw(options, seed)[0]
    runs = {TEACHER: teacher_of(seed, options)}
    runs[STUDENT] = taught(students, seed, options, folder / "student")
    run_fit(of_run(options, manifest, seed, last), alone)
    runs[ALONE] = alone
    quiet = [Student(steps=student.steps, sizes=student.sizes, noise=()) for student in students]
    runs[QUIET] = taught(quiet, seed, options, folder / "quiet")
    return runs


def accuracy(run: Path) -> float:
    """Share of test that the weights of a run name rightly."""
    return float(read_predictions(run).hits().mean())


def search(options: Namespace) -> Rows:
    """A row for each setting, on the seed of the choice."""
    folder = options.runs.resolve() / f"seed_{CHOICE}"
    rows = [{"setting": TEACHER, "accuracy": accuracy(teacher_of(CHOICE, options))}]
    for name, students in SETTINGS.items():
        run = taught(students, CHOICE, options, folder / name.replace(" ", "_").replace(",", ""))
        rows.append({"setting": name, "accuracy": accuracy(run)})
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def claims(runs: Mapping[str, Sequence[Path]]) -> Rows:
    """For each of CLAIMS the difference of the student to the other arm, by images."""
    rows = [against(other, {other: runs[other], STUDENT: runs[STUDENT]})[1] for other in CLAIMS]
    return [{"over": other, **row["difference"]} for other, row in zip(CLAIMS, rows, strict=True)]


def main() -> None:
    parser = arguments(__doc__, "data", "runs", quick=False)
    parser.add_argument("--steps", type=int, default=1_200, help="of the teacher; default 1200")
    parser.add_argument("--images", type=int, help="of each class; default: all")
    options = parser.parse_args()
    name = "papers/self_training/longer"
    searched = search(options)
    best = max(searched[1:], key=lambda row: row["accuracy"])["setting"]
    settings = {"steps": options.steps, "labelled": LABELLED, "ratio": RATIO, "batch": BATCH}
    runs: dict[str, list[Path]] = {}
    content = document("self training", [], settings=settings, search=searched, chosen=best)
    for seed in range(SEEDS):
        for arm, run in arms(best, seed, options).items():
            runs.setdefault(arm, []).append(run)
        content |= {"rows": against(TEACHER, runs), "claims": claims(runs)}
        save(content, target(options, name))
    publish(content, options, name)


if __name__ == "__main__":
    main()
