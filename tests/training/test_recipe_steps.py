"""The first twenty optimizer steps of a recipe of each kind are those of a plain loop.

The recipe runs as `vit fit` runs it: its own data, augmentation, mixing, loss, optimizer, schedule,
clipping and callbacks. Only sizes are reduced: the model's, the images', the batch, and the length
of run and warm-up, so that twenty steps see all of the schedule. The loop knows what is published
(tests/training/published.py), which tests/runs/test_recipes.py compares with all recipes.
"""

import math
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from tests.extensions.pretraining.vit_mae import as_ours, noise_of, peer_of
from tests.training.published import Published
from tests.training.published_recipes import PUBLISHED
from tests.training.recipe_reading import build
from vit.models.encoder import DropPath
from vit.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vit.recipes import find_recipe, read_options
from vit.training.draws import StepDraws
from vit.training.schedules import Schedule
from vit.weights.native import save_native
from vit.weights.pretrained import create_model

pytestmark = pytest.mark.filterwarnings("ignore")

STEPS, PER_EPOCH = 20, 5
WARMUP_STEPS, WARMUP_EPOCHS = 4, 1
TIMESCALE, COOLDOWN_STEPS = 5, 6
# Of a training set: ImageNet-1k's without one percent, and larger ones, whose warm-up is longer.
IMAGES = {"default": 1_268_355, "pretrain/vit_jft": 303_000_000}
SMALL = {"patch_size": 4, "width": 16, "depth": 2, "mlp_dim": 32, "num_heads": 2}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose answers differ from image to image."""
    torch.manual_seed(5)
    path = tmp_path_factory.mktemp("teacher")
    model = create_model("vit_ti16", num_classes=3, image_size=8, **{**SMALL, "depth": 1})
    nn.init.normal_(model.head_layers[0].get_parameter("weight"))
    colors = Preprocess(image_size=(8, 8), mean=IMAGENET_MEAN, std=IMAGENET_STD)  # the recipe's
    save_native(path, model, classes=list("abc"), preprocess=colors.to_dict(), extra={})
    return path


class Batch(NamedTuple):
    seed: int
    images: Tensor
    labels: Tensor
    draws: StepDraws
    depth: list[Any]


class Recorder(Callback):
    """What a loop needs to do the same: each batch, its random numbers and torch's seed."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.weights: dict[str, Tensor] = {}

    def on_train_start(self, trainer: Any, module: Any) -> None:
        step = module.training_step

        def recorded(batch: Any, batch_idx: int) -> Any:
            # Not before: the callback that seeds torch for each step comes after this one.
            depth = [path.draws for path in paths(module.model)]
            images, labels = batch[0].double(), batch[1].clone()
            self.batches.append(Batch(torch.initial_seed(), images, labels, module.draws, depth))
            return step(batch, batch_idx)

        module.training_step = recorded

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        # At the end of the run an average may take the weights' place.
        self.weights = {n: p.detach().clone() for n, p in module.model.named_parameters()}


def options(name: str, published: Published) -> list[str]:
    """A run of twenty steps on tiny images by a tiny model."""
    sizes = dict(SMALL)
    if published.tanh_layer:
        sizes["representation_size"] = 16
    if published.model is not None and published.model.startswith("bit"):
        sizes = {"depths": [1]}
    changed = [f"--model.architecture.{field}={value}" for field, value in sizes.items()]
    changed += ["--data.image_size=8", "--data.batch_size=8", "--data.loading.num_workers=0"]
    if published.resize_size is not None:
        changed.append("--data.augment.resize_size=10")
    if published.epochs is None:
        changed.append(f"--trainer.max_steps={STEPS}")
    else:
        changed.append(f"--trainer.max_epochs={STEPS // PER_EPOCH}")
    if published.warmup_steps:
        changed.append(f"--model.schedule.warmup_steps={WARMUP_STEPS}")
    else:
        changed.append(f"--model.schedule.warmup_epochs={WARMUP_EPOCHS}")
    if published.decay == "rsqrt":
        changed.append(f"--model.schedule.rsqrt_steps={TIMESCALE}")
        changed.append(f"--model.schedule.cooldown_steps={COOLDOWN_STEPS}")
    trainer = {"precision": "64-true", "accelerator": "cpu", "devices": 1}
    trainer |= {"limit_val_batches": 0}
    return ["-c", name, *changed, *(f"--trainer.{key}={value}" for key, value in trainer.items())]


