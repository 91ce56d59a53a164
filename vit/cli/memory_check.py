"""Whether a run can fit into this machine's memory at all, asked before anything is allocated."""

from dataclasses import replace
from typing import Any

from jsonargparse import Namespace

from vit.checkpoints.pretrained import PretrainedInfo
from vit.cli.batch_memory import accumulating, step_memory
from vit.cli.option_ranges import MAX_DEVICES
from vit.compute.flops import work
from vit.compute.memory import GIB
from vit.data.batches import batch_sizes
from vit.errors import UserError, shorten
from vit.hardware import available_memory
from vit.models.config import ResNetConfig, ViTConfig
from vit.models.zoo import ModelConfig, config_from_dict, model_config
from vit.training.fitting import DEFAULT_MODEL

FLOAT = 4
LAYER_OBJECTS = 2**15
"""Bytes of Python objects that a layer takes whatever its width; 31 KiB and more were measured."""
RGB = 3
"""Channels of the images that ImageData reads where data.channels does not say otherwise."""

# Arguments of the model that are no fields of its architecture, although they look like some.
FROM_DATA = ("num_classes", "image_size")


def configured_model(config: Namespace, pretrained: PretrainedInfo | None) -> ModelConfig:
    """The architecture that a parsed configuration asks for, but for its number of classes.

    `pretrained`: what `config.model.pretrained` holds, if anything. Raises UserError for an
    architecture that cannot be built, or that cannot see the images.
    """
    changes: dict[str, Any] = dict(config.model.architecture or {})
    for name in FROM_DATA:
        if name in changes:
            hint = "; set data.image_size" if name == "image_size" else ""
            raise UserError(
                f"model.architecture.{name} follows from the data and cannot be set{hint}"
            )
    size = config.data.image_size
    if pretrained is not None:
        size = {} if size is None else {"image_size": size}
        model = config_from_dict({**pretrained.config.to_dict(), **size, **changes})
    else:
        if "name" in changes:
            raise UserError("unknown model option 'name' in model.architecture; set model.name")
        name = config.model.name or DEFAULT_MODEL
        model = model_config(name, **{"image_size": size or 224, "num_classes": 1, **changes})
    channels = config.data.channels
    if "in_channels" in changes and model.in_channels != (channels or RGB):
        read = "as RGB, gray ones too" if channels is None else f"with {channels} channels"
        raise UserError(
            f"model.architecture.in_channels={model.in_channels}: images are read {read}; set "
            f"--data.channels {model.in_channels}, and the architecture follows"
        )
    return replace(model, in_channels=channels or RGB)


def check_memory(config: Namespace, model: ModelConfig, *, on_cpu: bool) -> None:
    """UserError where weights and one batch alone are more than the memory that is free.

    That is the least that any run needs: gradients, the optimizer and most activations come on
    top. `on_cpu`: whether batches are computed on in this memory, too.
    """
    height, width = model.size
    batch = _smallest_batch(config, on_cpu=on_cpu)
    params = count_parameters(model)
    weights = FLOAT * params + LAYER_OBJECTS * count_layers(model)
    image = model.in_channels * height * width  # a byte each, until they are normalised
    if on_cpu:
        image += FLOAT * image + 2 * _first_layer(model)
    needed = weights + batch * image
    needed = max(needed, model.in_channels * _largest_image(config, (height, width)))
    there = available_memory()
    if needed > there:
        most = (there - weights) // image
        if on_cpu and most > 0:  # else its layers may be too many to go through
            step = step_memory(model, "32-true", trained=params, on_cpu=True)
            most = min(most, step.largest_batch(there))
        raise UserError(
            f"this run needs at least {_gib(needed)} of memory ({_count(params)} parameters, "
            f"batches of {shorten(batch)} images of {shorten(height)}x{shorten(width)} pixels), "
            f"and {_gib(there)} are free; choose smaller images, {_smaller_batch(config, most)} or "
            "a smaller model"
        )


