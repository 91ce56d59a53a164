"""Faults that are planted into CIFAR-10 (JPEG), and how many of them `vit data check` finds.

    python -m benchmarks.faults.planted --data cifar10/ --weights WEIGHTS --out DIR [--seeds 3]

`--data` has train/ with one folder per class. For each seed 5,000 images are drawn from it, 500 of
each class, of which 1,000 are called test. 40 byte-equal copies and 40 of each kind in COPIES are
added to train, half of them of test images, and 300 labels of train are replaced by another class,
drawn evenly. The check runs with and without the model; cleanlab has the same features and
scikit-learn's logistic regression, at its defaults.
"""

import argparse
import csv
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.lib.harness import (
    arguments,
    class_folders,
    document,
    installed,
    save,
    target,
    timed,
    write_manifest,
)
from vit.extensions.datacheck.check import BITS_APART, Pictures, hashes
from vit.extensions.datacheck.copies import kept_copies, ranked
from vit.extensions.datacheck.doubt import features_of
from vit.extensions.evaluation.frozen import Frozen, Reading

PER_CLASS, TEST_PER_CLASS, COPIES_EACH, WRONG = 500, 100, 40, 300
Rows = list[tuple[Path, str, str]]


def _itself(image: Image.Image, _: np.random.Generator) -> Image.Image:
    return image


