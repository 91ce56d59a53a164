"""timm's arms of benchmarks/time_to_accuracy.py: one training with a time budget.

    python benchmarks/time_peers.py JOB FOLDER

trains timm's VisionTransformer. JOB is JSON with the fields of `Job`. Writes FOLDER/summary.json
with the fields that time_to_accuracy.py reads from a run of `vit fit`.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from model_peers import CIFAR, Setting, build_timm, configuration
from torch import Tensor, nn
from torch.nn import functional as F

import vit
from vit.cache import cache_directory
from vit.compute.timing import finisher
from vit.hardware import default_precision, keep_memory
from vit.training.optimizers.groups import param_groups
from vit.training.schedules import Schedule

RECIPE = "cifar10"
SIZE, BATCH, PADDING = 32, 128, 4
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
RATE, DECAY = 1e-3, 0.05
# Schedule of timm's arms over fractions of the budget instead of steps: 5 % warm-up.
COSINE, PARTS = Schedule(decay="cosine", warmup_steps=500), 10_000

Batches = Iterable[tuple[Tensor, Tensor]]
"""Normalised images `b c h w` and labels `b`, on the device."""


@dataclass(frozen=True)
class Job:
    """One training of a timm arm."""

    arm: str
    root: str | None
    """Folder with train/ and test/; None downloads CIFAR-10 with torchvision."""
    seed: int
    seconds: int
    each_epoch: bool
    """Whether to score the test images after every epoch, not only at the end."""
    device: str
    options: list[str]
    """Options of vit fit, used by the arm with our recipe."""


class Clock:
    """Stopwatch for seconds of training."""

    def __init__(
        self,
        budget: float,
        *,
        wall: Callable[[], float] = time.monotonic,
        finish: Callable[[], object] = lambda: None,
    ) -> None:
        self.budget = budget
        self._wall, self._finish = wall, finish
        self._before = self._cpu_before = 0.0
        self._since: float | None = None
        self._cpu_since = 0.0

    def start(self) -> None:
        self._since, self._cpu_since = self._wall(), time.process_time()

    def stop(self) -> None:
        """Stops after the device has finished its work."""
        self._finish()
        self._before, self._cpu_before = self.seconds, self.cpu_seconds
        self._since = None

    @property
    def seconds(self) -> float:
        return self._before + (0 if self._since is None else self._wall() - self._since)

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of all threads of this process."""
        running = 0 if self._since is None else time.process_time() - self._cpu_since
        return self._cpu_before + running

    @property
    def used(self) -> float:
        """Fraction of the budget, in [0, 1]."""
        return min(self.seconds / self.budget, 1.0)


