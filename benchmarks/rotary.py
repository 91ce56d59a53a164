"""Rotary against learned and fixed positions: digits, and CIFAR-10 (JPEG) at other resolutions.

    python benchmarks/rotary.py --cifar cifar10/ [--seeds 3] [--results FILE]

Small ViTs that differ in their positions alone are trained for a few minutes in total on one CPU
thread: on scikit-learn's digits (8x8 pixels, patches of 2), and on images of CIFAR-10 (32x32,
patches of 8), where each is then tested at 24, 32, 48 and 64 pixels, resized with antialiasing. All
variants run with one seed before the next seed starts. `--cifar` is a folder with train/CLASS/*.jpg
and test/CLASS/*.jpg. Also measured is what rotary positions cost a training step of ViT-B/16.
Writes benchmarks/results/rotary_cpu.json; the last line of output is that JSON.
"""

import argparse
import json
import math
import statistics
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor

import vit
from vit.compute.steps import training
from vit.compute.timing import Call, in_turns
from vit.hardware import cpu_name
from vit.models.vision_transformer import VisionTransformer
from vit.training.optimizers.groups import param_groups

HERE = Path(__file__).parent
VARIANTS: dict[str, dict[str, Any]] = {
    "learned": {"pos_embed": "learned", "pos_resize": "bicubic_antialias"},
    "fixed": {"pos_embed": "sincos2d"},
    "rotary": {"pos_embed": "none", "rotary": {}},
    "rotary, rescale 2": {"pos_embed": "none", "rotary": {"rescale": 2.0}},
}
SIZES = (24, 32, 48, 64)
"""Pixels at which the models of CIFAR-10 are tested; they are trained at 32."""
TRAIN_PER_CLASS, TEST_PER_CLASS = 2000, 100
RATE, DECAY = 2e-3, 0.05


