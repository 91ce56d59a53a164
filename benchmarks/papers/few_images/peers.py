"""Fine-tuning by other packages' defaults, with the CPU time that `-c finetune` took.

    python -m benchmarks.papers.few_images.peers --weights WEIGHTS --runs DIR --cell 20:0

`--runs` is the folder of run.py, whose run of the cell gives images, test images and CPU seconds.
All start from the same weights in the peer's own classes, at the same pixels, and their schedules
end with that time, start-up not counted (where a package counts steps, trial steps give how many).
One function scores all of them, with no validation images: the last weights count.
- timm: its package has no train script, so this follows the defaults of train.py (timm 1.0): SGD
  with Nesterov momentum 0.9, learning rate 0.1 per 256 images, weight decay 2e-5, batch 128, cosine
  with a warm-up of 5 of 300 epochs (here the same share of the time), label smoothing 0.1,
  create_transform with random crops from 8 %, flips, colour jitter 0.4; a new head.
- timm-card: the same script with the arguments that timm's author gives under "Fine-tune hparams"
  for a ViT with patches of 14 (README of huggingface.co/timm/vit_large_patch14_clip_336.
  datacompxl_ft_augreg_inat21, commit f860d2d): AdamW, 5e-5, eps 1e-6, weight decay 0.01, layer
  decay 0.8, gradients clipped at 1, batch 48. It adds 8 such batches on each of 4 GPUs up; with
  few images that would be more than there are, so one batch is a step here.
- transformers: Trainer with the arguments of examples/pytorch/image-classification: AdamW, 5e-5,
  batch 8, linear decay, random crops and flips; Dinov2ForImageClassification.
- lightly_train: train_image_classification of "dinov2/vits14-noreg", whose `backbone_weights` are a
  file of ours with Meta's keys. Set: image size, steps, CPU, no workers, no TensorBoard. Left:
  AdamW, 3e-4, weight decay 1e-4, clipping at 3, batch 16, warm-up for min(500, steps) steps (so the
  rate only rises in shorter runs), crops from 20 %, flips, colour jitter, bf16-mixed. Validation
  images, which it asks for, are one of each class of train, looked at once, after the last step.
Needs `pip install timm transformers accelerate lightly-train`, or a part of them with `--peers`.
Adds to peers.json.
"""

import copy
import csv
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torchvision import transforms

from benchmarks.lib.harness import arguments, results_path, save

TRIAL_STEPS = 12
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def rows_of(manifest: Path, split: str, classes: list[str]) -> list[tuple[Path, int]]:
    """Path and label of the images of a split."""
    with manifest.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == split]
    return [(manifest.parent / row["path"], classes.index(row["label"])) for row in rows]


class Images(torch.utils.data.Dataset[dict[str, Any]]):
    """The images of a split, transformed when they are asked for."""

    def __init__(self, rows: list[tuple[Path, int]], transform: Callable[[Any], Any]) -> None:
        self.rows, self.transform = rows, transform

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        path, label = self.rows[index]
        with Image.open(path) as image:
            return {"pixel_values": self.transform(image.convert("RGB")), "labels": label}


def prepare(*changes: Any) -> Callable[[Any], Any]:
    """The changes, and then normalised pixels."""
    pixels = (transforms.ToTensor(), transforms.Normalize(MEAN, STD))
    return transforms.Compose([*changes, *pixels])


def evaluation(pixels: int) -> Callable[[Any], Any]:
    """The whole image, resized, as `vit` scores it."""
    bicubic = transforms.InterpolationMode.BICUBIC
    return prepare(transforms.Resize((pixels, pixels), bicubic))


@torch.inference_mode()
def accuracy(logits_of: Callable[[Tensor], Tensor], data: Images) -> float:
    """Per cent of the images whose largest logit is their label."""
    right = 0
    for batch in torch.utils.data.DataLoader(data, batch_size=100):
        right += int((logits_of(batch["pixel_values"]).argmax(1) == batch["labels"]).sum())
    return 100 * right / len(data)


@contextmanager
def step_ends() -> Iterator[list[float]]:
    """CPU times of this process at which an optimizer's steps end."""
    ends: list[float] = []
    hook = register_optimizer_step_post_hook(lambda *_: ends.append(time.process_time()))
    try:
        yield ends
    finally:
        hook.remove()


