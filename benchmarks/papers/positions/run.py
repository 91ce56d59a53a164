"""Table 8 of the ViT paper in miniature: how positions are encoded, and whether at all.

    python -m benchmarks.papers.positions.run --data cifar10/

One small ViT per part of vit.extensions.variants, all else equal, on scikit-learn's digits and on
CIFAR-10 (JPEG; `--data` has train/ and test/ with one folder per class; without it, digits alone).
On each, arms take turns seed by seed: three seeds, five of the two baselines. Written before the
first result, and not changed: the settings below, the claims in page.py, and that nothing is
chosen: the last weights count. An interrupted command goes on where it was. `--device cuda` trains
the larger setting.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from benchmarks.lib.harness import (
    arguments,
    build_model,
    document,
    earlier,
    on_device,
    param_groups,
    save,
    target,
)
from vit.extensions.evaluation.fewshot import few_shot_accuracy
from vit.models.config import ViTConfig

SHAW = (0, 1, 2, 4, 8)
PLACES = ("stem", "layers", "shared")
ARMS: dict[str, dict[str, Any]] = {
    "none": {"name": "none"},
    **{f"1-D, {where}": {"name": "learned", "where": where} for where in PLACES},
    **{f"2-D, {where}": {"name": "learned2d", "where": where} for where in PLACES},
    "relative": {"name": "relative"},
    "sinusoids": {"name": "sinusoids"},
    "sincos2d": {"name": "sincos2d"},
    "bias table": {"name": "bias_table"},
    "ALiBi": {"name": "alibi"},
    **{f"Shaw, k={k}": {"name": "shaw", "k": k} for k in SHAW},
}
BASELINES, SEEDS, BASELINE_SEEDS = ("none", "1-D, stem"), 3, 5
TEST_SIZES = (24, 32, 48, 64)
"""Pixels at which a model of 32 pixels is tested."""
SHOTS, POOL_PER_CLASS = 5, 20
"""Five-shot: images that no training saw, five draws, the answers on the test images."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One data set's training."""

    pixels: int
    patch_size: int
    steps: int
    batch: int = 64
    width: int = 64
    depth: int = 4
    num_heads: int = 4
    lr: float = 1e-3
    weight_decay: float = 0.05
    warmup: int = 50
    train_per_class: int = 2_000
    """At most."""
    test_per_class: int = 200
    flip: bool = False


SETTINGS = {
    "digits": Setting(pixels=8, patch_size=2, steps=400),
    "cifar10": Setting(pixels=32, patch_size=8, steps=600, flip=True),
}
LARGE = {
    "digits": Setting(pixels=8, patch_size=1, steps=2_000),
    "cifar10": Setting(
        pixels=32, patch_size=4, steps=20_000, batch=256, width=192, depth=9, flip=True,
        train_per_class=4_900, test_per_class=800, warmup=1_000,
    ),
}  # fmt: skip
QUICK = {"digits": Setting(pixels=8, patch_size=2, steps=4, width=16, depth=2, warmup=1)}
Split = tuple[Tensor, Tensor]


def read_digits() -> tuple[Tensor, Tensor, int]:
    """Images `n 3 8 8` in [0, 1], labels, and the number of test images, which come last."""
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    images = torch.from_numpy(bunch.images[order]).float()[:, None].expand(-1, 3, -1, -1) / 16
    return images, torch.from_numpy(bunch.target[order]), 359


def read_folder(root: Any, setting: Setting) -> tuple[Tensor, Tensor, int]:
    """The same of a folder per class, in an order of its own."""
    images, labels, counts = [], [], []
    wanted = {"train": setting.train_per_class + POOL_PER_CLASS, "test": setting.test_per_class}
    for split, most in wanted.items():
        drawn = [
            (path, label)
            for label, folder in enumerate(sorted((root / split).iterdir()))
            for path in sorted(folder.iterdir())[:most]
        ]
        order = np.random.default_rng(0).permutation(len(drawn))
        for path, label in (drawn[i] for i in order):
            images.append(np.asarray(Image.open(path).convert("RGB")))
            labels.append(label)
        counts.append(len(drawn))
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255
    return pixels, torch.tensor(labels), counts[-1]


def splits(data: tuple[Tensor, Tensor, int], device: str) -> dict[str, Split]:
    """Train, pool (POOL_PER_CLASS images of each class) and test, on the device."""
    images, labels, tests = data
    images, labels = ((images - 0.5) / 0.25).to(device), labels.to(device)
    rest = labels[:-tests]
    pool = torch.cat([(rest == k).nonzero()[:POOL_PER_CLASS, 0] for k in range(10)])
    train = torch.ones(len(rest), dtype=torch.bool, device=device)
    train[pool] = False
    return {
        "train": (images[:-tests][train], rest[train]),
        "pool": (images[pool], labels[pool]),
        "test": (images[-tests:], labels[-tests:]),
    }


def model_of(setting: Setting, arm: str) -> nn.Module:
    """A ViT without class token, whose head reads the mean of the patches."""
    config = ViTConfig(
        image_size=setting.pixels, patch_size=setting.patch_size, num_classes=10,
        width=setting.width, depth=setting.depth, mlp_dim=4 * setting.width,
        num_heads=setting.num_heads, pool="gap", class_token=False, activation="gelu",
        variant={"positions": ARMS[arm]},
    )  # fmt: skip
    return build_model(config)


