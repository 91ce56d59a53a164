"""Task dino from random weights: k-NN of teacher and student, beside MAE and masked patches.

    python -m benchmarks.papers.self_supervised.run --data cifar10/ --runs DIR

`--data` has train/ and test/ with one folder per class. Each arm trains one encoder on all images
of train without their labels; what it learned is read from frozen features, with the labels of 10 %
of train. dino takes `--steps` steps of two global crops and two local ones (recipe dino_toy at the
encoder of papers/pretraining); MAE and masked patches take as many steps as fit into the CPU time
of dino's run of the same seed, by the time of a short run before it. Student and teacher are of one
run. An interrupted command goes on where it was.
"""

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.lib.harness import (
    Rows,
    arguments,
    build_model,
    document,
    earlier,
    save,
    target,
)
from benchmarks.papers.pretraining.run import MAE, QUICK, SETTINGS, Arm, Laboratory
from vit.extensions.evaluation.features import Features, Layer
from vit.extensions.evaluation.frozen import Bench, Frozen, Reading
from vit.extensions.evaluation.knn import knn_accuracy
from vit.extensions.evaluation.probe import probe_accuracy
from vit.hardware import cpu_name
from vit.weights.pretrained import load_pretrained

RANDOM, TEACHER, STUDENT = "random weights", "dino, teacher", "dino, student"
DINO: Arm = ("pretrain/dino_toy",)
OTHERS: dict[str, Arm] = {
    "MAE": MAE["MAE 75 %, normalised"],
    "masked patches": ("pretrain/masked_patches_cifar10",),
}
PARTS = {TEACHER: "model", STUDENT: "student"}
LAYERS: dict[Layer, str] = {"pooled": "pooled", "patches": "patches"}
SHORT, LONG = 20, 320
"""Steps of the runs that tell how long a step takes."""


class Trial(Laboratory):
    """Encoders of one architecture."""

    def __init__(self, options: Namespace) -> None:
        setting = QUICK if options.quick else SETTINGS["cpu"]
        super().__init__(options.data.resolve(), options.runs.resolve(), setting, "cpu")
        self.short, self.long = (1, 2) if options.quick else (SHORT, LONG)

    def seconds(self, arm: str, steps: int, seed: int, folder: Path) -> float:
        """CPU seconds of a pre-training."""
        words = OTHERS.get(arm, DINO)
        return self.pretrained(words, arm, steps, seed, folder)["cpu_seconds"]

    def steps_within(self, seconds: float, arm: str, seed: int, folder: Path) -> int:
        """Steps of an arm that take so many CPU seconds, start-up included."""
        few, more = (
            self.seconds(arm, steps, seed, folder.with_name(f"{folder.name}_{steps}"))
            for steps in (self.short, self.long)
        )
        each = max(more - few, 1e-3) / (self.long - self.short)
        return max(self.short + round((seconds - few) / each), 1)

    def scored(
        self, run: Path, state: Mapping[str, Tensor] | None = None, size: int | None = None
    ) -> dict[str, float]:
        """Accuracies in per cent by frozen features of the encoder of a run or, with `state`, of
        other weights, on images of `size` pixels, by default the run's."""
        scores, k = {}, self.setting.neighbours
        reading = Reading(image_size=(size, size) if size else None, batch_size=100, num_workers=0)
        for layer, name in LAYERS.items():
            frozen = Frozen.load(str(run), layer, reading)
            if state is not None:
                model: Any = frozen.extractor.model
                model.load_state_dict(state)
            bench = Bench.open(frozen, "cifar10", root=str(self.manifests[10]))
            train, val, test = (pooled(bench.features(s)) for s in ("train", "val", "test"))
            count = bench.data.num_classes
            probe = probe_accuracy(train, test, count, val=val, device=frozen.solver_device)
            near = knn_accuracy(train, test, count, ks=(k,))[k]
            scores |= {f"neighbours, {name}": near, f"logistic, {name}": probe.accuracy}
        return {name: round(100 * score, 2) for name, score in scores.items()}

    def rows(self, seed: int, steps: int) -> Iterator[dict[str, Any]]:
        """A row for each arm."""
        folder = self.runs / f"seed_{seed}"
        run = folder / "dino"
        seconds = self.seconds("dino", steps, seed, run)
        content = torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
        torch.manual_seed(seed)
        config = load_pretrained(str(run))[0].config
        arms = {RANDOM: build_model(config).state_dict()}
        arms |= {arm: part_of(content, part) for arm, part in PARTS.items()}
        for arm, state in arms.items():
            cost = (0, 0.0) if arm == RANDOM else (steps, seconds)
            yield {**self.facts(arm, seed, *cost), **self.scored(run, state)}
        for arm in OTHERS:
            place = folder / arm.replace(" ", "_")
            number = self.steps_within(seconds, arm, seed, place)
            cost = number, self.seconds(arm, number, seed, place)
            yield {**self.facts(arm, seed, *cost), **self.scored(place)}

    def facts(self, arm: str, seed: int, steps: int, seconds: float) -> dict[str, Any]:
        crops = steps * self.setting.batch * (4 if arm in PARTS else 1)
        row = {"arm": arm, "seed": seed, "steps": steps, "crops": crops}
        return {**row, "cpu_seconds": round(seconds, 1), "cpu": cpu_name()}


def part_of(state: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """The tensors below a name."""
    start = f"{part}."
    return {n.removeprefix(start): value for n, value in state.items() if n.startswith(start)}


def pooled(features: Features) -> tuple[np.ndarray, Any]:
    """Features, of patches their mean, and labels."""
    values = features.values
    return values.astype("float32").mean(1) if values.ndim == 3 else values, features.labels


def main(words: list[str] | None = None) -> dict[str, Any]:
    parser = arguments(__doc__, "data", "runs")
    parser.add_argument("--steps", type=int, default=1_000, help="of dino; default 1000")
    parser.add_argument("--seeds", type=int, default=3, help="default 3")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    place, file = Trial(options), target(options, "papers/self_supervised/results")
    facts = {"setting": asdict(place.setting) | {"shots": []}, "steps": options.steps}
    rows: Rows = earlier(file, settings=facts).get("rows", [])
    for seed in range(options.seeds):
        if not any(row["seed"] == seed for row in rows):
            rows += place.rows(seed, options.steps)
            print(*rows, sep="\n", file=sys.stderr, flush=True)
            save(document("self supervised", rows, settings=facts), file)
    return document("self supervised", rows, settings=facts)


if __name__ == "__main__":
    main()