# Every optimizer, loss, schedule, pooling and way to mix images.
CASES = [
    "pretrain/vit_jft",
    "pretrain/scaling_vit_g",
    "pretrain/scaling_vit_gigantic",
    "pretrain/augreg_imagenet1k",
    "pretrain/deit",
    "pretrain/deit_distilled",
    "pretrain/deit_distilled:soft",
    "pretrain/deit3_imagenet1k",
    "pretrain/bit_imagenet1k",
    "pretrain/torchvision_vit_b16",
    "imagenet1k/vit_b16",
    "imagenet1k/vit_s16",
    "transfer/vit",
    "transfer/vit_polyak",
    "transfer/bit_medium",
    "transfer/deit3",
    "transfer/mae",
    "cifar10/equal_flops_hybrid",
]


@pytest.mark.parametrize("case", CASES)
def test_the_first_twenty_steps_are_those_of_a_plain_loop(
    case: str, training_photos: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, _, variant = case.partition(":")
    published = PUBLISHED[name][variant]
    arguments = [*options(name, published), f"--data.root={training_photos}"]
    if published.distillation is not None:
        kind, alpha, temperature = published.distillation
        values = {"kind": kind, "alpha": alpha, "temperature": temperature, "weights": teacher}
        arguments += [f"--model.loss.teacher.{field}={value}" for field, value in values.items()]
    torch.manual_seed(0)
    recorder = Recorder()
    built = build(arguments, recorder)
    plain = deepcopy(built.model.model).double().train()
    built.trainer.fit(built.model, built.data)
    assert built.trainer.global_step == len(recorder.batches) == STEPS

    guide = create_model(pretrained=teacher, report=lambda _: None).double().eval()
    torch.set_default_dtype(torch.float64)
    try:
        run_plain_loop(plain, recorder.batches, published, guide)
    finally:
        torch.set_default_dtype(torch.float32)
    for key, parameter in plain.named_parameters():
        torch.testing.assert_close(recorder.weights[key], parameter, rtol=0, atol=1e-6, msg=key)


def test_the_first_twenty_steps_of_a_masked_autoencoder_are_those_of_transformers(
    training_photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, published = "pretrain/mae_imagenet1k", PUBLISHED["pretrain/mae_imagenet1k"][""]
    decoder = {"width": 16, "depth": 1, "heads": 2}
    arguments = [
        *options(name, published),
        f"--data.root={training_photos}",
        "--data.image_size=16",
    ]
    arguments += [f"--model.decoder_{key}={value}" for key, value in decoder.items()]
    built = build(arguments, recorder := Recorder())
    peer = peer_of(built.model)
    peer.double().train()
    drawn, draw = [], built.model.draw

    def recorded(_: Any, uniforms: Tensor) -> Any:
        drawn.append(draw(uniforms))
        return drawn[-1]

    monkeypatch.setattr(type(built.model), "draw", recorded)
    built.trainer.fit(built.model, built.data)
    assert len(drawn) == len(recorder.batches) == STEPS
    trained = [(n, p) for n, p in peer.named_parameters() if p.requires_grad]
    tokens = ("cls_token", "mask_token")  # which decay in the source
    groups = [
        {"params": [p for n, p in trained if (p.dim() > 1 and not n.endswith(tokens)) == kernels]}
        | {"weight_decay": published.weight_decay * kernels}
        for kernels in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups, betas=published.betas, eps=published.eps)
    for step, (batch, corruption) in enumerate(zip(recorder.batches, drawn, strict=True)):
        optimizer.zero_grad()
        peer(batch.images, noise=noise_of(corruption.seen, 16)).loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(published, step)
        optimizer.step()
    for key, expected in as_ours(peer, lambda p: p.detach()).items():
        if key.startswith("model."):
            actual = recorder.weights[key.removeprefix("model.")]
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6, msg=key)


def paths(model: nn.Module) -> list[DropPath]:
    """The layers with stochastic depth."""
    return [layer for layer in model.modules() if isinstance(layer, DropPath)]


def run_plain_loop(
    model: Any, batches: list[Batch], published: Published, teacher: nn.Module
) -> None:
    """Trains the model on these batches, as the source describes it."""
    optimizer = optimizer_of(published, model)
    for step, batch in enumerate(batches):
        torch.manual_seed(batch.seed)
        for path, numbers in zip(paths(model), batch.depth, strict=True):
            path.draws = numbers
        images, targets = mixed(
            batch.images, F.one_hot(batch.labels, 3).double(), published, batch.draws
        )
        model.zero_grad()
        if published.distillation is None:
            loss_of(model(images), targets, published).backward()
        else:
            distilled_loss(model, images, targets, published, teacher).backward()
        if published.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), published.clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(published, step) * group["scale"]
            if published.optimizer == "sgdw":  # the decay bypasses the momentum (big_vision)
                for parameter in group["params"]:
                    parameter.data *= 1 - group["lr"] * group["decay"]
        optimizer.step()


