"""Rows of `vit compare` as plain JSON types, and the notes below its tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vit.compute.candidate import Candidate, find_model
from vit.compute.cost import (
    DAY,
    UTILISATION,
    Device,
    Training,
    device_days,
    find_device,
)
from vit.compute.machine import Machine, Measured
from vit.compute.memory import GIB, TrainingMemory
from vit.compute.table6 import ACCURACIES, JFT_CLASSES, JFT_IMAGES, Point
from vit.compute.trainings import Length, Run, jft_trainings, read_run, recipe_trainings
from vit.compute.units import precision_name
from vit.errors import UserError

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Options of a comparison; None takes the default of the model, recipe or machine."""

    models: Sequence[str] = ()
    """Names, torchvision/NAME, runs, or files of weights."""
    image_size: Sequence[tuple[int, int]] = ()
    """Sizes (height, width) in pixels; every model is compared at each."""
    classes: int | None = None
    precision: str | None = None
    """fp32 or bf16."""
    count: bool = False
    """Whether to also count the operations with PyTorch's counter."""
    memory: float | None = None
    """Memory in GiB for the largest batch."""
    measure: bool = False
    """Whether to measure images per second on this machine."""
    batch_size: int | None = None
    """Batch size of the measurement."""
    repetitions: int | None = None
    recipe: str | None = None
    """jft (Table 6 of the paper), a recipe of `vit fit`, or a file."""
    images: float | None = None
    """Training images per epoch."""
    epochs: float | None = None
    processes: int | None = None
    device: str | None = None
    """A key of DEVICES."""
    utilisation: float | None = None
    """Fraction of the device's peak."""
    price_per_hour: float | None = None
    runs: Sequence[str] = ()
    """Directories of finished runs."""


def model_rows(options: Comparison) -> tuple[list[Row], list[str]]:
    """One row per model and image size."""
    device = None if options.device is None else find_device(options.device)
    sizes = options.image_size or [None]
    models = [find_model(n, size, options.classes) for n in options.models for size in sizes]
    machine = _machine(options)
    precision = machine.rule if machine else precision_name(options.precision or "bf16")
    memories = [model.memory(precision) for model in models]
    measured = machine.measure(models, memories) if machine else [None] * len(models)
    budget, where = _budget(options, device, machine)
    rows = []
    for model, memory, measurement in zip(models, memories, measured, strict=True):
        row = {**_model(model), "precision": precision.removesuffix("-cpu")}
        if options.count:
            counted = model.counted
            row |= {
                "counted_flops": counted.flops,
                "counted_training_flops": counted.training_flops,
            }
        frugal = model.memory(precision, checkpointing=True)
        row |= _memory_fields(memory, "", budget) | _memory_fields(frugal, "_checkpointing", budget)
        if measurement is not None:
            row |= measurement.to_row(model.work)
        rows.append(row)
    return rows, _model_notes(rows, precision, where, machine)


def training_rows(options: Comparison) -> tuple[list[Row], list[str]]:
    """One row per training of the recipe, then one per run."""
    device = None if options.device is None else find_device(options.device)
    size = options.image_size[0] if options.image_size else None
    trainings: list[tuple[Training, Point | None]] = []
    notes: list[str] = []
    if options.recipe == "jft":
        if size is not None:
            raise UserError("--image-size: the models of --recipe jft are trained at 224 pixels")
        arguments = (options.models, options.images, options.epochs, options.classes)
        trainings = jft_trainings(*arguments)
        notes = _jft_notes(trainings)
    elif options.recipe is not None:
        recipes, notes = recipe_trainings(
            options.recipe,
            options.models,
            size,
            options.classes,
            Length(options.images, options.epochs, options.processes),
        )
        trainings = [(training, None) for training in recipes]
    runs = [read_run(path) for path in options.runs]
    machine = _machine(options)
    if machine is not None and device is not None:
        machine.check_known()
    speeds = _measured_speeds([t.model for t, _ in trainings], machine)
    rows = []
    for training, point in trainings:
        row = {"recipe": options.recipe, **_training(training)}
        if point is not None:
            row |= _published(training, point)
        rows.append(row | _bill(options, training, device, machine, speeds.get(training.model)))
    for run in runs:
        row = {"run": run.name, **_training(run.training), **_run(run)}
        rows.append(row | _bill(options, run.training, device, None, None))
    return rows, [*_training_notes(rows), *notes, *_bill_notes(options, device, machine)]


def _model(model: Candidate) -> Row:
    work = model.work
    return {
        "model": model.name,
        "image_size": list(model.image_size),
        "classes": model.num_classes,
        "params": work.params,
        "macs": work.macs,
        "flops": work.flops,
        "training_flops": work.training_flops,
    }


def _memory_fields(memory: TrainingMemory | None, suffix: str, budget: int | None) -> Row:
    """Bytes per image and the largest batch; None if the model has no checkpointing."""
    per_image = None if memory is None else memory.activations.per_image
    fields: Row = {f"activation_bytes{suffix}": per_image}
    if budget is not None:
        fits = None if memory is None else memory.largest_batch(budget)
        fields[f"largest_batch{suffix}"] = fits
    return fields


def _machine(options: Comparison) -> Machine | None:
    if not options.measure:
        return None
    return Machine.here(options.precision, options.batch_size, options.repetitions, options.memory)


def _budget(
    options: Comparison, device: Device | None, machine: Machine | None
) -> tuple[int | None, str]:
    """(bytes available to a training step, their source)."""
    if options.memory is not None:
        return int(options.memory * GIB), f"{options.memory:g} GiB"
    if device is not None and device.memory is not None:
        return device.memory * GIB, f"{device.memory} GiB ({device.title})"
    if machine is not None:
        return machine.memory, f"{machine.memory / GIB:.1f} GiB free on {machine.name}"
    return None, ""