def _smaller_batch(config: Namespace, most: int) -> str:
    """The batch of a process to choose where at most `most` images fit."""
    batch = config.data.batch_size
    if not isinstance(batch, int) or most < 1:
        return "a smaller batch"
    size = max(n for n in batch_sizes(batch, 1, paired=False) if n <= most)
    if size == batch:  # what does not fit is one image before it is resized
        return "a smaller crop or resize"
    options = f"--data.batch_size {size}"
    if config.data.global_batch is None:
        options = accumulating(size, batch * config.trainer.accumulate_grad_batches, 1)
    return f"a smaller batch ({options} fits, with the same images per step)"


def _smallest_batch(config: Namespace, *, on_cpu: bool) -> int:
    """Images in a batch of one process, on as many processes as there may be."""
    data = config.data
    if data.batch_size == "auto":
        return 1
    if data.batch_size is not None:
        return data.batch_size
    trainer = config.trainer
    known = isinstance(trainer.devices, int) and trainer.devices > 0
    devices = trainer.devices if known else 1 if on_cpu else MAX_DEVICES
    processes = devices * trainer.num_nodes * trainer.accumulate_grad_batches
    return max(data.global_batch // processes, 1)


def count_parameters(model: ModelConfig) -> int:
    """Learned numbers and fixed positions, without building any layer, however many there are."""
    smallest: ModelConfig
    if isinstance(model, ResNetConfig):
        repeated: dict[str, int | tuple[int, ...]] = {"depths": model.depths}
        smallest = replace(model, image_size=32, depths=(1,) * len(model.depths))
        positions = 0
    else:
        repeated = {"depth": model.depth}
        if model.stem_depths:
            repeated["stem_depths"] = model.stem_depths
        ones = (1,) * len(model.stem_depths) if model.stem_depths else model.stem_depths
        smallest = replace(model, image_size=model.patch_size, depth=1, stem_depths=ones)
        rows, columns = model.grid
        learned = (rows * columns - 1) * model.width if model.pos_embed == "learned" else 0
        positions = learned + model.computed_positions
    base = work(smallest).params
    total = base
    for name, counts in repeated.items():
        for i, count in enumerate(counts if isinstance(counts, tuple) else (counts,)):
            one = getattr(smallest, name)
            two = (*one[:i], 2, *one[i + 1 :]) if isinstance(one, tuple) else 2
            total += (count - 1) * (work(replace(smallest, **{name: two})).params - base)
    return total + positions


def count_layers(model: ModelConfig) -> int:
    """Encoder layers and residual units."""
    if isinstance(model, ResNetConfig):
        return sum(model.depths)
    return model.depth + sum(model.stem_depths or ())


def _first_layer(model: ModelConfig) -> int:
    """Numbers that the first layer gives for an image."""
    if isinstance(model, ViTConfig):
        rows, columns = model.grid
        return rows * columns * model.width
    height, width = model.size
    return (height // 2) * (width // 2) * 64 * model.width_factor


def _largest_image(config: Namespace, size: tuple[int, int]) -> int:
    """Pixels of the largest image that the preprocessing makes from one that is square."""
    augment, inputs = config.data.augment, config.data.inputs
    sizes = [size]
    fraction = inputs.crop_fraction
    if isinstance(fraction, float) and 0 < fraction <= 1:
        sizes.append((int(size[0] / fraction), int(size[1] / fraction)))
    if augment.resize_size is not None:
        sizes.append((augment.resize_size, augment.resize_size))
    if augment.crop == "simple":  # the crop pad cuts its window without the border
        padding = 2 * augment.crop_padding
        sizes.append((size[0] + padding, size[1] + padding))
    return max(height * width for height, width in sizes)


def _gib(count: int) -> str:
    """Bytes as GiB; a number without end as one power of ten."""
    return f"{count / GIB:,.1f} GiB" if count < 10**18 else f"more than {10**18 // GIB:,} GiB"


def _count(number: int) -> str:
    return f"{number:,}" if number < 10**18 else "more than 10^18"
