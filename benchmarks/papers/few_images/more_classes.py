"""Two classes more for a trained head: accuracy on the old and the new classes, and CPU seconds.

    python -m benchmarks.papers.few_images.more_classes --data cifar10/ --weights FILE --out DIR

For each seed, two classes of CIFAR-10 (JPEG) are the new ones. As in `vit fit -c probe`, a head is
fitted to the features of 100 images of each of the other eight; then ten classes are asked for,
with 20 images of each new one, and 20 or all 100 of those images of each old one: with the rows of
that head, or fitted as a whole. All are scored on the same 2,000 test images.

Features are kept in DIR.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import vit
from benchmarks.lib.harness import (
    arguments,
    document,
    mean_and_std,
    save,
    target,
    write_manifest,
)
from vit.data.settings import Loading, Splitting
from vit.extensions.adaptation.known_classes import extend_head
from vit.extensions.evaluation.features import Extractor
from vit.logistic import FittedHead, fit_head, set_head
from vit.preprocessing import Preprocess
from vit.training.callbacks.linear_probe import WIDE_STRENGTHS

PIXELS, DRAWN_FROM, OLD, NEW, TEST, SEEDS = 112, 600, 100, 20, 200, (0, 1, 2)
"""Side of an image; training images per class to draw from, of the old head and of the new classes;
test images per class."""


def features(data: Path, weights: str, cache: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """Features, float64 `n d`, and labels of train and test."""
    taken = {"train": DRAWN_FROM, "test": TEST}
    rows = [
        (path, folder.name, split)
        for split, count in taken.items()
        for folder in sorted((data / split).iterdir())
        for path in sorted(folder.iterdir())[:count]
    ]
    write_manifest(rows, cache / "images.csv")
    reports: list[Any] = []
    options: dict[str, Any] = {"num_classes": 0, "image_size": PIXELS, "report": reports.append}
    model = vit.create_model(pretrained=weights, **options)
    images = vit.ImageData(
        root=str(cache / "images.csv"),
        image_size=PIXELS,
        splits=Splitting(val_fraction=0.0),
        loading=Loading(num_workers=0),
    )
    images.preprocess = Preprocess.from_dict(reports[0].preprocess)
    extract = Extractor(model, "pre_logits", cache=cache)
    found = {split: extract(images, split) for split in ("train", "test")}
    return {
        split: (torch.from_numpy(each.values).double(), torch.from_numpy(each.labels))
        for split, each in found.items()
    }


def accuracies(head: FittedHead, test: tuple[Tensor, Tensor], new: Tensor) -> dict[str, float]:
    """In %, of the test images of the old, the new and all classes."""
    right = (test[0] @ head.weight.T + head.bias).argmax(1) == test[1]
    of_new = torch.isin(test[1], new)
    parts = {"old": right[~of_new], "new": right[of_new], "all": right}
    return {name: 100 * float(part.double().mean()) for name, part in parts.items()}


def measure(
    seed: int, count: int, sets: dict[str, tuple[Tensor, Tensor]]
) -> dict[str, dict[str, float]]:
    """Scores of the old head, of the longer one, and of one that is fitted as a whole."""
    (inputs, labels), test = sets["train"], sets["test"]
    random = np.random.default_rng(seed)
    drawn = {k: random.permutation(np.flatnonzero(labels == k))[:OLD] for k in range(10)}
    new = torch.from_numpy(random.permutation(10)[:2])
    known = [k for k in range(10) if k not in new]
    rows = np.concatenate([drawn[k] for k in known])
    places = torch.full((10,), -1)
    places[known] = torch.arange(8)
    old = fit_head(inputs[rows], places[labels[rows]], 8, WIDE_STRENGTHS)
    weight, bias = torch.zeros(10, inputs.shape[1]).double(), torch.full((10,), -torch.inf).double()
    weight[known], bias[known] = old.weight, old.bias
    found = {"eight": accuracies(FittedHead(weight, bias, None, 0.0), test, new)}
    layer = nn.Linear(inputs.shape[1], 10)
    set_head(layer, weight, bias.nan_to_num(neginf=0.0))  # rows of new classes are zero
    rows = np.concatenate([drawn[k][: count if k in known else NEW] for k in range(10)])
    given, heads = (inputs[rows], labels[rows]), {}
    for arm in ("kept", "whole"):
        began = time.process_time()
        if arm == "kept":
            heads[arm] = extend_head(layer, known, *given, WIDE_STRENGTHS, None)
        else:
            heads[arm] = fit_head(*given, 10, WIDE_STRENGTHS)
        seconds = time.process_time() - began
        found[arm] = {"seconds": seconds, **accuracies(heads[arm], test, new)}
    found["chosen"] = found["kept" if heads["kept"].loss <= heads["whole"].loss else "whole"]
    return found


def main() -> None:
    options = arguments(__doc__, "data", "weights", "out", quick=False).parse_args()
    sets = features(options.data, str(options.weights), options.out)
    rows: list[dict[str, Any]] = []
    for count in (NEW, OLD):
        found = [measure(seed, count, sets) for seed in SEEDS]
        for arm in found[0]:
            each = [scores[arm] for scores in found]
            values = {name: mean_and_std([one[name] for one in each]) for name in each[0]}
            rows.append({"arm": arm, "old_images": count, "n": len(SEEDS), **values})
        facts = {"pixels": PIXELS, "new_images": NEW, "test_images": 10 * TEST, "head_images": OLD}
        content = document("more classes", rows, **facts)
        save(content, target(options, "papers/few_images/more_classes"))


if __name__ == "__main__":
    main()