def optimizer_of(published: Published, model: nn.Module) -> torch.optim.Optimizer:
    """torch's and timm's; only kernels decay, and lower layers learn more slowly."""
    key = "decay" if "sgd" in published.optimizer else "weight_decay"
    groups = []
    for name, parameter in model.named_parameters():
        decays = name.endswith("weight") and parameter.dim() > 1
        layer = SMALL["depth"] + 1
        if name.startswith(("patch_embed", "cls_token", "pos_embed")):
            layer = 0
        elif name.startswith("blocks."):
            layer = int(name.split(".")[1]) + 1
        groups.append(
            {
                "params": [parameter],
                key: published.weight_decay if decays else 0.0,
                "scale": published.layer_decay ** (SMALL["depth"] + 1 - layer),
            }
        )
    if "sgd" in published.optimizer:
        return torch.optim.SGD(groups, momentum=published.momentum)
    options: dict[str, Any] = {"betas": published.betas, "eps": published.eps}
    if published.optimizer == "adamw":
        return torch.optim.AdamW(groups, **options)
    return pytest.importorskip("timm.optim").Lamb(groups, max_grad_norm=None, **options)


def learning_rate(
    published: Published,
    step: int,
    *,
    total: int = STEPS,
    epoch: int = PER_EPOCH,
    warm_steps: int = WARMUP_STEPS,
    warm_epochs: int = WARMUP_EPOCHS,
    timescale: int = TIMESCALE,
    cooldown_steps: int = COOLDOWN_STEPS,
) -> float:
    """At a step from 0: linear warm-up, then the decay."""
    lr, last = published.lr, published.last_lr
    if published.per_epoch:
        step = step // epoch * epoch
    warm = warm_steps if published.warmup_steps else warm_epochs * epoch
    if step < warm:
        return published.first_lr + (lr - published.first_lr) * step / warm
    done = step / total if published.from_the_start else (step - warm) / (total - warm)
    if published.decay == "cosine":
        return last + (lr - last) * (1 + math.cos(math.pi * done)) / 2
    if published.decay == "linear":
        return last + (lr - last) * (1 - done)
    if published.decay == "rsqrt":
        cooled = min(1.0, (total - step) / cooldown_steps)
        return lr * cooled / math.sqrt((step - warm + timescale) / timescale)
    return lr / 10 ** sum(done > share for share in published.drops)