def _part(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """Without a tenth of each side, at a drawn place."""
    width, height = (round(0.9 * side) for side in image.size)
    left, top = random.integers(0, [image.width - width + 1, image.height - height + 1]).tolist()
    return image.crop((left, top, left + width, top + height))


COPIES: dict[str, tuple[int, Callable[[Image.Image, np.random.Generator], Image.Image]]] = {
    "re-encoded at quality 50": (50, _itself),
    "resized to three quarters": (
        90,
        lambda image, _: image.resize((image.width * 3 // 4, image.height * 3 // 4)),
    ),
    "cropped by 10 %": (90, _part),
    "mirrored": (90, lambda image, _: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)),
}
SAME = "byte-equal"
DOUBLES = ("leak", "identical", "copy")
"""Kinds of findings that are copies."""


def plant(data: Path, seed: int, folder: Path) -> tuple[Path, dict[str, str], set[str]]:
    """The manifest; copy -> its kind; the images with a wrong label."""
    random, rows = np.random.default_rng(seed), []
    classes = class_folders(data)
    for place in classes:
        names = random.permutation(sorted(os.listdir(place)))[:PER_CLASS]
        parts = ["test"] * TEST_PER_CLASS + ["train"] * (PER_CLASS - TEST_PER_CLASS)
        rows += [(place / name, place.name, part) for name, part in zip(names, parts, strict=True)]
    test = [row for row in rows if row[2] == "test"]
    train = [rows[i] for i in random.permutation(len(rows)) if rows[i][2] == "train"]
    kinds = [SAME, *COPIES] * COPIES_EACH
    half = len(kinds) // 2
    originals = [test[i] for i in random.permutation(len(test))[:half]] + train[:half]
    planted: dict[str, str] = {}
    for number, ((path, label, _), kind) in enumerate(zip(originals, kinds, strict=True)):
        copy = folder / "copies" / f"{number:03}.jpg"
        copy.parent.mkdir(parents=True, exist_ok=True)
        quality, change = COPIES.get(kind, (0, _itself))
        changed = change(Image.open(path).convert("RGB"), random)
        if kind == SAME and not copy.exists():
            shutil.copyfile(path, copy)
        elif not copy.exists():  # its features are cached by its time of change
            changed.save(copy, quality=quality)
        planted[str(copy.resolve())] = kind
        rows.append((copy, label, "train"))
    wrong = {str(path) for path, _, _ in train[half : half + WRONG]}
    names = [place.name for place in classes]
    for at, (path, label, part) in enumerate(rows):
        if str(path) in wrong:
            other = random.choice([name for name in names if name != label])
            rows[at] = (path, str(other), part)
    write_manifest(rows, folder / "planted.csv")
    return folder / "planted.csv", planted, wrong


def check(manifest: Path, out: Path, *options: str) -> tuple[list[dict[str, str]], dict[str, Any]]:
    """The rows of findings.csv with whole paths, and the seconds of the command."""
    command = [sys.executable, "-m", "vit", "data", "check", str(manifest), "--out", str(out)]
    command += [*options, "--num-workers", "0"]
    _, seconds = timed(command)
    with (out / "findings.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        row["image"] = str((manifest.parent / row["image"]).resolve())
    return rows, {name: round(count, 1) for name, count in seconds.items()}


def copies_found(paths: list[str], copies: dict[str, str]) -> dict[str, Any]:
    """Share found of each kind, and how many others are called copies."""
    found = Counter(copies[path] for path in paths if path in copies)
    shares = {kind: found[kind] / COPIES_EACH for kind in (SAME, *COPIES)}
    others = sum(path not in copies for path in paths)
    return {"found": shares, "all": found.total() / len(copies), "others": others}


def labels_found(paths: list[str], wrong: set[str]) -> dict[str, float]:
    """Share of the wrong labels found, and shares of false ones: of all, of the first ones."""
    hits = [path in wrong for path in paths]
    first = hits[:WRONG]
    return {
        "found": sum(hits) / len(wrong),
        "named": len(hits),
        "false": 1 - sum(hits) / len(hits),
        "false_of_first": 1 - sum(first) / len(first),
    }


def by_hash(pictures: Any) -> list[str]:
    """The images that are left out if perceptual hashes that differ in few bits are copies."""
    straight, _ = hashes(pictures.facts["small"])
    pairs = np.argwhere(np.bitwise_count(straight[:, None] ^ straight) <= BITS_APART)
    order, _ = ranked(pictures)
    left_out = kept_copies(order, order, pairs[pairs[:, 0] < pairs[:, 1]])
    return [str(Path(pictures.paths[image]).resolve()) for image in left_out]


def by_cleanlab(pictures: Any, features: np.ndarray) -> tuple[list[str], float]:
    """Its label issues, by the probabilities of scikit-learn's logistic regression; CPU seconds."""
    from cleanlab.filter import find_label_issues
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    began = time.process_time()
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    known = features, pictures.labels
    probabilities = cross_val_predict(model, *known, cv=5, method="predict_proba")
    ranked = find_label_issues(
        pictures.labels, probabilities, return_indices_ranked_by="self_confidence", n_jobs=1
    )
    return [pictures.paths[i] for i in ranked.tolist()], time.process_time() - began


def measure(seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """All figures of one seed; the features are computed first, and then in the cache."""
    manifest, planted, wrong = plant(options.data.resolve(), seed, options.out / str(seed))
    cache, size = options.out / "features", (options.pixels, options.pixels)
    pictures = Pictures(str(manifest))
    pictures.read(0)
    reading = Reading(image_size=size, num_workers=0)
    frozen = Frozen.load(str(options.weights), "pre_logits", reading, cache=cache)
    features, _ = features_of(frozen, str(manifest), pictures)
    row: dict[str, Any] = {"seed": seed, "hash": copies_found(by_hash(pictures), planted)}
    model = ("--model", str(options.weights), "--image-size", str(options.pixels))
    found: list[dict[str, str]] = []
    for name, words in (("files", ()), ("model", (*model, "--cache", str(cache)))):
        found, seconds = check(manifest, manifest.parent / name, *words)
        doubles = [each["image"] for each in found if each["finding"] in DOUBLES]
        row[name] = copies_found(doubles, planted) | seconds
    doubts = [each for each in found if each["finding"] == "doubt"]
    for certainty in (0.0, 0.5, 0.9):
        sure = [each["image"] for each in doubts if float(each["certainty"]) >= certainty]
        row[f"doubts_{certainty}"] = labels_found(sure, wrong)
    named, seconds = by_cleanlab(pictures, features)
    row["cleanlab"] = labels_found([str(Path(path).resolve()) for path in named], wrong)
    row["cleanlab"]["cpu_seconds"] = round(seconds, 1)
    return row


def main() -> None:
    parser = arguments(__doc__, "data", "weights", "out", quick=False)
    parser.add_argument("--pixels", type=int, default=112)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    rows = []
    for seed in range(options.seeds):
        rows.append(measure(seed, options))
        facts = {"pixels": options.pixels, "weights": options.weights.name}
        content = document("planted faults", rows, **facts, packages=installed("cleanlab"))
        save(content, target(options, "results/planted"))


if __name__ == "__main__":
    main()