@dataclass(kw_only=True)
class Learner:
    """A model with its optimizer, data and schedule."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    epoch: Callable[[], Batches]
    """Training images of the next epoch."""
    test: Callable[[], Batches]
    num_train: int
    num_test: int
    setting: Setting
    device: torch.device
    factor: Callable[[int, float], float] = lambda step, used: COSINE.factor(
        int(PARTS * used), PARTS
    )
    """Factor of the learning rate, from the step and the used fraction of the budget."""
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
        self.model.train()
        if seen != self.num_test:
            raise RuntimeError(f"{seen} test images were counted, the set has {self.num_test}")
        return right.item() / seen


def train(learner: Learner, clock: Clock, *, each_epoch: bool) -> dict[str, Any]:
    """Trains until the budget is used. With `each_epoch`, scores every epoch."""
    rates = [group["lr"] for group in learner.optimizer.param_groups]
    steps = seen = 0
    scores: list[tuple[float, float]] = []
    clock.start()
    while clock.used < 1:
        for images, labels in learner.epoch():
            factor = learner.factor(steps, clock.used)
            for group, rate in zip(learner.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            learner.step(images, labels)
            steps, seen = steps + 1, seen + len(images)
            if clock.used >= 1:
                break
        if each_epoch:
            clock.stop()
            scores.append((clock.seconds, learner.accuracy()))
            clock.start()
    clock.stop()
    return {"steps": steps, "images_seen": seen, "scores": scores}


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
    from torchvision.datasets import CIFAR10, ImageFolder

    plain = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    changed = [transforms.RandomCrop(SIZE, padding=PADDING), transforms.RandomHorizontalFlip()]
    steps = {"train": transforms.Compose(changed + plain), "test": transforms.Compose(plain)}
    if job.root is None:
        folder = str(cache_directory() / "data")
        sets: dict[str, Any] = {
            name: CIFAR10(folder, name == "train", transform, download=True)
            for name, transform in steps.items()
        }
    else:
        sets = {
            n: ImageFolder(str(Path(job.root) / n), transform) for n, transform in steps.items()
        }
    setting = Setting("timm", "default")
    model = peer(job, setting, len(sets["train"].classes))
    loaders = {n: DataLoader(s, BATCH, shuffle=n == "train") for n, s in sets.items()}

    def batches(split: str) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in loaders[split]:
            yield images.to(job.device), labels.to(job.device)

    return Learner(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY),
        epoch=partial(batches, "train"),
        test=partial(batches, "test"),
        num_train=len(sets["train"]),
        num_test=len(sets["test"]),
        setting=setting,
        device=torch.device(job.device),
        settings={
            "optimizer": f"AdamW, learning rate {RATE:g}, weight decay {DECAY:g}",
            "schedule": "cosine over the budget, warm-up in its first 5 %",
            "batch_size": BATCH,
            "data": f"torchvision's files, RandomCrop(padding={PADDING}), flip; no workers",
        },
    )


def best_setting(job: Job) -> Setting:
    """The fastest setting: see benchmarks/models.py."""
    bf16 = default_precision(job.device)[0] == "bf16-mixed"
    cpu = job.device == "cpu"
    return Setting(
        "timm",
        "best settings",
        precision="bf16" if bf16 else "fp32",
        explicit_attention=cpu,
        fused_optimizer=True,
        compile=None if cpu else "default",
    )


def in_memory(job: Job, data: Any) -> dict[str, Any]:
    """The fields of a Learner that come from an ImageData; decodes its images."""
    num_test = data.expected_images("test")  # scans the files
    reading = Clock(job.seconds)
    reading.start()
    loader = data.train_dataloader()
    reading.stop()

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

    return {
        "epoch": epoch,
        "test": test,
        "num_train": len(data.image_set("train")),
        "num_test": num_test,
        "read": (reading.seconds, reading.cpu_seconds),
        "device": torch.device(job.device),
        "setting": best_setting(job),
    }


def best_settings(job: Job) -> Learner:
    """The same training with the fastest settings we know, without torch.compile on a CPU."""
    from vit.data.module import ImageData, InputFormat
    from vit.data.options import Loading, Splitting
    from vit.data.transforms import TrainTransform

    keep_memory()
    data = ImageData(
        None if job.root else RECIPE,
        job.root,
        image_size=SIZE,
        batch_size=BATCH,
        augment=TrainTransform(crop="pad", crop_padding=PADDING),
        inputs=InputFormat(crop_fraction=1.0, mean=MEAN, std=STD),
        splits=Splitting(val_fraction=0, seed=job.seed),
        loading=Loading(num_workers=0, cache="ram"),
    )
    parts = in_memory(job, data)
    model = peer(job, parts["setting"], data.num_classes)
    return Learner(
        **parts,
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, fused=True),
        settings={
            "optimizer": f"AdamW, learning rate {RATE:g}, weight decay {DECAY:g}",
            "schedule": "cosine over the budget, warm-up in its first 5 %",
            "batch_size": BATCH,
            "data": f"vit's, in memory as uint8, windows padded by {PADDING}, flip",
        },
    )


def named(options: list[str]) -> dict[str, str]:
    """`--name=value` and `--name value` by name."""
    words = [word for option in options for word in option.split("=", 1)]
    return {
        name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)
    }


def our_recipe(job: Job) -> Learner:
    """Sizes, data, optimizer, schedule, loss and mixing of `vit fit` with these options.

    timm's network differs in patches, class token and positions. Options of the Trainer, such as
    weight averaging, are not applied.
    """
    keep_memory()
    recipe, data = vit.from_recipe(
        RECIPE,
        data=job.root,
        seed_everything=job.seed,
        **{"trainer.accelerator": job.device, "data.splits.val_fraction": 0, **named(job.options)},
    )
    assert isinstance(recipe, vit.ImageClassifier)
    parts = in_memory(job, data)
    model = peer(job, parts["setting"], data.num_classes, like=recipe.model.config)
    groups = param_groups(
        model.named_parameters(),
        depth=len(model.get_submodule("blocks")._modules),
        layer_decay=recipe.layer_decay,
    )
    optimizer = recipe.optimizer(groups)
    for group in optimizer.param_groups:
        group["lr"] *= group["lr_scale"]
    mixing, weights = recipe.mixing, recipe.class_weights
    weights = None if weights is None else weights.to(job.device)

    def mix(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return mixing(images, labels, data.num_classes) if mixing else (images, labels)

    return Learner(
        **parts,
        model=model,
        optimizer=optimizer,
        factor=lambda step, used: recipe.schedule.factor(step, None, used),
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
    clock = Clock(job.seconds, finish=finisher(torch.device(job.device)))
    learner.model.train()
    done = train(learner, clock, each_epoch=job.each_epoch)
    last = done["scores"][-1][1] if done["scores"] else learner.accuracy()
    return {
        "metrics": {"test/acc1": last},
        "images": {"train": learner.num_train, "test": learner.num_test},
        "train_seconds": learner.read[0] + clock.seconds,
        "train_cpu_seconds": learner.read[1] + clock.cpu_seconds,
        **done,
        "parameters": sum(p.numel() for p in learner.model.parameters()),
        "settings": {**asdict(learner.setting), **learner.settings},
    }


def main(text: str, folder: str) -> None:
    summary = json.dumps(run(Job(**json.loads(text))), indent=2)
    # Written atomically: the file marks the run as finished.
    temporary = Path(folder) / "summary.json.tmp"
    temporary.write_text(summary + "\n", encoding="utf-8")
    temporary.rename(Path(folder) / "summary.json")


if __name__ == "__main__":
    main(*sys.argv[1:])