def mixed(
    images: Tensor, targets: Tensor, published: Published, draws: StepDraws
) -> tuple[Tensor, Tensor]:
    """Image by image, mixup (arXiv:1710.09412) or CutMix (arXiv:1905.04899), with equal chance.

    The sources draw one share for a batch, a run one for each image, as timm's mode "elem" does.
    """
    if not published.mixup and not published.cutmix:
        return images, targets
    numbers = draws.uniforms("mixing", 3).tolist()
    shares = {
        name: draws.beta(name, alpha).tolist()
        for name, alpha in {"mixup": published.mixup, "cutmix": published.cutmix}.items()
        if alpha
    }
    mixed_images, mixed_targets, n = images.clone(), targets.clone(), len(images)
    for i, (either, row, column) in enumerate(numbers):
        j = (i + n // 2) % n
        name = (
            "mixup" if "cutmix" not in shares or ("mixup" in shares and either >= 0.5) else "cutmix"
        )
        share, side = shares[name][i], images.shape[-1]
        if name == "mixup":
            mixed_images[i] = share * images[i] + (1 - share) * images[j]
        else:
            length = int(side * math.sqrt(1 - share))
            (top, bottom), (left, right) = (
                (max(0, middle - length // 2), min(side, middle + length // 2))
                for middle in (int(row * side), int(column * side))
            )
            mixed_images[i, :, top:bottom, left:right] = images[j, :, top:bottom, left:right]
            share = 1 - (bottom - top) * (right - left) / side**2
        mixed_targets[i] = share * targets[i] + (1 - share) * targets[j]
    return mixed_images, mixed_targets


def loss_of(logits: Tensor, targets: Tensor, published: Published) -> Tensor:
    if published.loss == "softmax":
        return F.cross_entropy(logits, targets, label_smoothing=published.smoothing)
    if published.loss == "bce":  # deit/engine.py: targets.gt(0.0), BCEWithLogitsLoss()
        return F.binary_cross_entropy_with_logits(logits, (targets > 0).double())
    # big_vision/utils.py, sigmoid_xent
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / len(logits)


def distilled_loss(
    model: Any, images: Tensor, targets: Tensor, published: Published, teacher: nn.Module
) -> Tensor:
    """deit/losses.py, DistillationLoss."""
    assert published.distillation is not None
    kind, alpha, tau = published.distillation
    logits, student = model.forward_distilled(images)
    with torch.no_grad():
        answers = teacher(images)
    if kind == "hard":
        loss = -student.log_softmax(1).gather(1, answers.argmax(1, keepdim=True)).mean()
    else:
        wanted = (answers / tau).softmax(1)
        terms = wanted * (wanted.log() - (student / tau).log_softmax(1))
        loss = terms.sum() * tau**2 / student.numel()
    return (1 - alpha) * loss_of(logits, targets, published) + alpha * loss


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_learning_rate_of_the_whole_run_is_the_published_one(name: str) -> None:
    published = PUBLISHED[name][""]
    epoch = IMAGES.get(name, IMAGES["default"]) // published.batch
    total = published.steps or (published.epochs or 0) * epoch
    lengths = {"warm_steps": published.warmup_steps, "warm_epochs": published.warmup_epochs}
    if published.timescale is not None:
        lengths |= {"timescale": published.timescale, "cooldown_steps": published.cooldown_steps}
    schedule = Schedule(**read_options(find_recipe(name))["model"]["schedule"])
    for step in (*range(STEPS), *np.linspace(STEPS, total - 1, 50).astype(int).tolist()):
        expected = learning_rate(published, step, total=total, epoch=epoch, **lengths)
        actual = published.lr * schedule.factor(step, total, epoch)
        assert actual == pytest.approx(expected, rel=1e-4, abs=1e-12), step
