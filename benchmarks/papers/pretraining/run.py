"""Pre-training without labels in miniature: masked patches, MAE, AIM, and random weights.

    python -m benchmarks.papers.pretraining.run --data cifar10/ --runs DIR

`--data` has train/ and test/ with one folder per class. Every arm pre-trains the same encoder on
all images of train in as many steps of as many images. It is then fine-tuned on 1 and 10 % of the
labels (recipe cifar10/mae), and probed on the images of the 10 % as it is: ridge, logistic,
attentive, nearest neighbours. Every arm has one seed; three have random weights and the best arm of
each kind by the first seed's accuracy on val after fine-tuning on 10 %. Written before the first
result, and not changed: the settings, the arms, that choice, and CLAIMS with the rule by which
page.py judges them. An interrupted command goes on where it was. `--device cuda` trains the larger
setting.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch

from benchmarks.lib.harness import (
    Rows,
    arguments,
    build_model,
    document,
    draw_images,
    earlier,
    on_device,
    save,
    shuffled,
    target,
)
from benchmarks.lib.sweep import schedule, trained
from vit.extensions.evaluation.attentive import attentive_accuracy
from vit.extensions.evaluation.fewshot import few_shot_accuracy
from vit.extensions.evaluation.frozen import Bench, Frozen, Reading
from vit.extensions.evaluation.knn import knn_accuracy
from vit.extensions.evaluation.probe import probe_accuracy

RANDOM, MASKED, TOKENS = "random weights", "masked patches", "mask tokens in the encoder"
PIXELS = {"plain": "false", "normalised": "true"}
MAE = {
    f"MAE {share} %, {pixels}": (
        *("pretrain/mae_cifar10", "--model.norm_pix", norm),
        *("--model.mask_ratio", str(share / 100)),
    )
    for share in (25, 50, 75)
    for pixels, norm in PIXELS.items()
}
BEST_MAE, CAUSAL, PREFIX = "MAE 75 %, normalised", "AIM, causal", "AIM, prefix"
AIM = {
    arm: ("pretrain/autoregressive_cifar10", "--model.prefix", prefix)
    for arm, prefix in {CAUSAL: "false", PREFIX: "true"}.items()
}
Arm = tuple[str, ...]
"""The recipe of the pre-training and its options."""
ARMS: dict[str, Arm] = {
    RANDOM: (),
    MASKED: ("pretrain/masked_patches_cifar10",),
    **MAE,
    f"{BEST_MAE}, {TOKENS}": (*MAE[BEST_MAE], "--model.mask_in_encoder", "true"),
    **AIM,
}
KINDS = {arm: arm if arm in (RANDOM, MASKED) else arm.split()[0].strip(",") for arm in ARMS}
SEEDS = 3


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Sizes of everything."""

    width: int = 96
    depth: int = 4
    num_heads: int = 3
    batch: int = 64
    steps: int = 1_000
    finetune_steps: int = 150
    decoder_width: int = 64
    decoder_depth: int = 2
    head_width: int = 96
    val_per_class: int = 100
    test_per_class: int = 400
    shots: tuple[int, ...] = (5, 25)
    neighbours: int = 20
    attentive_epochs: int = 20


SETTINGS = {
    "cpu": Setting(),
    "cuda": Setting(
        width=192, depth=9, batch=256, steps=20_000, finetune_steps=1_000, decoder_width=128,
        head_width=384, val_per_class=400, test_per_class=1_000, attentive_epochs=50,
    ),
}  # fmt: skip
QUICK = Setting(
    width=16, depth=1, num_heads=2, batch=8, steps=2, finetune_steps=2, decoder_width=16,
    decoder_depth=1, head_width=16, val_per_class=2, test_per_class=2, shots=(1,), neighbours=2,
    attentive_epochs=1,
)  # fmt: skip
QUICK_ARMS = (RANDOM, MASKED, BEST_MAE, PREFIX)
PERCENT = (1, 10)
COLUMNS = ("1 %", "10 %", "ridge 5", "ridge 25", "logistic", "attentive", "neighbours")


class Claim(NamedTuple):
    """That a mean over the seeds is above another. A kind stands for its best arm."""

    text: str
    there: str
    """The paper's numbers."""
    first: tuple[str, str]
    second: tuple[str, str]
    """Arm and column."""


