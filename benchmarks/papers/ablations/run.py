"""The small ablations of the ViT paper's appendix (arXiv:2010.11929) in miniature, on CIFAR-10.

    python -m benchmarks.papers.ablations.run --data cifar10/ --runs DIR [-- OPTIONS OF vit fit]

`--data` has train/ and test/ with one folder per class. A run sees half of train, drawn by its
seed, without the twenty-fifth that is val; the weights that are best on val are scored on test, and
whatever is chosen is chosen on val.

- head (Figure 9): class token, mean of the patches, attention pooling, each at five rates;
- shape (Figure 8): depth, width, MLP and patch size change one at a time around one centre, and
  the first three together;
- optimizer (Table 7): AdamW and SGD with momentum for a BiT, each at three rates;
- speed (appendix D.5): operations per second of forward passes and training steps of ViT-B/16, a
  BiT and a hybrid of about its size, in turns on random images.

The models and steps are chosen so that three seeds take less than 1.2 CPU hours; all of it was
fixed before the first result. All runs of a seed come before the next seed; speed comes last. An
interrupted command goes on where it was.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.lib.harness import (
    Rows,
    build_model,
    document,
    finished,
    inference,
    model_config,
    on_device,
    publish,
    ratio,
    save,
    take_turns,
    target,
    training,
    work,
)
from benchmarks.lib.sweep import arguments, schedule, trained
from benchmarks.papers.data_size.run import BATCH, draw
from vit.models.zoo import config_from_dict

STEPS, VALIDATIONS, PERCENT = 500, 5, 50.0
CENTRE = {"patch_size": 8, "width": 64, "depth": 4, "mlp_dim": 128}
SHAPES: dict[str, list[dict[str, int]]] = {
    "depth": [{"depth": n} for n in (1, 2, 4, 8, 16)],
    "width": [{"width": n} for n in (16, 32, 64, 128, 256)],
    "MLP": [{"mlp_dim": n} for n in (32, 64, 128, 256, 512)],
    "patch size": [{"patch_size": n} for n in (16, 8, 4)],
    "all": [{"depth": n, "width": 16 * n, "mlp_dim": 32 * n} for n in (2, 4, 8)],
}
HEADS = {
    "class token": {"pool": "cls", "class_token": True},
    "mean": {"pool": "gap", "class_token": False},
    "attention pooling": {"pool": "map", "class_token": False},
}
HEAD_RATES = (0.0005, 0.001, 0.002, 0.004, 0.008)
OPTIMIZERS = {
    "AdamW": ("torch.optim.AdamW", {"weight_decay": 0.1, "fused": True}, (0.0003, 0.001, 0.003)),
    "SGD": ("torch.optim.SGD", {"momentum": 0.9, "weight_decay": 0.0001}, (0.01, 0.03, 0.1)),
}
"""Class, arguments and rates. Decay of SGD: BiT's (arXiv:1912.11370, section 3.1)."""
MEASURED = ("vit_b16", "bit_r50x1", "bit_r101x1", "r50_vit_b16")
Arm = tuple[str, str, float, list[str]]
"""Sweep, name, value on the axis, and options of `vit fit`."""


def shape_options(changes: dict[str, Any]) -> list[str]:
    """A ViT that differs in these fields from the centre."""
    recipe = ["-c", "cifar10/equal_flops_vit"]
    return recipe + [f"--model.architecture.{k}={str(v).lower()}" for k, v in changes.items()]


def arms() -> list[Arm]:
    """All runs of a seed; the centre is one for all axes."""
    found: list[Arm] = [("shape", "centre", 0.0, shape_options(CENTRE))]
    for axis, shapes in SHAPES.items():
        for changes in shapes:
            name, value = next(iter(changes.items()))
            if CENTRE[name] != value:
                found.append(("shape", axis, value, shape_options(CENTRE | changes)))
    for head, changes in HEADS.items():
        for rate in HEAD_RATES:
            options = shape_options(CENTRE | changes)
            found.append(("head", head, rate, [*options, f"--model.optimizer.lr={rate}"]))
    for name, (path, values, rates) in OPTIMIZERS.items():
        for rate in rates:
            options = ["-c", "cifar10/equal_flops_bit", "--model.architecture.depths=[1, 1]"]
            options += [f"--model.optimizer={path}", f"--model.optimizer.lr={rate}"]
            options += [f"--model.optimizer.{k}={json.dumps(v)}" for k, v in values.items()]
            found.append(("optimizer", name, rate, options))
    return found


