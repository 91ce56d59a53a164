"""Images per CPU second of `vit fit` and of a plain PyTorch loop over the same steps.

    python benchmarks/fit_loop.py [--steps 120] [--rounds 5] [--quick]

Both have the same model, accelerated alike, the same loader without workers, normalisation, loss
and optimizer (fused AdamW); the loop has nothing else. Each is a process of its own on one thread,
in turns; the first steps, which choose routes and fill caches, are not counted, nor is what comes
after the last one. Writes benchmarks/results/fit_loop_<machine>.json; the last line of output is
the JSON.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from collect import commit, machine_slug
from lightning.pytorch.callbacks import Callback

ROOT = Path(__file__).parents[1]
ARMS = ("vit fit", "plain loop")
CASES: dict[str, dict[str, Any]] = {
    "vit_ti16, batch 8": {"name": "vit_ti16", "pixels": 224, "batch": 8, "images": 64},
    "cifar, batch 128": {"name": "vit_ti16", "pixels": 32, "batch": 128, "images": 1024},
}
SMALL = {"patch_size": 4, "width": 192, "depth": 6, "mlp_dim": 768, "num_heads": 3}
# Steps before the clock starts.
WARM = 10


class Stamps(Callback):
    """CPU time of the process at the end of each step."""

    seconds: ClassVar[list[float]] = []

    def on_train_batch_end(self, *_: Any) -> None:
        Stamps.seconds.append(time.process_time())


def options(case: dict[str, Any], folder: Path, steps: int) -> dict[str, Any]:
    """The recipe of both arms."""
    model: dict[str, Any] = {"name": case["name"]}
    if case["pixels"] == 32:
        model["architecture"] = SMALL
    return {
        "data": {
            "root": str(folder),
            "image_size": case["pixels"],
            "batch_size": case["batch"],
            "augment": {"crop": "none", "flip": True},
            "splits": {"val_fraction": 0.0},
            "loading": {"num_workers": 0},
        },
        "model": {
            **model,
            "optimizer": {
                "class_path": "torch.optim.AdamW",
                "init_args": {"lr": 0.001, "fused": True},
            },
        },
        "trainer": {"max_steps": steps, "max_epochs": -1, "accelerator": "cpu"},
        "final_split": "none",
    }


def by_fit(recipe: Path, folder: Path) -> list[float]:
    """Times of the steps of `vit fit`."""
    import vit
    from vit.hardware import keep_memory

    keep_memory()  # as the command does, and vit.fit does not
    vit.fit(recipe, run_dir=str(folder / "run"), **{"trainer.callbacks": ["fit_loop.Stamps"]})
    # The class that the command imported, which is not this module where that is __main__.
    return sys.modules["fit_loop"].Stamps.seconds


def by_loop(recipe: Path, steps: int) -> list[float]:
    """Times of the steps of the plain loop."""
    import vit
    from vit.hardware import keep_memory
    from vit.training.optimizers.groups import param_groups

    keep_memory()
    model, data = vit.from_recipe(recipe)
    network: Any = vit.accelerate(model.model).train()
    groups = param_groups(network.named_parameters(), depth=network.config.depth)
    optimizer = torch.optim.AdamW(groups, lr=0.001, fused=True)
    data.setup("fit")
    seconds = []
    for images, labels, _ in endless(data):
        loss = torch.nn.functional.cross_entropy(network(data.preprocess.normalize(images)), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.process_time())
        if len(seconds) == steps:
            return seconds
    raise AssertionError("no end")


def endless(data: Any) -> Iterator[Any]:
    """Batches of epoch after epoch."""
    while True:
        for batch in data.train_dataloader():
            yield batch
            data.consumed_samples += len(batch[0])


def make_images(folder: Path, case: dict[str, Any]) -> None:
    """Noise in two classes."""
    from PIL import Image

    generator = torch.Generator().manual_seed(0)
    for i in range(case["images"]):
        coarse = torch.randint(0, 256, (8, 8, 3), dtype=torch.uint8, generator=generator).numpy()
        path = folder / f"class{i % 2}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(coarse).resize((case["pixels"],) * 2).save(path)


def measure(case: dict[str, Any], steps: int, rounds: int) -> dict[str, Any]:
    """Images per CPU second of both arms."""
    rates: dict[str, list[float]] = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_images(folder / "images", case)
        recipe = folder / "recipe.yaml"
        recipe.write_text(json.dumps(options(case, folder / "images", steps)))
        for turn in range(rounds):
            for arm in ARMS:
                command = [sys.executable, __file__, "--arm", arm, "--recipe", str(recipe)]
                command += ["--folder", str(folder / f"{turn}"), "--steps", str(steps)]
                environment = {**os.environ, "OMP_NUM_THREADS": "1"}
                environment["PYTHONPATH"] = os.pathsep.join(
                    [str(Path(__file__).parent), environment.get("PYTHONPATH", "")]
                )
                done = subprocess.run(command, capture_output=True, text=True, env=environment)
                if done.returncode:
                    raise SystemExit(done.stderr)
                stamps = json.loads(done.stdout.splitlines()[-1])
                each = statistics.median(b - a for a, b in itertools.pairwise(stamps[WARM:]))
                whole = (stamps[-1] - stamps[WARM]) / (len(stamps) - WARM - 1)
                rates[arm].append(case["batch"] / whole)
                print(
                    f"{arm:12} {1e3 * whole:8.2f} ms a step, median {1e3 * each:8.2f}", flush=True
                )
    ratios = [a / b for a, b in zip(*rates.values(), strict=True)]
    return {
        "images_per_cpu_second": {arm: statistics.median(found) for arm, found in rates.items()},
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "steps": steps - WARM - 1,
        "rounds": rounds,
    }


def main() -> None:
    """Measures, writes the file, prints the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="few steps, one round, no file")
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    parser.add_argument("--recipe", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.arm:
        torch.set_num_threads(1)
        fit = given.arm == "vit fit"
        stamps = by_fit(given.recipe, given.folder) if fit else by_loop(given.recipe, given.steps)
        print(json.dumps(stamps))
        return
    from vit.hardware import cpu_features, hardware, versions

    steps, rounds = (WARM + 4, 1) if given.quick else (given.steps, given.rounds)
    rows = []
    for name, case in list(CASES.items())[1 if given.quick else 0 :]:
        rows.append({"case": name, **measure(case, steps, rounds)})
        ratio = f"{rows[-1]['ratio']:.3f} ({rows[-1]['ratio_min']:.3f}-{rows[-1]['ratio_max']:.3f})"
        print(f"{name}: vit fit over the plain loop {ratio}")
    document = {
        "what": "fit_loop",
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "hardware": {**hardware(), "features": cpu_features()},
        "versions": versions(),
        "rows": rows,
    }
    if not given.quick:
        path = ROOT / "benchmarks" / "results" / f"fit_loop_{machine_slug('cpu')}.json"
        path.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document))


if __name__ == "__main__":
    main()