HALF = "MAE 50 %, normalised"
QUARTER = "MAE 25 %, normalised"
CLAIMS = (
    *(
        Claim(f"{kind}: above random weights, {column} of the labels", "-", *pair)
        for kind in (MASKED, "MAE", "AIM")
        for column in COLUMNS[:2]
        for pair in [((kind, column), (RANDOM, column))]
    ),
    *(
        Claim(f"MAE: 75 % masked above {arm[4:8]}, {column}", "Figure 5", *pair)
        for arm in (HALF, QUARTER)
        for column in ("10 %", "logistic")
        for pair in [((BEST_MAE, column), (arm, column))]
    ),
    *(
        Claim(f"MAE: normalised pixels above plain ones, {column}", there, *pair)
        for column, there in {"10 %": "84.9 to 85.4", "logistic": "73.5 to 73.9"}.items()
        for pair in [((BEST_MAE, column), ("MAE 75 %, plain", column))]
    ),
    *(
        Claim(f"MAE: an encoder without mask tokens above one with them, {column}", there, *pair)
        for column, there in {"10 %": "84.2 to 84.9", "logistic": "59.6 to 73.5"}.items()
        for pair in [((BEST_MAE, column), (f"{BEST_MAE}, {TOKENS}", column))]
    ),
    *(
        Claim(f"AIM: a prefix above causal attention, {column}", "section 4.2", *pair)
        for column in ("10 %", "attentive")
        for pair in [((PREFIX, column), (CAUSAL, column))]
    ),
    *(
        Claim(f"{kind}: the attentive probe above the logistic one", "-", *pair)
        for kind in ("MAE", "AIM")
        for pair in [((kind, "attentive"), (kind, "logistic"))]
    ),
)
"""MAE (arXiv:2111.06377): Figure 5, Tables 1d and 1c of ViT-L/16 on ImageNet, fine-tuned on all
labels and linear. AIM (arXiv:2401.08541).

The noise of a column is the deviation over the seeds, pooled over the arms that have several. A
difference is seen, or not seen, if it is above 0, or below, by more than half of its 95 % interval
(Student, with the pooled degrees of freedom); else it is within noise. Of two columns of one arm,
the deviation is that of their difference.
"""


def draw(data: Path, percent: float, setting: Setting, manifest: Path) -> Path:
    """A CSV of `percent` of train, the same share of each class, and of images of val and test.

    Larger shares contain smaller ones; val is no part of any.
    """

    def choose(_: int, name: str, paths: list[Path]) -> dict[str, Sequence[Path]]:
        paths, size = shuffled(paths, f"0 {name}"), max(round(len(paths) * percent / 100), 1)
        return {"train": paths[:size], "val": paths[-setting.val_per_class :]}

    draw_images(data, manifest, choose, setting.test_per_class)
    return manifest