def step_seconds(ends: list[float]) -> float:
    """Median CPU seconds from the end of one step to the end of the next."""
    return statistics.median(after - before for before, after in itertools.pairwise(ends))


def train_within(budget: float, train: Callable[[int], Any]) -> tuple[Any, int, float]:
    """What `train(steps)` gives for as many steps as fit in the budget; steps and CPU seconds.

    What comes before its first step and after its last is not counted.
    """
    with step_ends() as ends:
        train(TRIAL_STEPS)
    steps = max(2, round(budget / step_seconds(ends)))
    with step_ends() as ends:
        trained = train(steps)
    assert len(ends) == steps, (len(ends), steps)
    return trained, steps, ends[-1] - ends[0] + step_seconds(ends)


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


@dataclass
class Task:
    """What every peer is given. `budget`: CPU seconds of training."""

    weights: str
    train: list[tuple[Path, int]]
    test: Images
    classes: list[str]
    pixels: int
    budget: float


@dataclass
class Trained:
    """Accuracy in per cent and what it took."""

    accuracy: float
    steps: int
    batch: int
    train_cpu_seconds: float


def timm_defaults(task: Task) -> Trained:
    batch = min(128, len(task.train))
    optimizer = {"opt": "sgd", "momentum": 0.9, "weight_decay": 2e-5}
    return train_timm(task, batch, 0.1 * batch / 256, optimizer, clip=None)


def timm_card(task: Task) -> Trained:
    optimizer = {"opt": "adamw", "eps": 1e-6, "weight_decay": 0.01, "layer_decay": 0.8}
    return train_timm(task, min(48, len(task.train)), 5e-5, optimizer, clip=1.0)


def train_timm(
    task: Task, batch: int, rate: float, optimizer_args: dict[str, Any], clip: float | None
) -> Trained:
    """The loop of timm's train.py, its schedule by CPU time."""
    from timm.data.transforms_factory import create_transform
    from timm.optim._optim_factory import create_optimizer_v2

    model = load_timm(task)
    transform: Any = create_transform(
        task.pixels, is_training=True, color_jitter=0.4, interpolation="random"
    )
    loader = torch.utils.data.DataLoader(
        Images(task.train, transform), batch_size=batch, shuffle=True, drop_last=True
    )
    optimizer = create_optimizer_v2(model, lr=rate, **optimizer_args)
    model.train()
    batches, steps, last = endless(loader), 0, 0.0
    began = start = time.process_time()
    while start + last - began < task.budget:
        used, warm = (start - began) / task.budget, 5 / 300
        factor = used / warm if used < warm else (1 + math.cos(math.pi * used)) / 2
        for group in optimizer.param_groups:
            group["lr"] = rate * max(factor, 1e-4) * group.get("lr_scale", 1.0)
        images = next(batches)
        loss = nn.functional.cross_entropy(
            model(images["pixel_values"]), images["labels"], label_smoothing=0.1
        )
        optimizer.zero_grad()
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        steps += 1
        last = time.process_time() - start
        start += last
    spent = time.process_time() - began
    return Trained(accuracy(model.eval(), task.test), steps, batch, spent)


def timm_state(weights: str) -> dict[str, Tensor]:
    """The weights under timm's keys, which are Meta's without the mask token; no head."""
    from safetensors.torch import load_file

    with tempfile.TemporaryDirectory() as folder:
        convert = [sys.executable, "-m", "vit", "convert", str(weights), f"{folder}/timm"]
        subprocess.run([*convert, "--to", "timm"], check=True)
        state = load_file(f"{folder}/timm/model.safetensors")
    return {key: value for key, value in state.items() if not key.startswith("head")}


def load_timm(task: Task) -> Any:
    """timm's ViT-S/14 for the task's pixels with its weights and a new head."""
    import timm
    from timm.models.vision_transformer import checkpoint_filter_fn

    model = timm.create_model(
        "vit_small_patch14_dinov2", num_classes=len(task.classes), img_size=task.pixels
    )
    state = checkpoint_filter_fn(timm_state(task.weights), model)
    missing = model.load_state_dict(state, strict=False)
    assert set(missing.missing_keys) == {"head.weight", "head.bias"}, missing
    assert not missing.unexpected_keys, missing
    return model


