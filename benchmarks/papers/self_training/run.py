"""Whether students gain on their teachers: Noisy Student in miniature (arXiv:1911.04252).

    python -m benchmarks.papers.self_training.run --data cifar10/ --runs DIR

`--data` has train/ and test/ with one folder per class. By the seed, a tenth of each class of train
keeps its labels, a tenth of which is val; the others are the unlabelled images. Arms:

- teacher: learns the labelled images alone, in as many steps of as many images as a student.
- noisy student: three iterations of `vit selftrain`; every student has the teacher's size.
- without noise: the first iteration without RandAugment, dropout and drop path, but with crops and
  flips.
- hard labels: the first iteration with the teacher's class as the target.
- no filter: the first iteration with all unlabelled images, as often as they are there.

All students of a first iteration have the same teacher, which has learned under the noise. The
recipe is cifar10/noisy_student, narrower and at half of the size in pixels, so that a step costs a
CPU little and a teacher sees its images 17 times; the scores are those of the weights that are best
on val. All of it was fixed before the first result. Accuracy under corruption is the mean over the
generated pictures of `vit robustness`.

An interrupted command goes on where it was.
"""

import argparse
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.lib.harness import (
    Rows,
    document,
    draw_images,
    on_device,
    publish,
    save,
    shuffled,
    target,
)
from benchmarks.lib.sweep import arguments, counted, schedule, trained
from benchmarks.papers.robustness.run import scored
from vit.extensions.transfer.selftrain import SelfTraining

STEPS, BATCH, VALIDATIONS, IMAGE_SIZE = 1200, 64, 2, 16
ITERATIONS, TEACHERS = 3, 5
"""Students of a seed one after the other; seeds of the teacher alone."""
CORRUPTED = 200
"""Test images of which `vit robustness` makes 75 pictures each."""
LABELLED, VAL = 0.1, 0.1
"""Shares of train, and of the labelled images."""
PSEUDO: dict[str, Any] = {"ratio": 3.0, "confidence": 0.3, "per_class": 4500, "hard": False}
SIZES = {"width": 64, "depth": 2, "mlp_dim": 208}
QUIET = {"data.augment.policy": "null"} | dict.fromkeys(
    ("model.architecture.dropout", "model.architecture.drop_path"), "0.0"
)
"""Options of a student without noise."""
ARMS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "without noise": ({}, QUIET),
    "hard labels": ({"hard": True}, {}),
    "no filter": ({"confidence": 0.0, "per_class": None}, {}),
}
"""Name of an arm with one iteration -> what it changes of PSEUDO, and of the options."""


def draw(data: Path, seed: int, folder: Path) -> tuple[Path, Path]:
    """A CSV of the labelled images and those of test, and a folder of links to the others."""
    manifest, others = folder / "labelled.csv", folder / "unlabelled"
    others.mkdir(parents=True, exist_ok=True)

    def choose(_: int, name: str, paths: list[Path]) -> dict[str, Sequence[Path]]:
        paths, count = shuffled(paths, f"{seed} {name}"), round(LABELLED * len(paths))
        held = max(round(VAL * count), 1)
        for path in paths[count:]:
            link = others / f"{name}_{path.name}"
            if not link.is_symlink():
                os.symlink(path, link)
        return {"val": paths[:held], "train": paths[held:count]}

    draw_images(data, manifest, choose)
    return manifest, others


def of_fit(options: argparse.Namespace, manifest: Path, seed: int) -> list[str]:
    """Options of every run of a seed."""
    sizes = [w for name, v in SIZES.items() for w in (f"--model.architecture.{name}", str(v))]
    return [
        *("-c", "cifar10/noisy_student", *sizes),
        *("--data.root", str(manifest), "--data.image_size", str(options.image_size)),
        *("--data.batch_size", str(BATCH), "--seed_everything", str(seed)),
        *schedule(options.steps, VALIDATIONS, options.device),
        *options.rest,
    ]


def on_corrupted(run: Path, options: argparse.Namespace) -> float | None:
    """Mean accuracy of a run on the pictures of `vit robustness`."""
    return 1 - scored(run, options.data, CORRUPTED)["mean_error"] if options.corrupted else None