@torch.no_grad()
def accuracy(model: Any, images: Tensor, labels: Tensor) -> float:
    """In percent."""
    model.eval()
    hits = sum(
        int((model(x).argmax(1) == y).sum())
        for x, y in zip(images.split(100), labels.split(100), strict=True)
    )
    return round(100 * hits / len(labels), 2)


@torch.no_grad()
def few_shot(model: Any, data: dict[str, Split]) -> float:
    """Five-shot accuracy of the pooled features in percent, the mean of five draws."""
    model.eval()
    pool, test = (
        (
            torch.cat([model.pool(model.features(x)) for x in images.split(100)]).cpu().numpy(),
            labels.cpu().numpy(),
        )
        for images, labels in (data["pool"], data["test"])
    )
    classes = [str(k) for k in range(10)]
    found = few_shot_accuracy(pool, test, classes, shots=(SHOTS,), seeds=range(5))
    return round(100 * float(np.mean(found[SHOTS])), 2)


def fit(
    model: nn.Module, setting: Setting, data: Split, seed: int, look: Callable[[], Any]
) -> tuple[dict[int, Any], float]:
    """Trains the model. What `look` finds at each quarter, and seconds, without those of `look`."""
    images, labels = data
    clock = time.process_time if images.device.type == "cpu" else time.monotonic
    tables = model.no_weight_decay()
    groups = param_groups(model.named_parameters(), depth=setting.depth, no_weight_decay=tables)
    options: dict[str, Any] = {"lr": setting.lr, "weight_decay": setting.weight_decay}
    optimizer = torch.optim.AdamW(groups, **options, fused=True)
    generator = torch.Generator().manual_seed(seed)
    curve, order, seconds, began = {}, torch.empty(0), 0.0, clock()
    for step in range(setting.steps):
        if step % (len(images) // setting.batch) == 0:
            order = torch.randperm(len(images), generator=generator)
        start = step % (len(images) // setting.batch) * setting.batch
        batch = order[start : start + setting.batch].to(images.device)
        x = images[batch]
        if setting.flip:
            mirrored = torch.rand(len(x), generator=generator) < 0.5
            x = torch.where(mirrored.to(x.device)[:, None, None, None], x.flip(-1), x)
        left = (setting.steps - step) / (setting.steps - setting.warmup)
        for group in optimizer.param_groups:
            group["lr"] = setting.lr * min((step + 1) / setting.warmup, left)
        optimizer.zero_grad()
        loss = F.cross_entropy(model.train()(x), labels[batch])
        (loss + model.auxiliary_loss()).backward()
        optimizer.step()
        if (step + 1) * 4 // setting.steps > step * 4 // setting.steps:  # at each quarter
            loss.item()  # waits for a GPU
            seconds += clock() - began
            curve[step + 1] = look()
            began = clock()
    return curve, seconds


def train(setting: Setting, data: dict[str, Split], arm: str, seed: int) -> dict[str, Any]:
    """The scores of one training."""
    torch.manual_seed(seed)
    model = model_of(setting, arm).to(data["train"][0].device)
    curve, seconds = fit(
        model, setting, data["train"], seed, lambda: accuracy(model, *data["test"])
    )
    row = {"curve": curve, "accuracy": curve[setting.steps], "five_shot": few_shot(model, data)}
    if setting.pixels == 32:
        test, truth = data["test"]
        row["by_size"] = {
            size: accuracy(model, F.interpolate(test, size, mode="bilinear", antialias=True), truth)
            for size in TEST_SIZES
        }
    return {**row, "seconds": round(seconds, 1)}


def schedule(settings: dict[str, Setting], quick: bool) -> list[tuple[int, str, str]]:
    """Seeds, data sets and arms, in the order of the trainings."""
    return [
        (seed, name, arm)
        for name in settings
        for seed in range(1 if quick else BASELINE_SEEDS)
        for arm in (ARMS if seed < SEEDS else BASELINES)
    ]


def options_of(doc: str | None, words: list[str] | None) -> Any:
    """The options of an experiment on small images."""
    parser = arguments(doc)
    parser.add_argument("--data", type=Path, help="CIFAR-10 as folders")
    parser.add_argument("--device", default="cpu", help="cuda trains the larger setting")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> dict[str, Any]:
    options = options_of(__doc__, words)
    settings = QUICK if options.quick else SETTINGS if options.device == "cpu" else LARGE
    if options.data is None:
        settings = {"digits": settings["digits"]}
    return run("positions", options, settings, schedule(settings, options.quick), train)


def run(
    what: str, options: Any, settings: dict[str, Any], order: list[tuple[int, str, str]], once: Any
) -> dict[str, Any]:
    """Trainings in order, `once(setting, data, arm, seed)` each, but those that the file has."""
    file = target(options, on_device(f"papers/{what}/results", options.device))
    facts = {key: asdict(setting) for key, setting in settings.items()}
    rows = earlier(file, settings=facts).get("rows", [])
    done = {(row["seed"], row["data"], row["arm"]) for row in rows}
    torch.set_num_threads(1)
    data: dict[str, dict[str, Split]] = {}
    for seed, key, arm in order:
        if (seed, key, arm) in done:
            continue
        if key not in data:
            read = read_digits() if key == "digits" else read_folder(options.data, settings[key])
            data[key] = splits(read, options.device)
        row = once(settings[key], data[key], arm, seed)
        rows.append({"data": key, "arm": arm, "seed": seed, **row})
        print(f"{key}, {arm}, seed {seed}: {row['accuracy']} %", file=sys.stderr, flush=True)
        save(document(what, rows, settings=facts), file)
    return document(what, rows, settings=facts)


if __name__ == "__main__":
    main()
