"""Images of classes that a model does not know: CIFAR-10 (JPEG) with two classes left out, photos.

    python -m benchmarks.papers.unknown.run --data cifar10/ --weights FILE --photos DIR --runs DIR

`--data` has train/ and test/ with one folder per class. For each seed two classes are drawn and
left out; the other eight are learned by a head on frozen features of WEIGHTS at 112 pixels, and by
a small ViT from random weights (`vit fit -c cifar10`). Asked are the test images of all ten classes
and the photos in DIR, of which most show something else. As by `vit trust`, the score is
chosen on train and val of the eight classes alone.

Features and runs are kept in --runs.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

import vit
from benchmarks.lib.harness import (
    arguments,
    class_folders,
    document,
    publish,
    run_fit,
    write_manifest,
)
from vit.console import Meter
from vit.extensions.trust.rejection import choose
from vit.extensions.trust.unknown import References, all_scores, class_by_class, outside, unlikeness
from vit.logistic import fit_head
from vit.weights.pretrained import load_pretrained

SEEDS = (0, 1, 2)
LEFT_OUT = 2
SHARE = 0.95
PER_CLASS = {"train": slice(0, 200), "val": slice(4_000, 4_100), "test": slice(0, 200)}
LEARNED = slice(0, 1_000)
"""Of the images of a class in train/, those that the small ViT is trained on."""
EPOCHS = 2


def listed(data: Path, split: str) -> list[list[Path]]:
    """The images of each class in a folder of --data."""
    return [sorted(folder.iterdir()) for folder in class_folders(data, split)]


@torch.inference_mode()
def features(network: Any, pictures: list[Path], file: Path) -> Tensor:
    """The head's input `n d` for pictures, kept in `file`."""
    if not file.is_file():
        prepared, rows = vit.transforms(network), []
        with Meter(f"{file.stem} features", len(pictures), "img") as meter:
            for start in range(0, len(pictures), 16):
                batch = torch.stack([prepared(path) for path in pictures[start : start + 16]])
                rows.append(network.forward_head(network.forward_features(batch), pre_logits=True))
                meter.advance(len(batch))
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, torch.cat(rows).numpy())
    return torch.from_numpy(np.load(file))


def every_feature(network: Any, options: argparse.Namespace, name: str) -> dict[str, Any]:
    """Features and labels of train, val and test, and features of the photos."""
    found: dict[str, Any] = {}
    for split, part in PER_CLASS.items():
        classes = listed(options.data, "test" if split == "test" else "train")
        paths = [path for images in classes for path in images[part]]
        labels = [k for k, images in enumerate(classes) for _ in images[part]]
        file = options.runs / "features" / f"{name}_{split}.npy"
        found[split] = (features(network, paths, file), torch.tensor(labels))
    photos = sorted(options.photos.iterdir())
    found["photos"] = features(network, photos, options.runs / "features" / f"{name}_photos.npy")
    return found


def small_vit(options: argparse.Namespace, known: Tensor, seed: int) -> Any:
    """A small ViT, trained on the known classes from random weights."""
    rows = []
    for k in known.tolist():
        images = listed(options.data, "train")[k]
        rows += [(path, images[0].parent.name, "train") for path in images[LEARNED]]
        rows += [(path, images[0].parent.name, "val") for path in images[PER_CLASS["val"]]]
    manifest = options.runs / f"known_{seed}.csv"
    write_manifest(rows, manifest)
    words = ["-c", "cifar10", "--data.root", str(manifest), "--epochs", str(EPOCHS)]
    words += ["--seed_everything", str(seed), "--data.loading.num_workers", "0"]
    run_fit(words, options.runs / f"small_{seed}")
    return vit.load(options.runs / f"small_{seed}").model


def row(found: dict[str, Any], known: Tensor, head: Any, seed: int) -> dict[str, Any]:
    """What is refused, and what that gains, for one model."""

    def of(split: str) -> tuple[Tensor, Tensor]:
        x, y = found[split]
        kept = torch.isin(y, known)
        return x[kept], torch.searchsorted(known, y[kept])

    train, val = of("train"), of("val")
    part = class_by_class(train[1], seed)[:1_000]  # as by `vit trust`
    train = train[0][part], train[1][part]
    references = References.of(*train, seed)
    choice = choose(train, val, seed)
    x, y = found["test"]
    asked = torch.cat([x, found["photos"]])
    logits = head(asked)
    truth = torch.full((len(asked),), -1)
    truth[: len(x)] = torch.where(torch.isin(y, known), torch.searchsorted(known, y), -1)
    usual = all_scores(head(val[0]), val[0], references)
    scores = all_scores(logits, asked, references)
    scores["decision"] = unlikeness(scores, usual, choice.score)
    answered = ~outside(scores, usual, choice.score, SHARE)
    right, photo = logits.argmax(1) == truth, torch.arange(len(asked)) >= len(x)
    groups = {"known": truth >= 0, "left_out": (truth < 0) & ~photo, "photos": photo}
    result: dict[str, Any] = {"seed": seed, **vars(choice)}
    result["answered"] = {name: share(answered[group]) for name, group in groups.items()}
    result["accuracy_of_known"] = share(right[groups["known"]])
    for name in ("left_out", "photos"):
        both = groups["known"] | groups[name]
        result[name] = {
            "images": int(groups[name].sum()),
            "auroc": {s: area(scores[s][both], groups[name][both]) for s in scores},
            "accuracy": {
                "of_all": share(right[both]),
                "of_answered": share(right[both & answered]),
            },
            "answered": share(answered[both]),
        }
    return result


def share(which: Tensor) -> float:
    return round(float(which.double().mean()), 4)


def area(scores: Tensor, unknown: Tensor) -> float:
    return round(float(roc_auc_score(unknown.numpy(), scores.numpy())), 4)


def main() -> None:
    places = ("data", "weights", "photos", "runs")
    options = arguments(__doc__, *places, quick=False).parse_args()
    encoder: Any = load_pretrained(str(options.weights), image_size=112)[0].eval()
    frozen = every_feature(encoder, options, "frozen")
    rows = []
    for seed in SEEDS:
        drawn = torch.randperm(10, generator=torch.Generator().manual_seed(seed))
        known = drawn[LEFT_OUT:].sort().values
        names = [images[0].parent.name for images in listed(options.data, "train")]
        x, y = frozen["train"]
        kept = torch.isin(y, known)
        fit = fit_head(x[kept].double(), torch.searchsorted(known, y[kept]), len(known))
        heads = {"frozen": lambda q, fit=fit: q.double() @ fit.weight.T + fit.bias}
        small = small_vit(options, known, seed)
        heads["small"] = torch.inference_mode()(small.head)
        cases = {"frozen": frozen, "small": every_feature(small, options, f"small_{seed}")}
        for name, found in cases.items():
            rows.append(
                {"model": name, "left_out_classes": [names[k] for k in drawn[:LEFT_OUT]]}
                | row(found, known, heads[name], seed)
            )
            print(rows[-1])
    facts = {"share": SHARE, "per_class": {k: v.stop - v.start for k, v in PER_CLASS.items()}}
    publish(document("unknown classes", rows, **facts), options, "papers/unknown/results")


if __name__ == "__main__":
    main()