def iterated(arm: str, seed: int, loop: SelfTraining, options: argparse.Namespace) -> Rows:
    """The rows of an arm; the first one is the teacher's."""
    with counted(loop.out, [*loop.arguments, str(loop.pseudo)]) as known:
        rows = loop.run()
    found = []
    for number, row in enumerate(rows):
        facts = {"arm": arm if number else "teacher", "iteration": number, "seed": seed}
        names = ("parameters", "images", "confidence", "val")
        facts |= {"accuracy": row["test"], "corrupted": on_corrupted(Path(row["run"]), options)}
        found.append({**facts, **{name: row[name] for name in names}})
    # Of all runs of the arm, and the answers.
    return [*found[:-1], {**found[-1], "cpu_seconds": round(known["cpu_seconds"], 1)}]


def of_seed(options: argparse.Namespace, seed: int) -> list[tuple[str, Any]]:
    """What makes the rows of each arm of a seed."""
    folder = options.runs.resolve() / f"seed_{seed}"
    manifest, unlabelled = draw(options.data.resolve(), seed, folder)
    base = of_fit(options, manifest, seed)
    main = folder / "noisy_student"

    def loop(words: list[str], pseudo: dict[str, Any], **given: Any) -> SelfTraining:
        changed = {**options.pseudo, **pseudo}
        places = {"unlabelled": str(unlabelled), "students": []}
        return SelfTraining(arguments=words, pseudo=changed, **places, **given)

    def one(name: str) -> Rows:
        pseudo, words = ARMS[name]
        out, answers = folder / name.replace(" ", "_"), "answers_1.safetensors"
        if not (out / answers).is_file():  # the same teacher has given them
            out.mkdir(exist_ok=True)
            shutil.copy(main / answers, out / answers)
        changed = [word for pair in words.items() for word in (f"--{pair[0]}", pair[1])]
        teacher = str(main / "teacher")
        asked = loop([*base, *changed], pseudo, iterations=1, teacher=teacher, out=out)
        return iterated(name, seed, asked, options)[1:]

    whole = loop(base, {}, iterations=options.iterations, teacher=None, out=main)
    arms = [("noisy student", lambda: iterated("noisy student", seed, whole, options))]
    return arms + [(name, lambda name=name: one(name)) for name in ARMS]


def teacher_alone(options: argparse.Namespace, seed: int) -> Rows:
    """A teacher without students."""
    folder = options.runs.resolve() / f"seed_{seed}"
    manifest, _ = draw(options.data.resolve(), seed, folder)
    summary = trained(of_fit(options, manifest, seed), folder / "teacher")
    metrics, cpu = summary["metrics"], summary["cpu_seconds"]
    row = {"arm": "teacher", "iteration": 0, "seed": seed, "accuracy": metrics["test/acc1"]}
    row["corrupted"] = on_corrupted(folder / "teacher", options)
    return [{**row, "val": metrics["val/acc1"], "cpu_seconds": round(cpu, 1)}]


def content(rows: Rows, options: argparse.Namespace) -> dict[str, Any]:
    """The results file."""
    names = ("steps", "seeds", "device", "image_size", "iterations")
    settings = {name: getattr(options, name) for name in names} | {"options": options.rest}
    settings |= {"batch": BATCH, "validations": VALIDATIONS, "labelled": LABELLED, "val": VAL}
    settings |= {"sizes": SIZES, "pseudo": options.pseudo}
    return document("self training", rows, settings=settings, data=options.data.resolve().name)


def main() -> None:
    parser = arguments(__doc__, STEPS)
    parser.add_argument("--image-size", type=int, default=IMAGE_SIZE, help=f"default {IMAGE_SIZE}")
    parser.set_defaults(iterations=ITERATIONS, pseudo=PSEUDO, teachers=TEACHERS)
    parser.set_defaults(corrupted=CORRUPTED)
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.steps, options.iterations, options.teachers = 1, 2, 1, 2
        options.pseudo, options.corrupted = {**PSEUDO, "confidence": 0.0, "per_class": 8}, 0
    name = on_device("papers/self_training/results", options.device)
    rows: Rows = []
    for seed in range(max(options.seeds, options.teachers)):
        alone = [("teacher", lambda seed=seed: teacher_alone(options, seed))]
        for _, make in of_seed(options, seed) if seed < options.seeds else alone:
            rows += make()
            save(content(rows, options), target(options, name))
    publish(content(rows, options), options, name)


if __name__ == "__main__":
    main()
