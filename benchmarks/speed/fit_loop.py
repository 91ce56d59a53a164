"""Images per CPU second of `vit fit` and of a plain PyTorch loop over the same steps.

    python -m benchmarks.speed.fit_loop [--steps 60] [--rounds 3] [--quick]

Both have the same model in float32, the same loader without workers, normalisation, loss and
optimizer (fused AdamW); the loop has nothing else. After each step of the run a callback does one
of the loop, in the same process, so that both see the same machine. All that a run does from step
to step counts, ends of epochs and saves too; its first steps, which fill caches, and what comes
after the last one do not. Each round is a process of its own, on one thread.
"""

import argparse
import importlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from lightning.pytorch.callbacks import Callback

import vit
from benchmarks.lib.harness import (
    answer,
    arguments,
    document,
    keep_memory,
    param_groups,
    publish,
    ratio,
    results_name,
    span,
)

MODULE = "benchmarks.speed.fit_loop"
ARMS = ("vit fit", "plain loop")
CASES: dict[str, dict[str, Any]] = {
    "vit_ti16, batch 8": {"name": "vit_ti16", "pixels": 224, "batch": 8, "images": 128},
    "cifar, batch 32": {"name": "vit_ti16", "pixels": 32, "batch": 32, "images": 512},
}
SMALL = {"patch_size": 4, "width": 192, "depth": 6, "mlp_dim": 768, "num_heads": 3}
# Steps before the clock starts.
WARM = 16


class Alternating(Callback):
    """Does a step of the plain loop after each one of the run; CPU seconds of both."""

    seconds: ClassVar[dict[str, list[float]]] = {}
    recipe: ClassVar[Path]

    def on_train_start(self, *_: Any) -> None:
        Alternating.seconds = {arm: [] for arm in ARMS}
        self.loop = plain_loop(Alternating.recipe)
        self.mark = time.process_time()

    def on_train_batch_end(self, *_: Any) -> None:
        start = time.process_time()
        Alternating.seconds["vit fit"].append(start - self.mark)
        next(self.loop)
        self.mark = time.process_time()
        Alternating.seconds["plain loop"].append(self.mark - start)


def options(case: dict[str, Any], folder: Path, steps: int) -> dict[str, Any]:
    """The recipe of both arms."""
    limits = {"max_steps": steps, "max_epochs": -1}
    rates = {"lr": 0.001, "fused": True}
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
            "name": case["name"],
            "optimizer": {"class_path": "torch.optim.AdamW", "init_args": rates},
            **({"architecture": SMALL} if case["pixels"] == 32 else {}),
        },
        "trainer": {**limits, "accelerator": "cpu", "precision": "32-true"},
        "final_split": "none",
    }


def by_turns(recipe: Path, folder: Path) -> dict[str, list[float]]:
    """CPU seconds of the steps of `vit fit`, and of those of the plain loop between them."""
    keep_memory()  # as the command does, and vit.fit does not
    # The class that the command imports, which is not this module where that is __main__.
    alternating = importlib.import_module(MODULE).Alternating
    alternating.recipe = recipe
    vit.fit(
        recipe,
        run_dir=str(folder / "run"),
        **{"trainer.callbacks": [f"{MODULE}.Alternating"]},
    )
    return alternating.seconds


def plain_loop(recipe: Path) -> Iterator[None]:
    """Training without end, a step at a time."""
    model, data = vit.from_recipe(recipe)
    network: Any = model.model.train()
    groups = param_groups(
        network.named_parameters(),
        depth=network.config.depth,
        no_weight_decay=network.no_weight_decay(),
    )
    optimizer = torch.optim.AdamW(groups, lr=0.001, fused=True)
    data.setup("fit")
    for images, labels, _ in endless(data):
        loss = torch.nn.functional.cross_entropy(network(data.preprocess.normalize(images)), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield


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
            command = [sys.executable, "-m", MODULE, "--alone", recipe, folder / f"{turn}"]
            for arm, seconds in answer(command).items():
                mean = statistics.fmean(seconds[WARM:])
                rates[arm].append(case["batch"] / mean)
                print(f"{arm:12} {1e3 * mean:8.2f} ms a step", flush=True)
    return {
        "images_per_cpu_second": {arm: statistics.median(each) for arm, each in rates.items()},
        **ratio([a / b for a, b in zip(*rates.values(), strict=True)]),
        "steps": steps - WARM,
        "rounds": rounds,
    }


def main() -> None:
    """Measures, writes the file, prints the JSON."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--alone", type=Path, nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        torch.set_num_threads(1)
        print(json.dumps(by_turns(*given.alone)))
        return
    steps, rounds = (WARM + 4, 1) if given.quick else (given.steps, given.rounds)
    rows = []
    for name, case in list(CASES.items())[1 if given.quick else 0 :]:
        rows.append({"case": name, **measure(case, steps, rounds)})
        print(f"{name}: vit fit over the plain loop {span(rows[-1])}")
    publish(document("fit_loop", rows), given, results_name("fit_loop"))


if __name__ == "__main__":
    main()