def result(arm: Arm, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """The row of a run, which is made where it is not there yet."""
    sweep, name, value, own = arm
    runs: Path = options.runs.resolve()
    manifest = runs / f"images_{seed}.csv"
    folder = runs / sweep / f"{name.replace(' ', '_')}_{value:g}_{seed}"
    if finished(folder) is None:
        draw(options.data.resolve(), "all", PERCENT, seed, manifest)
    words = [*own, "--data.root", str(manifest), "--data.batch_size", str(BATCH)]
    words += ["--seed_everything", str(seed)]
    words += [*schedule(options.steps, VALIDATIONS, options.device), *options.rest]
    summary = trained(words, folder)
    counted = work(config_from_dict(summary["model"]))
    return {
        "sweep": sweep,
        "name": name,
        "value": value,
        "seed": seed,
        "accuracy": summary["metrics"]["test/acc1"],
        "val": summary["checkpoint"]["score"],
        "parameters": counted.params,
        "flops": counted.flops,
        "training_flops": counted.training_flops,
        **{kept: summary[kept] for kept in ("images", "steps", "precision", "cpu_seconds")},
    }


def operations(name: str, way: str, pixels: int) -> int:
    """Of a forward pass or a training step, for one image."""
    counted = work(model_config(name, image_size=pixels))
    return counted.training_flops if way == "training" else counted.flops


def speed(options: argparse.Namespace) -> Rows:
    """Operations per second of forward passes and training steps, in bfloat16."""
    pixels, batch, rounds = (32, 1, 1) if options.quick else (224, 8, 3)
    measured = ("vit_ti16", "r_vit_ti16") if options.quick else MEASURED
    device = torch.device(options.device)
    rows: Rows = []
    for way in ("inference", "training"):
        calls: dict[str, Any] = {}
        for name in measured:
            model = build_model(model_config(name, image_size=pixels)).to(device)
            images = torch.randn(batch, 3, pixels, pixels, device=device)
            if way == "training":
                calls[name] = partial(training(model, "bf16"), images)
            else:
                calls[name] = inference(model.to(torch.bfloat16), images)
        times = take_turns(way, calls, rounds, device)
        first = measured[0]
        for name, each in times.items():
            more = operations(name, way, pixels) / operations(first, way, pixels)
            per_flop = ratio([more * faster for faster in each.ratios(times[first])])
            rate = batch / each.median
            flops = rate * operations(name, way, pixels)
            facts = {"model": name, "way": way, "images_per_second": rate}
            rows.append({**facts, "flops_per_second": flops, "spread": each.spread, **per_flop})
    return rows


def main() -> None:
    parser = arguments(__doc__, STEPS)
    options = parser.parse_args()
    chosen = arms()
    if options.quick:
        options.seeds, options.steps = 1, 4
        chosen = [next(arm for arm in chosen if arm[0] == sweep) for sweep in ("head", "optimizer")]
    name = on_device("papers/ablations/results", options.device)
    settings = {"steps": options.steps, "seeds": options.seeds, "batch": BATCH, "percent": PERCENT}
    facts: dict[str, Any] = {
        "settings": settings,
        "device": options.device,
        "data": options.data.resolve().name,
        "speed": [],
    }
    rows: Rows = []
    for seed in range(options.seeds):
        for arm in chosen:
            rows.append(result(arm, seed, options))
            save(document("ablations", rows, **facts), target(options, name))
    file = options.runs / "speed.json"
    if not file.is_file():
        save(speed(options), file)
    facts["speed"] = json.loads(file.read_text(encoding="utf-8"))
    publish(document("ablations", rows, **facts), options, name)


if __name__ == "__main__":
    main()
