"""Training on smaller images first (`data.sizes`): each size has an equal share of the steps, as
the stages of progressive learning have (EfficientNetV2, arXiv:2104.00298, section 4).

The size is a part of the sampler's keys, so that it follows the optimizer's step whatever workers
read ahead. Order and draws are those of a run without sizes. A learned table of positions keeps its
size, and the network interpolates it.
Shapes: n images, h w pixels.
"""

import sys
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from lightning.pytorch import Trainer
from PIL import Image
from torch.utils.data import Sampler

from vit.console import say
from vit.data.dataset import Batch, ImageDataset, Sample
from vit.data.dataset import Key as IndexOrKey
from vit.data.module import ImageData
from vit.data.sampler import Key, TrainBatchSampler
from vit.errors import UserError
from vit.models.vision_transformer import VisionTransformer
from vit.preprocessing import Size
from vit.training.budget import step_budget
from vit.training.image_classifier import ImageClassifier

MOST = 3
"""Sizes before the last one."""
RECOMPILATIONS = 16
"""Shapes of batches for which a compiled network is compiled: of each size, and of evaluations."""
SizedKey = tuple[int, int, int, int]
"""A key of the sampler, and the place of its size."""


def growing(
    data: ImageData, dataset: ImageDataset, batches: TrainBatchSampler
) -> tuple["SizedImages", "SizedBatches"]:
    """Row of the table `feeds`: images of `data.sizes`, and of image_size at the end.

    UserError for sizes that the network or the augmentation cannot have, and for a run whose length
    is not known at its start.
    """
    trainer = data.trainer
    if trainer is None:
        raise UserError("data.sizes follows the steps of a run, and there is no Trainer; drop it")
    smaller = [(size, size) if isinstance(size, int) else size for size in data.sizes or ()]
    _check_sizes(data, smaller, _module(trainer, data).model)
    total, sizes = _length(trainer), [*smaller, data.image_size]
    _compile_each_shape()
    first = [-(-place * total // len(sizes)) for place in range(len(sizes))]
    parts = (f"{h} x {w} from step {step:,}" for (h, w), step in zip(sizes, first, strict=True))
    say(f"image sizes: {', '.join(parts)}")
    images = [_of_size(dataset, size) for size in smaller]
    return SizedImages([*images, dataset]), SizedBatches(batches, len(sizes), total)


def _compile_each_shape() -> None:
    """Lets a compiled network compile each size; as symbols, shapes would round otherwise."""
    if (dynamo := sys.modules.get("torch._dynamo")) is not None:  # else nothing is compiled
        dynamo.config.automatic_dynamic_shapes = False
        dynamo.config.recompile_limit = max(dynamo.config.recompile_limit, RECOMPILATIONS)


def _module(trainer: Trainer, data: ImageData) -> ImageClassifier:
    """The module that is trained. UserError for one that needs images of one size."""
    module = trainer.lightning_module
    if not isinstance(module, ImageClassifier):
        name = type(module).__name__
        raise UserError(f"{name} predicts patches of one grid: leave out data.sizes")
    if data.crops is not None:
        raise UserError("--teacher-cache keeps answers to crops of one size: leave out data.sizes")
    checkpoint, run = trainer.ckpt_path, Path(trainer.default_root_dir).resolve()
    other = checkpoint and not Path(checkpoint).resolve().is_relative_to(run)
    if other and module.schedule.cooldown_steps:
        raise UserError(
            "data.sizes depends on the length of a run, so that a cooldown of another run does not "
            "equal the planned one: add --data.sizes null"
        )
    return module


def _length(trainer: Trainer) -> int:
    """Steps of the run. UserError if they are not known at its start."""
    module = cast(ImageClassifier, trainer.lightning_module)
    total = None if module.schedule.length is not None else step_budget(trainer)
    if total is None:
        raise UserError(
            "data.sizes needs the length of the run at its start: set --steps or --epochs, not "
            "--budget or --trainer.max_time alone"
        )
    return total


def _check_sizes(data: ImageData, smaller: Sequence[Size], network: torch.nn.Module) -> None:
    """UserError for too many sizes, and for one that is impossible."""
    if len(smaller) > MOST:
        raise UserError(f"data.sizes={data.sizes} are {len(smaller)} sizes; give at most {MOST}")
    patch = network.patch_size if isinstance(network, VisionTransformer) else 1
    for height, width in smaller:
        shown = f"data.sizes: {height} x {width}"
        if not (0 < height <= data.image_size[0] and 0 < width <= data.image_size[1]):
            largest = " x ".join(map(str, data.image_size))
            raise UserError(f"{shown} must be above 0, and at most image_size, {largest}")
        if height % patch or width % patch:
            raise UserError(f"{shown} does not divide into patches of {patch}; give multiples")


def _of_size(dataset: ImageDataset, size: Size) -> ImageDataset:
    """The same images, cut at another size: those of a data module with that image_size, and a
    resize_size that is smaller by the same factor."""
    smaller, augment, before = copy(dataset), dataset.augment, dataset.preprocess.image_size
    assert augment is not None
    if augment.resize_size is not None:
        factor = max(now / then for now, then in zip(size, before, strict=True))
        augment = replace(augment, resize_size=max(round(augment.resize_size * factor), *size))
    augment.check(size, dataset.preprocess.channels)
    smaller.augment, smaller.preprocess = augment, dataset.preprocess.changed(image_size=size)
    if dataset.planes is not None:  # small images: each is resized once
        pictures = (Image.fromarray(plane.transpose(1, 2, 0)) for plane in dataset.planes)
        smaller.planes = np.stack([augment.fit(picture, size).numpy() for picture in pictures])
    return smaller


class SizedImages(ImageDataset):
    """The images of a set in several sizes; a key has the place of its size."""

    def __init__(self, sizes: Sequence[ImageDataset]) -> None:
        vars(self).update(vars(sizes[-1]))  # which counts what is skipped for all of them
        self._sizes = sizes

    def __getitems__(
        self, keys: Sequence[IndexOrKey] | Sequence[SizedKey]
    ) -> Sequence[Sample | None] | Batch:
        """The samples of a batch, all of one size."""
        sized = cast(Sequence[SizedKey], keys)
        return self._sizes[sized[0][3]].__getitems__([key[:3] for key in sized])


class SizedBatches(Sampler[list[SizedKey]]):
    """The batches of a sampler, with the place of the size that their optimizer step has.

    Args:
        batches: The sampler.
        sizes: Number of sizes.
        total: Steps of the run.
    """

    def __init__(self, batches: TrainBatchSampler, sizes: int, total: int) -> None:
        self._batches, self._sizes, self._total = batches, sizes, total

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[SizedKey]]:
        sampler = self._batches
        first = sampler.progress.consumed_samples // (sampler.batch_size * sampler.world_size)
        for number, keys in enumerate(sampler, first):
            share = number // sampler.accumulated * self._sizes // self._total
            place = min(share, self._sizes - 1)  # what is read ahead of the end
            yield [(*key, place) for key in cast(list[Key], keys)]
