"""A recipe as it is built, brought into the terms of tests/training/published.py."""

import math
import re
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback

from tests.training.published import Published
from vit.data.module import ImageData
from vit.models.config import ResNetConfig
from vit.models.zoo import model_config
from vit.recipes import find_recipe
from vit.runs.options import Options
from vit.runs.trainer import build_trainer
from vit.training.losses import Loss
from vit.training.mixing import Mixing


class Built(NamedTuple):
    """What a command line stands for."""

    config: Any
    model: Any
    data: ImageData
    trainer: Trainer


def build(args: list[str], *callbacks: Callback) -> Built:
    """Model, data and Trainer of these arguments, as `vit fit` makes them; nothing is written."""
    options = Options(args)
    data = options.data
    silent = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    listed = [*options.listed("callbacks"), *callbacks]
    trainer = build_trainer(**{**options.trainer, **silent}, callbacks=listed)
    return Built(options.config, options.build_model(data), data, trainer)


def header(name: str) -> list[str]:
    """The comment that a recipe begins with, line by line."""
    lines = find_recipe(name).read_text().splitlines()
    end = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    return lines[:end]


def variant_options(name: str) -> dict[str, list[str]]:
    """The options of each variant that the header lists."""
    lines = header(name)
    variants: dict[str, list[str]] = {}
    last: list[str] = []
    for line in lines[lines.index("# variants:") + 1 :] if "# variants:" in lines else ():
        begun = re.fullmatch(r"#   ([\w.]+): (--.*)", line)
        if begun:
            last = variants[begun[1]] = begun[2].split()
        else:
            assert line.startswith("#            --"), line
            last += line[1:].split()
    return variants


def devices(name: str) -> int:
    """The processes that the header's command starts."""
    lines = [line for line in header(name) if not line.startswith("# The batch")]
    counts = re.findall(r"--trainer.(?:devices|num_nodes) (\d+)", " ".join(lines))
    return math.prod(int(count) for count in counts)


OPTIMIZERS = {"AdamW": "adamw", "SGD": "sgd", "SGDW": "sgdw", "LAMB": "lamb"}


def read(built: Built, processes: int) -> Published:
    """What a built recipe does, for the comparison with what is published."""
    data, model, trainer = built.data, built.model, built.config.trainer
    augment, schedule = data.augment, model.schedule
    policy: Any = augment.policy
    loss = model.loss if model.labelled else Loss()
    mixing = model.mixing if model.labelled else Mixing()
    config: Any = model.model.config
    optimizer = model.optimizer([{"params": [torch.nn.Parameter(torch.zeros(1))]}])
    settings = optimizer.defaults
    assert not settings.get("nesterov") and not settings.get("amsgrad")
    assert not settings.get("dampening")
    averages = [c.init_args.decay for c in trainer.callbacks or () if c.class_path.endswith("EMA")]
    teacher = loss.teacher
    warm = bool(schedule.warmup_steps or schedule.warmup_epochs)
    model_facts: dict[str, Any] = {"pool": "mean"}
    if not isinstance(config, ResNetConfig):
        assert config.representation_size in (None, config.width)
        model_facts = {
            "dropout": config.dropout,
            "drop_path": config.drop_path,
            "uniform_drop_path": config.drop_path_uniform,
            "layer_scale": config.layer_scale,
            "tanh_layer": config.representation_size is not None,
            "pool": config.pool,
            "norm_after_pool": config.norm_after_pool,
            "pos_embed": config.pos_embed,
        }
        assert config.class_token == (config.pool == "cls" or config.norm_after_pool)
        assert config.distillation_token == (teacher is not None)
    name = built.config.model.name
    if name is not None:
        _check_sizes(name, config)
    return Published(
        **model_facts,
        model=name,
        image_size=data.image_size[0],
        batch=data.batch_size * processes * trainer.accumulate_grad_batches,
        crop=augment.crop,
        smallest_crop=augment.crop_area[0],
        resize_size=augment.resize_size,
        randaugment=policy and (policy.operations, policy.magnitude),
        randaugment_variant=policy and policy.variant,
        three_augment=augment.three_augment,
        color_jitter=augment.color_jitter,
        erasing=augment.erasing,
        repeats=data.sampling.repeats,
        mixup=mixing.mixup,
        cutmix=mixing.cutmix,
        loss=loss.kind if model.labelled else "pixels",
        smoothing=loss.label_smoothing,
        head_bias=loss.head_bias,
        distillation=teacher and (teacher.kind, teacher.alpha, teacher.temperature),
        mask_ratio=None if model.labelled else model.mask_ratio,
        norm_pix=None if model.labelled else model.target.normalised,
        optimizer=OPTIMIZERS[type(optimizer).__name__],
        lr=settings["lr"],
        weight_decay=settings["weight_decay"],
        betas=tuple(settings.get("betas", (0.9, 0.999))),
        momentum=settings.get("momentum", 0.9),
        eps=settings.get("eps", 1e-8),
        clip=trainer.gradient_clip_val,
        average=averages[0] if averages else None,
        layer_decay=model.layer_decay,
        epochs=trainer.max_epochs if trainer.max_epochs != -1 else None,
        steps=trainer.max_steps if trainer.max_steps != -1 else None,
        decay=schedule.decay,
        drops=tuple(schedule.drops),
        timescale=schedule.rsqrt_steps if schedule.decay == "rsqrt" else None,
        cooldown_steps=schedule.cooldown_steps or 0,
        warmup_steps=schedule.warmup_steps,
        warmup_epochs=schedule.warmup_epochs,
        first_lr=settings["lr"] * schedule.warmup_start if warm else 0.0,
        last_lr=_last(schedule) * settings["lr"],
        per_epoch=schedule.per_epoch,
        from_the_start=schedule.warmup_counts,
    )


def _last(schedule: Any) -> float:
    return 1.0 if schedule.decay == "constant" else schedule.final_factor


def _check_sizes(name: str, config: Any) -> None:
    """A variant for another model must not keep sizes of the first one."""
    published = model_config(name)
    if isinstance(published, ResNetConfig):
        assert config.width_factor == published.width_factor
    else:
        sizes = ("patch_size", "width", "depth", "mlp_dim", "num_heads", "stem_depths")
        assert all(getattr(config, size) == getattr(published, size) for size in sizes)