def _measured_speeds(
    models: Sequence[Candidate], machine: Machine | None
) -> dict[Candidate, Measured]:
    if machine is None or not models:
        return {}
    unique = list(dict.fromkeys(models))
    results = machine.measure(unique, [model.memory(machine.rule) for model in unique])
    return dict(zip(unique, results, strict=True))


def _training(training: Training) -> Row:
    return {
        **_model(training.model),
        "images": training.images,
        "epochs": training.epochs,
        "exaflops": training.flops / 1e18,
    }


def _published(training: Training, point: Point) -> Row:
    """The paper's figures, and ours with XLA's count of convolutions."""
    inside = 2 * training.images * training.model.work.training_macs_inside / 1e18
    return {
        "paper_name": point.paper_name,
        "paper_exaflops": point.exaflops,
        "ratio": training.flops / 1e18 / point.exaflops,
        "exaflops_without_padding": inside,
        "ratio_without_padding": inside / point.exaflops,
        "paper_accuracy": {name: point.score(name) for name in ACCURACIES},
    }


def _run(run: Run) -> Row:
    return {
        "accuracy": run.accuracy,
        "split": run.split,
        "dataset": run.dataset,
        "pretrained": run.pretrained,
    }


def _bill(
    options: Comparison,
    training: Training,
    device: Device | None,
    machine: Machine | None,
    measured: Measured | None,
) -> Row:
    """Days, and the cost if a price is given."""
    fields: Row = {}
    if machine is not None and measured is not None:
        fields = measured.to_row(training.model.work)
        speed, name = fields["flops_per_second"], machine.name
        if device is not None:
            speed, name = machine.utilisation(speed) * device.tflops * 1e12, options.device
    elif device is not None:
        share = options.utilisation or UTILISATION
        speed, name = share * device.tflops * 1e12, options.device
        fields["utilisation"] = share
    else:
        return fields
    days = device_days(training.flops, speed)
    fields |= {"device": name, "flops_per_second": speed, "device_days": days}
    if options.price_per_hour is not None:
        fields["cost"] = days * DAY / 3600 * options.price_per_hour
    return fields


def _model_notes(rows: list[Row], precision: str, where: str, machine: Machine | None) -> list[str]:
    kind = "float32" if precision == "fp32" else "bf16 mixed precision"
    kind += " on a CPU" if precision == "bf16-cpu" else " on a GPU"
    notes = [
        "A multiply-add is 2 FLOPs. Matrix products and convolutions are counted; a training step "
        "is forward and backward pass, without the gradient of the pixels.",
        f"Activations: predicted memory kept for the backward pass in {kind}; checkpointed: with "
        "the models' activation_checkpointing, which recomputes the forward pass.",
    ]
    if any("counted_flops" in row for row in rows):
        ours = [row for row in rows if not row["model"].startswith("torchvision/")]
        agree = all(
            (row["counted_flops"], row["counted_training_flops"])
            == (row["flops"], row["training_flops"])
            for row in ours
        )
        if ours:
            notes.append(
                "torch.utils.flop_counter counts exactly these operations."
                if agree
                else "torch.utils.flop_counter DISAGREES with the formula: please report this."
            )
    if any(row["model"].startswith("torchvision/") for row in rows):
        notes.append("torchvision's models: counted by PyTorch on fake tensors, CPU kernels.")
    if where:
        notes.append(
            f"Largest batch: predicted, with weights, gradients and AdamW's moments, in {where}."
        )
    if machine is not None and machine.tries:
        notes.append(f"Largest batch found: with training steps on {machine.name}.")
    if machine is not None:
        notes += machine.notes()
    return notes


def _training_notes(rows: list[Row]) -> list[str]:
    notes = [
        "exaFLOPs: 1e18 operations, 2 per multiply-add, in forward and backward passes of all "
        "images seen, without the gradient of the pixels. Evaluation is not included.",
    ]
    if any(row.get("pretrained") for row in rows):
        notes.append("A run started from pretrained weights, whose compute is not included.")
    return notes


def _jft_notes(trainings: list[tuple[Training, Point | None]]) -> list[str]:
    notes = []
    if any(training.images == (training.epochs or 0) * JFT_IMAGES for training, _ in trainings):
        notes.append(f"JFT-300M: {JFT_IMAGES / 1e6:.0f} million images per epoch, 224 pixels.")
    if not any(point for _, point in trainings):
        return notes
    classes = trainings[0][0].model.num_classes
    notes += [
        f"The head has {classes:,} classes; JFT's {JFT_CLASSES:,} (--classes) add at most 1 %.",
        "Without padding: without multiplications by padding of convolutions, as in XLA's cost "
        "analysis. The paper's ResNets agree with this count within 1.4 %.",
    ]
    if any(p and p.exaflops == 859 for _, p in trainings):
        notes.append(
            "R50x1+ViT-L/16, 7 epochs: the paper's 859 is not half of its 1668; 834 would be."
        )
    return [*notes, "docs/compute.md explains every difference."]


def _bill_notes(options: Comparison, device: Device | None, machine: Machine | None) -> list[str]:
    notes = machine.notes() if machine is not None else []
    if device is None:
        return notes
    line = f"{device.title}: peak {device.tflops:,g} TFLOP/s of dense bf16 ({device.source})"
    if machine is None:
        origin = "given" if options.utilisation else "assumed, see --utilisation"
        line += f", {options.utilisation or UTILISATION:.0%} utilisation ({origin})"
    else:
        line += ", at the utilisation measured here"
    return [*notes, line + "."]
