"""timm's arms of benchmarks/speed/time_to_accuracy.py: one training with a time budget.

    python -m benchmarks.speed.time_peers JOB FOLDER

trains timm's VisionTransformer. JOB is JSON with the fields of `Job`. Writes FOLDER/summary.json
with the fields that time_to_accuracy.py reads from a run of `vit fit`.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vit
from benchmarks.lib.harness import finisher, has_bfloat16, keep_memory, param_groups
from benchmarks.lib.model_peers import CIFAR, Setting, build_timm, configuration

RECIPE = "cifar10"
SIZE, BATCH, PADDING = 32, 128, 4
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
RATE, DECAY, WARM = 1e-3, 0.05, 0.05
# What both arms with PyTorch's usual optimizer and schedule say of themselves.
ADAMW = {
    "optimizer": f"AdamW, learning rate {RATE:g}, weight decay {DECAY:g}",
    "schedule": f"cosine over the budget, warm-up in its first {100 * WARM:g} %",
    "batch_size": BATCH,
}
Batches = Iterable[tuple[Tensor, Tensor]]
"""Normalised images `b c h w` and labels `b`, on the device."""


@dataclass(frozen=True)
class Job:
    """One training of a timm arm."""

    arm: str
    root: str
    """Folder with train/ and test/."""
    seed: int
    seconds: int
    device: str
    options: list[str]
    """Options of vit fit, used by the arm with our recipe."""


def cosine(step: int, used: float) -> float:
    """Factor of the learning rate, from the used share of the budget."""
    if used < WARM:
        return max(used / WARM, 1e-3)
    return (1 + math.cos(math.pi * (used - WARM) / (1 - WARM))) / 2


@dataclass(kw_only=True)
class Learner:
    """A model with its optimizer, data and schedule."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    epoch: Callable[[], Batches]
    """Training images of the next epoch."""
    test: Callable[[], Batches]
    images: dict[str, int]
    """Number of images by split."""
    setting: Setting
    device: torch.device
    factor: Callable[[int, float], float] = cosine
    """Factor of the learning rate, from the step and the used share of the budget."""
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    mix: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = lambda images, labels: (images, labels)
    read: tuple[float, float] = (0.0, 0.0)
    """Seconds and CPU seconds of decoding images into memory."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Description for the results."""

    def __post_init__(self) -> None:
        mode = self.setting.compile
        self._run = torch.compile(self.model, mode=mode, dynamic=False) if mode else self.model

    def precision(self) -> AbstractContextManager[Any]:
        mixed = self.setting.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=mixed)

    def step(self, images: Tensor, labels: Tensor) -> None:
        """One update of the weights."""
        images, labels = self.mix(images, labels)
        with self.precision():
            logits = self._run(images)
        self.loss(logits.float(), labels).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def accuracy(self) -> float:
        """Accuracy on the test images; each counts once."""
        self.model.eval()
        right, seen = torch.zeros((), dtype=torch.long, device=self.device), 0
        for images, labels in self.test():
            with self.precision():
                right += (self.model(images).argmax(-1) == labels).sum()
            seen += len(images)
        if seen != self.images["test"]:
            raise RuntimeError(f"{seen} test images were counted of {self.images['test']}")
        return right.item() / seen


def train(learner: Learner, seconds: float) -> dict[str, float]:
    """Trains until the wall-clock seconds are used."""
    rates = [group["lr"] for group in learner.optimizer.param_groups]
    learner.model.train()
    steps, seen, used = 0, 0, 0.0
    began, cpu = time.monotonic(), time.process_time()
    while used < 1:
        for images, labels in learner.epoch():
            factor = learner.factor(steps, used)
            for group, rate in zip(learner.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            learner.step(images, labels)
            steps, seen = steps + 1, seen + len(images)
            used = min((time.monotonic() - began) / seconds, 1.0)
            if used == 1:
                break
    finisher(learner.device)()
    wall, cpu = time.monotonic() - began, time.process_time() - cpu
    read, read_cpu = learner.read
    times = {"train_seconds": read + wall, "train_cpu_seconds": read_cpu + cpu}
    return {"steps": steps, "images_seen": seen, **times}


def peer(job: Job, setting: Setting, num_classes: int, like: Any = None) -> nn.Module:
    """timm's model with its own random weights, on the device.

    Has width 192, depth 6 and patch 4, or the sizes of the configuration `like`.
    """
    config = replace(like or configuration(CIFAR), num_classes=num_classes)
    torch.manual_seed(job.seed)
    return build_timm(config, setting).to(job.device)


def default_settings(job: Job) -> Learner:
    """float32, PyTorch's default optimizer and attention, torchvision's data."""
    from torch.utils.data import DataLoader
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    plain = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    changed = [transforms.RandomCrop(SIZE, padding=PADDING), transforms.RandomHorizontalFlip()]
    steps = {"train": transforms.Compose(changed + plain), "test": transforms.Compose(plain)}
    sets = {name: ImageFolder(str(Path(job.root) / name), each) for name, each in steps.items()}
    loaders = {n: DataLoader(s, BATCH, shuffle=n == "train") for n, s in sets.items()}
    setting = Setting("timm", "default")
    model = peer(job, setting, len(sets["train"].classes))

    def batches(split: str) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in loaders[split]:
            yield images.to(job.device), labels.to(job.device)

    data = f"torchvision's files, RandomCrop(padding={PADDING}), flip; no workers"
    return Learner(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY),
        epoch=partial(batches, "train"),
        test=partial(batches, "test"),
        images={name: len(each) for name, each in sets.items()},
        setting=setting,
        device=torch.device(job.device),
        settings={**ADAMW, "data": data},
    )


