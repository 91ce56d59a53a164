"""Rows of `vit compare` as plain JSON types, and the notes below its tables."""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from typing import Any

from vit.console import Meter
from vit.extensions.compute.candidate import Candidate, find_model
from vit.extensions.compute.cost import DEVICES, STRATEGIES, UTILISATION, Device
from vit.extensions.compute.devices import held
from vit.extensions.compute.memory import GIB
from vit.extensions.compute.table6 import ACCURACIES
from vit.extensions.compute.trainings import (
    CostOptions,
    Training,
    jft_trainings,
    read_run,
    recipe_trainings,
)

Row = dict[str, Any]


def model_rows(options: CostOptions) -> tuple[list[Row], list[str]]:
    """Rows, one per model and image size; with several devices, per their number and strategy."""
    device = None if options.device is None else DEVICES[options.device]
    memory = int(GIB * (options.memory or (device and device.memory) or 0))
    sizes = options.image_size or [None]
    models = [find_model(n, size, options.classes) for n in options.models for size in sizes]
    rows = []
    with Meter("counting", len(models), "models") as meter:
        for model in models:
            meter.show(f"counting {model.name}")
            row = {**_model(model), "precision": options.precision}
            rows += [{**row, **each} for each in _memory(options, model, memory)]
            meter.advance()
    notes = [
        "A multiply-add is 2 FLOPs. PyTorch's own counter counts matrix products and convolutions; "
        "a training step is forward and backward pass, without the gradient of the pixels.",
        f"Activations: kept for the backward pass on a GPU, in {options.precision}; checkpointed: "
        "with `--model.architecture.recompute true`, which repeats the forward pass.",
    ]
    if options.devices:
        notes[0] = (
            "Of one device, with AdamW. exchange: buckets of gradients (ddp), or what is gathered "
            "and reduced at one time (fsdp2)."
        )
    if memory:
        notes.append(f"Largest batch: predicted, with the whole training, in {memory / GIB:g} GiB.")
    return rows, notes


def _memory(options: CostOptions, model: Candidate, memory: int) -> Iterator[Row]:
    """Memory of a training step. `memory`: of a device, in bytes; 0 if unknown."""
    activations = {
        "": model.activations(options.precision),
        "_checkpointing": model.activations(options.precision, checkpointing=True),
    }
    strategies = [options.strategy] if options.strategy else STRATEGIES
    for devices, strategy in [*product(options.devices, strategies)] or [(1, None)]:
        sizes = held(model.empty(), options.precision, strategy, devices, ema=options.ema)
        row: Row = {"devices": devices, "strategy": strategy, "bytes": sizes} if strategy else {}
        rest = sum(sizes.values())
        for suffix, each in activations.items():
            row[f"activation_bytes{suffix}"] = each and each.per_image
            if memory:
                row[f"largest_batch{suffix}"] = each and each.largest_batch(memory, rest)
        yield row


def training_rows(options: CostOptions) -> tuple[list[Row], list[str]]:
    """Rows, one per training of the recipe, then one per run."""
    device = None if options.device is None else DEVICES[options.device]
    trainings: list[Training] = []
    notes: list[str] = []
    if options.recipe == "jft":
        trainings, notes = jft_trainings(options)
    elif options.recipe is not None:
        trainings, notes = recipe_trainings(options)
    runs = [read_run(path) for path in options.runs]
    named = [(training, {"recipe": options.recipe}) for training in trainings] + runs
    rows = []
    with Meter("counting", len(named), "trainings") as meter:
        for training, fields in named:
            meter.show(f"counting {training.model.name}")
            rows.append({**fields, **_training(training), **_bill(options, training, device)})
            meter.advance()
    notes.append(
        "exaFLOPs: 1e18 operations, 2 per multiply-add, in forward and backward passes of all "
        "images seen, without the gradient of the pixels. Evaluation is not included."
    )
    if any(row.get("pretrained") for row in rows):
        notes.append("A run started from pretrained weights, whose compute is not included.")
    if any(training.step is not None for training, _ in named):
        notes.append(
            "Tasks without labels: all passes of a step for an image, such as those of crops, "
            "decoders and teachers, half-way through the run. held: weights, gradients and AdamW's "
            "moments; activations: kept for the backward pass on a GPU, in bf16."
        )
    if any(training.teacher for training, _ in named):
        notes.append("The passes of a teacher (--teacher) are not included.")
    if device is not None:
        share = f"{options.utilisation or UTILISATION:.0%} (--utilisation)"
        peak = f"peak {device.tflops:,g} TFLOP/s of dense bf16 ({device.source})"
        notes.append(f"{device.title}: {share} of its {peak}.")
    return rows, notes


def _model(model: Candidate) -> Row:
    return {
        "model": model.name,
        "image_size": list(model.image_size),
        "classes": model.num_classes,
        "macs": model.work.flops // 2,
        **asdict(model.work),
    }


def _training(training: Training) -> Row:
    """Operations of a training, beside the paper's figures, and the memory of a task's step."""
    row = {
        **_model(training.model),
        "training_flops": training.image_flops,
        "images": training.images,
        "epochs": training.epochs,
        "exaflops": training.flops / 1e18,
    }
    if (step := training.step) is not None:
        row |= {"held_bytes": step.held, "activation_bytes": step.activations.per_image}
    if (point := training.point) is not None:
        row |= {
            "paper_name": point.paper_name,
            "paper_exaflops": point.exaflops,
            "ratio": row["exaflops"] / point.exaflops,
            "paper_accuracy": {name: point.score(name) for name in ACCURACIES},
        }
    return row


def _bill(options: CostOptions, training: Training, device: Device | None) -> Row:
    """Days on one device, and the cost if a price is given."""
    if device is None:
        return {}
    share = options.utilisation or UTILISATION
    speed = share * device.tflops * 1e12
    hours = training.flops / speed / 3600
    row = {"device": options.device, "utilisation": share, "flops_per_second": speed}
    row["device_days"] = hours / 24
    if (step := training.step) is not None and device.memory is not None:
        row["largest_batch"] = step.activations.largest_batch(int(device.memory * GIB), step.held)
    if options.price_per_hour is not None:
        row["cost"] = hours * options.price_per_hour
    return row
