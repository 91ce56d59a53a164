"""A `vit fit` of milliseconds for tests of `vit tune`: it writes what a run writes, with right
answers that its words decide, and a line in $FAKE_LOG.

python fake_fit.py WORDS
"""

import json
import os
import random
import sys
import time
from pathlib import Path

import numpy as np
from filelock import FileLock

IMAGES = {"val": 40, "test": 60}


def accuracy(words: dict[str, str]) -> float:
    """A closed form: three times the rate is best, LoRA worst; longer is better, and so is the
    first fold."""
    score = 0.6 + 0.01 * min(int(words.get("trainer.max_steps", 0)), 20) / 20
    score += {"0.0003": 0.2, "3e-05": -0.1}.get(words.get("model.optimizer.lr", ""), 0.0)
    score -= 0.1 * (words.get("data.columns.split") == "fold_2")
    score += float(os.environ.get("FAKE_TEACHER", "0")) * ("teacher" in words)
    return score - 0.3 * (words["config"] == "lora")


def main() -> int:
    words = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
    run, split = Path(words["run_dir"]), words["final_split"]
    run.mkdir(parents=True, exist_ok=True)
    with FileLock(run / ".lock"):
        return 0 if (run / "summary.json").is_file() else train(words, run, split)


def train(words: dict[str, str], run: Path, split: str) -> int:
    with open(os.environ["FAKE_LOG"], "a") as log:
        log.write(f"{run.name}\n")
    time.sleep(float(os.environ.get("FAKE_SECONDS", "0")))
    if words["config"] == os.environ.get("FAKE_FAILS"):
        print("vit: the loss is not finite since step 2", file=sys.stderr)
        return 2
    (run / "checkpoints").mkdir(exist_ok=True)
    count = IMAGES[split]
    right, metric = np.arange(count) < round(accuracy(words) * count), "acc1"
    random.Random(run.name).shuffle(order := list(range(count)))  # as of several processes
    top, labels = np.where(right, 0, 1), np.zeros(count, int)
    if "data.label_separator" in words:  # of two labels, one each
        metric, labels = "map", np.eye(2)[np.arange(count) % 2]
        top = np.where(right, labels.argmax(1), labels.argmin(1))
    write_predictions(run, np.array(order), labels[order], np.stack([top, 1 - top], 1)[order])
    rows = [f"{step},1.0,{0.01 * step}" for step in range(int(words.get("trainer.max_steps", 1)))]
    (run / "metrics.csv").write_text("\n".join(["step,train/loss,seconds", *rows, "9,,9.0", ""]))
    summary = {"finished": True, "metrics": {f"{split}/{metric}": float(right.mean())}}
    (run / "summary.json").write_text(json.dumps(summary))
    return 0


def write_predictions(run: Path, order: np.ndarray, labels: np.ndarray, top: np.ndarray) -> None:
    """What a run writes of images in this order: labels `n`, classes by probability `n t`."""
    shares = np.linspace(0.9, 0.1, top.shape[1])[None].repeat(len(top), 0)
    names = np.array([f"{index}.jpg" for index in order])
    np.savez(
        run / "predictions.npz", indices=order, names=names, labels=labels, top_classes=top,
        top_probabilities=shares, label_probabilities=shares[:, 0], split="val",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