def best_setting(job: Job) -> Setting:
    """The fastest setting: see benchmarks/speed/models.py."""
    cpu = job.device == "cpu"
    return Setting(
        "timm",
        "best settings",
        precision="bf16" if not cpu or has_bfloat16() else "fp32",
        explicit_attention=cpu,
        fused_optimizer=True,
        compile=None if cpu else "default",
    )


def from_recipe(job: Job, options: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Our training and data by the recipe, and the fields of a Learner that come from the data.

    Decodes the images into memory.
    """
    keep_memory()
    options = {"trainer.accelerator": job.device, "data.splits.val_fraction": 0, **options}
    options = {"seed_everything": job.seed, **options}
    recipe, data = vit.from_recipe(RECIPE, data=job.root, **options)
    images = {split: data.expected_images(split) for split in ("train", "test")}
    began, cpu = time.monotonic(), time.process_time()
    loader = data.train_dataloader()
    read = (time.monotonic() - began, time.process_time() - cpu)

    def moved(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if job.device != "cpu":
            images, labels = images.pin_memory(), labels.pin_memory()
        images = images.to(job.device, non_blocking=True)
        return data.preprocess.normalize(images), labels.to(job.device, non_blocking=True)

    def epoch() -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels, _ in loader:
            data.consumed_samples += len(images)
            yield moved(images, labels)

    def test() -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels, _ in data.evaluation_loader("test"):
            yield moved(images, labels)

    fields = {"epoch": epoch, "test": test, "images": images, "read": read}
    return recipe, data, fields | {"device": torch.device(job.device), "setting": best_setting(job)}


def best_settings(job: Job) -> Learner:
    """The same training with the fastest settings we know, without torch.compile on a CPU."""
    padded = {"data.augment.crop": "pad", "data.augment.crop_padding": PADDING}
    _, data, fields = from_recipe(job, {**padded, "data.batch_size": BATCH})
    model = peer(job, fields["setting"], data.num_classes)
    about = f"vit's, in memory as uint8, windows padded by {PADDING}, flip"
    return Learner(
        **fields,
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, fused=True),
        settings={**ADAMW, "data": about},
    )


def named(options: list[str]) -> dict[str, str]:
    """`--name=value` and `--name value` by name."""
    words = [word for option in options for word in option.split("=", 1)]
    pairs = zip(words[::2], words[1::2], strict=True)
    return {name.removeprefix("--"): value for name, value in pairs}


def our_recipe(job: Job) -> Learner:
    """Sizes, data, optimizer, schedule, loss and mixing of `vit fit` with these options.

    timm's network differs in patches, class token and positions. Options of the Trainer, such as
    weight averaging, are not applied.
    """
    recipe, data, fields = from_recipe(job, named(job.options))
    model = peer(job, fields["setting"], data.num_classes, like=recipe.model.config)
    depth = recipe.model.config.depth
    groups = param_groups(
        model.named_parameters(),
        depth=depth,
        layer_decay=recipe.layer_decay,
        no_weight_decay=model.no_weight_decay(),  # pyright: ignore[reportCallIssue]
    )
    optimizer = recipe.optimizer(groups)
    for group in optimizer.param_groups:
        group["lr"] *= group["lr_scale"]
    mixing, weights = recipe.mixing, recipe.class_weights
    weights = None if weights is None else weights.to(job.device)

    def mix(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return mixing(images, labels, data.num_classes) if mixing else (images, labels)

    return Learner(
        **fields,
        model=model,
        optimizer=optimizer,
        factor=lambda step, used: recipe.schedule.factor(
            step, round(step / used) if used else None
        ),
        loss=lambda logits, targets: recipe.loss(logits, targets, weights),
        mix=mix,
        settings={
            "optimizer": f"the recipe's, {type(optimizer).__name__}",
            "schedule": f"the recipe's, {recipe.schedule.decay}",
            "batch_size": data.batch_size,
            "data": f"the recipe's, {data.augment}",
        },
    )


LEARNERS = {"timm": default_settings, "timm_best": best_settings, "timm_recipe": our_recipe}


def run(job: Job) -> dict[str, Any]:
    """Trains and scores. Returns the summary."""
    learner = LEARNERS[job.arm](job)
    times = train(learner, job.seconds)
    return {
        "finished": True,
        "metrics": {"test/acc1": learner.accuracy()},
        "images": learner.images,
        **times,
        "parameters": sum(p.numel() for p in learner.model.parameters()),
        "settings": {**asdict(learner.setting), **learner.settings},
    }


def main(text: str, folder: str) -> None:
    summary = json.dumps(run(Job(**json.loads(text))), indent=2)
    Path(folder).mkdir(parents=True, exist_ok=True)
    # Written atomically: the file marks the run as finished.
    temporary = Path(folder) / "summary.json.tmp"
    temporary.write_text(summary + "\n", encoding="utf-8")
    temporary.rename(Path(folder) / "summary.json")


if __name__ == "__main__":
    main(*sys.argv[1:])