@dataclass(kw_only=True)
class Task:
    """Images `n c h w`, labels, and the network and training for them."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    model: dict[str, Any]
    epochs: int
    batch: int
    flip: bool
    sizes: tuple[int, ...]


def digits() -> Task:
    """1,797 images of 8x8 pixels, every fifth one for the test."""
    pixels, targets = load_digits(return_X_y=True)
    images = torch.from_numpy(np.asarray(pixels) / 8.0 - 1.0).float().reshape(-1, 1, 8, 8)
    labels = torch.from_numpy(np.asarray(targets))
    held = torch.arange(len(labels)) % 5 == 0
    model = {"image_size": 8, "patch_size": 2, "in_channels": 1, "width": 48, "num_heads": 3}
    return Task(
        train=(images[~held], labels[~held]),
        test=(images[held], labels[held]),
        model={**model, "depth": 3, "mlp_dim": 96},
        epochs=20,
        batch=64,
        flip=False,
        sizes=(8,),
    )


def cifar(root: Path) -> Task:
    """The first images of each class."""
    model = {"image_size": 32, "patch_size": 8, "width": 64, "depth": 4, "mlp_dim": 128}
    return Task(
        train=_folder(root / "train", TRAIN_PER_CLASS),
        test=_folder(root / "test", TEST_PER_CLASS),
        model={**model, "num_heads": 4},
        epochs=2,
        batch=128,
        flip=True,
        sizes=SIZES,
    )


def _folder(folder: Path, per_class: int) -> tuple[Tensor, Tensor]:
    images, labels = [], []
    for label, name in enumerate(sorted(path.name for path in folder.iterdir())):
        for path in sorted((folder / name).iterdir())[:per_class]:
            images.append(np.asarray(Image.open(path).convert("RGB")))
            labels.append(label)
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float()
    return pixels / 127.5 - 1.0, torch.tensor(labels)


def trained(task: Task, positions: dict[str, Any], seed: int) -> VisionTransformer:
    """A network after AdamW with a linear warm-up and a cosine to zero."""
    torch.manual_seed(seed)
    model = vit.create_model("vit_ti16", num_classes=10, **task.model, **positions)
    assert isinstance(model, VisionTransformer)
    model.train()
    groups = param_groups(model.named_parameters(), depth=model.config.depth)
    keys = ("params", "weight_decay")
    groups = [{key: group[key] for key in keys if key in group} for group in groups]
    optimizer = torch.optim.AdamW(groups, lr=RATE, weight_decay=DECAY)
    images, labels = task.train
    per_epoch = len(labels) // task.batch
    total = task.epochs * per_epoch
    generator = torch.Generator().manual_seed(seed)
    order = torch.empty(0)
    for step in range(total):
        if step % per_epoch == 0:
            order = torch.randperm(len(labels), generator=generator)
        chosen = order[step % per_epoch * task.batch :][: task.batch]
        batch = images[chosen]
        if task.flip:
            flipped = torch.rand(task.batch, 1, 1, 1, generator=generator) < 0.5
            batch = torch.where(flipped, batch.flip(-1), batch)
        warm = min(1.0, (step + 1) / (0.1 * total))
        for group in optimizer.param_groups:
            group["lr"] = RATE * warm * (1 + math.cos(math.pi * step / total)) / 2
        loss = F.cross_entropy(model(batch), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@torch.inference_mode()
def accuracy(model: VisionTransformer, test: tuple[Tensor, Tensor], size: int) -> float:
    """Percent of the test images that are right at `size` pixels."""
    images, labels = test
    right = 0
    for start in range(0, len(labels), 100):
        batch = images[start : start + 100]
        if batch.shape[-1] != size:
            batch = F.interpolate(batch, size=(size, size), mode="bilinear", antialias=True)
        right += int((model(batch).argmax(1) == labels[start : start + 100]).sum())
    return 100 * right / len(labels)


def cost(rounds: int = 5) -> dict[str, Any]:
    """CPU time of the tables and of a training step, over a step with learned positions: B/16."""
    batch, grid = 4, (14, 14)
    images = torch.randn(batch, 3, 224, 224)
    calls: dict[str, Call] = {}
    for name in ("learned", "rotary"):
        model = vit.create_model("vit_b16", **VARIANTS[name])
        assert isinstance(model, VisionTransformer)
        calls[name] = partial(training(model, "fp32"), images)
        if model.rope is not None:
            calls["tables"] = partial(model.rope, grid, torch.zeros(batch, 197, 768))
    times = in_turns(calls, rounds=rounds, clock="cpu")
    found = {"model": "vit_b16", "batch_size": batch, "rounds": rounds}
    for name in ("rotary", "tables"):
        shares = [1 / ratio for ratio in times[name].ratios(times["learned"])]
        found[f"{name}_over_step"] = {
            "median": statistics.median(shares), "min": min(shares), "max": max(shares)
        }  # fmt: skip
    return found


def row(name: str, variant: str, task: Task, scores: list[dict[int, float]]) -> dict[str, Any]:
    """Mean, deviation and each seed's accuracy at each size."""
    sizes = {}
    for size in task.sizes:
        values = [score[size] for score in scores]
        deviation = statistics.stdev(values) if len(values) > 1 else None
        sizes[str(size)] = {"mean": statistics.mean(values), "deviation": deviation, "each": values}
    return {"task": name, "positions": variant, "accuracy": sizes}


def main(args: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cifar", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=HERE / "results" / "rotary_cpu.json")
    options = parser.parse_args(args)
    tasks = {"digits": digits(), "CIFAR-10 (JPEG)": cifar(options.cifar)}
    scores: dict[tuple[str, str], list[dict[int, float]]] = {}
    document: dict[str, Any] = {}
    step = cost()
    print(step, file=sys.stderr)
    started = time.process_time()
    for seed in range(options.seeds):
        for name, task in tasks.items():
            for variant, positions in VARIANTS.items():
                model = trained(task, positions, seed)
                found = {size: accuracy(model, task.test, size) for size in task.sizes}
                scores.setdefault((name, variant), []).append(found)
                print(seed, name, variant, found, flush=True, file=sys.stderr)
        document = {
            "hardware": cpu_name(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "seeds": seed + 1,
            "cpu_seconds": round(time.process_time() - started),
            "images": {
                name: {"train": len(t.train[1]), "epochs": t.epochs, "test": len(t.test[1])}
                for name, t in tasks.items()
            },
            "cost": step,
            "rows": [row(name, v, tasks[name], found) for (name, v), found in scores.items()],
        }
        options.results.write_text(json.dumps(document, indent=2) + "\n")
    return document


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