class Laboratory:
    """One setting, its data and its runs."""

    def __init__(self, data: Path, runs: Path, setting: Setting, device: str) -> None:
        self.data, self.runs, self.setting, self.device = data, runs, setting, device
        self.manifests = {
            percent: draw(data, percent, setting, runs / f"{percent}_percent.csv")
            for percent in PERCENT
        }

    def shared(self, steps: int, seed: int) -> list[str]:
        """Options of every run."""
        s = self.setting
        sizes = {"width": s.width, "depth": s.depth, "mlp_dim": 4 * s.width}
        sizes["num_heads"] = s.num_heads
        words = [w for n, v in sizes.items() for w in (f"--model.architecture.{n}", str(v))]
        batch = ("--data.batch_size", str(s.batch), "--seed_everything", str(seed))
        return [*words, *batch, *schedule(steps, 1, self.device)]

    def pretrained(self, arm: Arm, kind: str, steps: int, seed: int, folder: Path) -> Any:
        """The summary of the pre-training by a recipe and its options."""
        s, (recipe, *options) = self.setting, arm
        if kind == "MAE":
            options += ["--model.decoder_width", str(s.decoder_width)]
            options += ["--model.decoder_depth", str(s.decoder_depth)]
        if kind == "AIM":
            options += ["--model.head_width", str(s.head_width)]
        words = ["-c", recipe, "--data.root", str(self.data), "--final_split", "none"]
        return trained([*words, *self.shared(steps, seed), *options], folder)

    def finetuned(self, percent: int, seed: int, encoder: Path | None, folder: Path) -> Any:
        """The summary of the fine-tuning of an encoder, or of a training from random weights."""
        words = ["-c", "cifar10/mae", "--data.root", str(self.manifests[percent])]
        words += self.shared(self.setting.finetune_steps, seed)
        if encoder:  # which has learned the images of val, too, without their labels
            words += ["--model.pretrained", str(encoder), "--data.splits.seen", "allow"]
        return trained(words, folder)

    def row(self, arm: str, seed: int) -> dict[str, Any]:
        """All scores of an arm in per cent, and the CPU seconds."""
        folder = self.runs / f"{list(ARMS).index(arm)}_{seed}"
        encoder, cost, row = None, 0.0, {"arm": arm, "seed": seed}
        if ARMS[arm]:
            encoder = folder / "pretrained"
            settings = ARMS[arm], KINDS[arm], self.setting.steps
            summary = self.pretrained(*settings, seed, encoder)
            cost = summary["cpu_seconds"]
            row["pretraining_loss"] = summary["checkpoint"]["score"]
        row["pretraining_cpu_seconds"] = round(cost, 1)
        for percent in PERCENT:
            tuned = folder / f"{percent}_percent"
            summary = self.finetuned(percent, seed, encoder, tuned)
            cost += summary["cpu_seconds"]
            for name, split in ((f"{percent} %", "test"), (f"val {percent} %", "val")):
                row[name] = round(100 * summary["metrics"][f"{split}/acc1"], 2)
        began = os.times()
        row |= self.probed(encoder or folder / f"{PERCENT[-1]}_percent", seed, encoder is None)
        ended = os.times()
        cost += ended.user + ended.system - began.user - began.system
        for percent in PERCENT:
            shutil.rmtree(folder / f"{percent}_percent" / "checkpoints", ignore_errors=True)
        return {**row, "cpu_seconds": round(cost, 1)}

    def probed(self, run: Path, seed: int, fresh: bool) -> dict[str, float]:
        """Scores of the frozen encoder; with `fresh`, of one with new random weights."""
        s, reading = self.setting, Reading(batch_size=100, num_workers=0)
        frozen = Frozen.load(str(run), "patches", reading, device=self.device)
        model: Any = frozen.extractor.model
        if fresh:
            torch.manual_seed(seed)
            model.load_state_dict(build_model(model.config).state_dict())
        bench = Bench.open(frozen, "cifar10", root=str(self.manifests[PERCENT[-1]]))
        sets = {split: bench.features(split) for split in ("train", "val", "test")}
        patches = {split: (found.values, found.labels) for split, found in sets.items()}
        pooled = {
            split: (values.astype("float32").mean(1), labels)
            for split, (values, labels) in patches.items()
        }
        count, pair = bench.data.num_classes, (pooled["train"], pooled["test"])
        ridge = few_shot_accuracy(*pair, bench.data.classes, shots=s.shots, seeds=range(5))
        of_val, device = pooled["val"], frozen.solver_device
        attentive = attentive_accuracy(
            *(patches["train"], patches["test"], count, s.num_heads),
            val=patches["val"],
            epochs=s.attentive_epochs,
            device=self.device,
        )
        scores = {
            **{f"ridge {shots}": mean(draws) for shots, draws in ridge.items()},
            "logistic": probe_accuracy(*pair, count, val=of_val, device=device).accuracy,
            "attentive": attentive.accuracy,
            "neighbours": knn_accuracy(*pair, count, ks=(s.neighbours,))[s.neighbours],
        }
        return {name: round(100 * share, 2) for name, share in scores.items()}


def best_arms(rows: Rows) -> dict[str, str]:
    """Kind -> its best arm by the first seed's accuracy on val after fine-tuning on 10 %."""
    first = sorted((row for row in rows if row["seed"] == 0), key=lambda row: row["val 10 %"])
    return {KINDS[row["arm"]]: row["arm"] for row in first}


def turns(rows: Rows, quick: bool) -> Iterator[tuple[int, str]]:
    """Seeds and arms in the order of the trainings; reads from `rows` which arms are best."""
    for arm in QUICK_ARMS if quick else ARMS:
        yield 0, arm
    for seed in range(1, 1 if quick else SEEDS):
        for arm in best_arms(rows).values():
            yield seed, arm


def main(words: list[str] | None = None) -> dict[str, Any]:
    parser = arguments(__doc__, "data", "runs")
    parser.add_argument("--device", choices=tuple(SETTINGS), default="cpu")
    options = parser.parse_args(words)
    setting = QUICK if options.quick else SETTINGS[options.device]
    file = target(options, on_device("papers/pretraining/results", options.device))
    facts = {"setting": {**asdict(setting), "shots": list(setting.shots)}}
    rows = earlier(file, settings=facts).get("rows", [])
    torch.set_num_threads(1)
    place = Laboratory(options.data.resolve(), options.runs.resolve(), setting, options.device)
    for seed, arm in turns(rows, options.quick):
        if (seed, arm) in {(row["seed"], row["arm"]) for row in rows}:
            continue
        rows.append(place.row(arm, seed))
        print(rows[-1], file=sys.stderr, flush=True)
        save(document("pretraining", rows, settings=facts), file)
    return document("pretraining", rows, settings=facts)


if __name__ == "__main__":
    main()