def transformers_defaults(task: Task) -> Trained:
    from transformers import Dinov2ForImageClassification, Trainer, TrainingArguments

    first: Any = Dinov2ForImageClassification.from_pretrained(
        task.weights, num_labels=len(task.classes)
    )
    crop, flip = transforms.RandomResizedCrop(task.pixels), transforms.RandomHorizontalFlip()
    images = Images(task.train, prepare(crop, flip))

    def train(steps: int) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            quiet: Any = {"save_strategy": "no", "report_to": [], "disable_tqdm": True}
            arguments = TrainingArguments(
                folder, max_steps=steps, use_cpu=True, remove_unused_columns=False, seed=0, **quiet
            )
            model = copy.deepcopy(first)
            Trainer(model=model, args=arguments, train_dataset=images).train()
        return model.eval()

    model, steps, spent = train_within(task.budget, train)
    return Trained(accuracy(lambda x: model(pixel_values=x).logits, task.test), steps, 8, spent)


def lightly_defaults(task: Task) -> Trained:
    os.environ["LIGHTLY_TRAIN_EVENTS_DISABLED"] = "1"
    import lightly_train

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["LIGHTLY_TRAIN_CACHE_DIR"] = str(folder / "cache")
        torch.save(timm_state(task.weights), folder / "backbone.pt")
        write_rows(folder / "train.csv", task.train, task.classes)
        one_each = {label: (path, label) for path, label in task.train}
        write_rows(folder / "val.csv", list(one_each.values()), task.classes)

        def train(steps: int) -> Any:
            lightly_train.train_image_classification(
                out=folder / "out",
                overwrite=True,
                data={
                    "train": str(folder / "train.csv"),
                    "val": str(folder / "val.csv"),
                    "classes": dict(enumerate(task.classes)),
                },
                model="dinov2/vits14-noreg",
                steps=steps,
                num_workers=0,
                accelerator="cpu",
                devices=1,
                model_args={"backbone_weights": str(folder / "backbone.pt")},
                transform_args={"image_size": (task.pixels, task.pixels)},
                logger_args={"tensorboard": None},
            )
            exported = folder / "out" / "exported_models" / "exported_last.pt"
            return lightly_train.load_model(exported, device="cpu").eval()

        model, steps, spent = train_within(task.budget, train)
    return Trained(accuracy(model.forward_backend, task.test), steps, 16, spent)


def write_rows(file: Path, rows: list[tuple[Path, int]], classes: list[str]) -> None:
    """A CSV that lightly-train reads."""
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened)
        writer.writerow(["image_path", "label"])
        writer.writerows((path.resolve(), classes[label]) for path, label in rows)


PEERS: dict[str, tuple[str, str, Callable[[Task], Trained]]] = {
    "timm": ("timm", "defaults", timm_defaults),
    "timm-card": ("timm", "settings of a model card", timm_card),
    "transformers": ("transformers", "defaults", transformers_defaults),
    "lightly_train": ("lightly-train", "defaults", lightly_defaults),
}
"""The package, what of its settings are used, and the function that trains with them."""


def main() -> None:
    parser = arguments(__doc__, "weights", "runs", quick=False)
    parser.add_argument("--cell", default="20:0", metavar="N:SEED")
    parser.add_argument("--pixels", type=int, default=56)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.set_defaults(results=results_path("papers/few_images/peers"))
    options = parser.parse_args()
    cell = options.cell.replace(":", "_")
    manifest = options.runs / f"images_{cell}.csv"
    ours = json.loads((options.runs / f"finetune_{cell}" / "summary.json").read_text())
    classes, budget = ours["classes"], ours["train_cpu_seconds"]
    train = rows_of(manifest, "train", classes)
    test = Images(rows_of(manifest, "test", classes), evaluation(options.pixels))
    task = Task(str(options.weights), train, test, classes, options.pixels, budget)
    for name in options.peers:
        package, settings, train_peer = PEERS[name]
        torch.manual_seed(0)
        trained = train_peer(task)
        row = {
            "cell": options.cell,
            "peer": name,
            "package": package,
            "version": version(package),
            "settings": settings,
            "accuracy": round(trained.accuracy, 2),
            "steps": trained.steps,
            "batch": trained.batch,
            "train_cpu_seconds": round(trained.train_cpu_seconds, 1),
            "budget": budget,
        }
        rows = json.loads(options.results.read_text()) if options.results.is_file() else []
        rows = [r for r in rows if (r["cell"], r["peer"]) != (options.cell, name)] + [row]
        save(rows, options.results)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
