"""Temperature and sets of classes on CIFAR-10 (JPEG): are probabilities and coverage what they say?

    python -m benchmarks.papers.confidence.run --data cifar10/ --runs DIR

`--data` has train/ and test/ with one folder per class. For each seed a small ViT is trained from
random weights on 400 images per class, with 100 more as val, to which the run fits its temperature;
likelihood and calibration error on 4,000 test images, of the run's probabilities with and without
it, have 95 % bootstrap intervals over the test images. Coverage: the test images are split ten
times by seed into 1,000 whose scores make the cut, and 3,000 on which the sets are counted; for
exchangeable images that count is beta-binomial. 2,000 splits show how often it is in its interval.

Finished runs are reused.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import betabinom

import vit
from benchmarks.lib.harness import (
    arguments,
    document,
    draw_images,
    portable,
    run_fit,
    save,
    target,
)
from vit.confidence import cut, set_scores
from vit.data.settings import Loading
from vit.extensions.evaluation.features import Extractor
from vit.extensions.reports.reliability import expected_calibration_error

PER_CLASS = {"train": 400, "val": 100, "test": 400}
COVERAGES = (0.8, 0.9, 0.95)
SPLITS, MANY, HELD_OUT, RESAMPLES = 10, 2_000, 1_000, 1_000
SETTINGS = [
    *("-c", "cifar10", "--trainer.max_epochs", "20", "--trainer.accelerator", "cpu"),
    *("--data.loading.num_workers", "0", "--model.architecture.stem_depths", "null"),
    *("--model.architecture.patch_size", "8", "--model.architecture.width", "96"),
    *("--model.architecture.depth", "3", "--model.architecture.mlp_dim", "192"),
]


def draw(data: Path, seed: int, file: Path) -> None:
    """A CSV with train and val drawn by the seed; test images are the same for every seed."""

    def choose(number: int, _: str, paths: list[Path]) -> dict[str, Sequence[Path]]:
        order = np.random.default_rng([seed, number]).permutation(len(paths))
        train, both = PER_CLASS["train"], PER_CLASS["train"] + PER_CLASS["val"]
        chosen = [paths[place] for place in order[:both]]
        return {"train": chosen[:train], "val": chosen[train:]}

    draw_images(data, file, choose, PER_CLASS["test"])


def test_logits(run: Path, manifest: Path) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Logits `n k` and labels of the test images, and the run's temperature."""
    classifier = vit.load(run)
    size, loading = classifier.preprocess.image_size, Loading(num_workers=0)
    data = vit.ImageData(root=str(manifest), image_size=size, loading=loading)
    data.preprocess = classifier.preprocess
    network: Any = classifier.model
    found = Extractor(network, "logits")(data, "test")
    logits, labels = torch.from_numpy(found.values), torch.from_numpy(found.labels)
    return logits, labels, classifier.temperature


def likelihoods(logits: torch.Tensor, labels: torch.Tensor, temperature: float) -> np.ndarray:
    """Negative log-likelihood of each image, (n,)."""
    scaled = logits.double() / temperature
    return torch.nn.functional.cross_entropy(scaled, labels, reduction="none").numpy()


def interval(values: list[float]) -> list[float]:
    return [round(float(end), 4) for end in np.quantile(values, [0.025, 0.975])]


def before_and_after(logits: torch.Tensor, labels: torch.Tensor, t: float) -> dict[str, Any]:
    """Likelihood and calibration error, with bootstrap intervals of their changes."""
    rows, random = {}, np.random.default_rng(0)
    draws = [random.integers(0, len(labels), len(labels)) for _ in range(RESAMPLES)]
    nll = [likelihoods(logits, labels, scale) for scale in (1.0, t)]
    for name in ("nll", "ece"):

        def of(which: Any, after: int, name: str = name) -> float:
            if name == "nll":
                return float(nll[after][which].mean())
            scores, truth = logits[which].numpy(), labels[which].numpy()
            return expected_calibration_error(scores, truth, temperature=t if after else 1.0)

        pairs = np.array([[of(draw, 0), of(draw, 1)] for draw in draws])
        everything = slice(None)
        rows[name] = {
            "before": round(of(everything, 0), 4),
            "after": round(of(everything, 1), 4),
            "before_interval": interval(pairs[:, 0].tolist()),
            "after_interval": interval(pairs[:, 1].tolist()),
            "change_interval": interval((pairs[:, 1] - pairs[:, 0]).tolist()),
        }
    return rows


def coverage(scores: torch.Tensor, labels: torch.Tensor, asked: float) -> dict[str, Any]:
    """Share of sets with the true class in each of ten splits, how many of these lie in the
    interval, and the share of many that do."""
    of_label = scores.gather(1, labels[:, None])[:, 0]
    shares, sizes, inside = [], [], []
    rest, place = len(labels) - HELD_OUT, int(np.ceil((HELD_OUT + 1) * asked - 1e-9))
    low, high = betabinom(rest, place, HELD_OUT + 1 - place).interval(0.95)
    for seed in range(MANY):
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(labels)))
        threshold = cut(of_label[order[:HELD_OUT]].sort().values, asked)
        hits = int((of_label[order[HELD_OUT:]] <= threshold).sum())
        inside.append(bool(low <= hits <= high))
        if seed < SPLITS:
            sizes.append(float((scores[order[HELD_OUT:]] <= threshold).sum(1).double().mean()))
            shares.append(round(hits / rest, 4))
    return {
        "asked": asked,
        "shares": shares,
        "interval": [round(low / rest, 4), round(high / rest, 4)],
        "inside": sum(inside[:SPLITS]),
        "inside_of_many": round(sum(inside) / MANY, 4),
        "classes": round(float(np.mean(sizes)), 2),
    }


def row(run: Path, manifest: Path, summary: dict[str, Any]) -> dict[str, Any]:
    """What one run shows."""
    logits, labels, temperature = test_logits(run, manifest)
    scores = set_scores((logits.double() / temperature).softmax(1))
    return {
        "seed": int(run.name.rpartition("_")[2]),
        "accuracy": round(float((logits.argmax(1) == labels).double().mean()), 4),
        "temperature": round(temperature, 4),
        **before_and_after(logits, labels, temperature),
        "coverage": [coverage(scores, labels, asked) for asked in COVERAGES],
        "sets_of_run": summary["confidence"]["sets"],
        "command": portable(summary["command"]),
    }


def main() -> None:
    parser = arguments(__doc__, "data", "runs", quick=False)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options, rows = parser.parse_args(), []
    for seed in options.seeds:
        run, manifest = options.runs / f"seed_{seed}", options.runs / f"images_{seed}.csv"
        draw(options.data, seed, manifest)
        words = [*SETTINGS, "--data.root", str(manifest), "--seed_everything", str(seed)]
        rows.append(row(run, manifest, run_fit(words, run)))
        facts = {"images": {name: 10 * count for name, count in PER_CLASS.items()}}
        content = document("temperature and sets", rows, **facts, splits=SPLITS)
        save(content, target(options, "papers/confidence/results"))


if __name__ == "__main__":
    main()
