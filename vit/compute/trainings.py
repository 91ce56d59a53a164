"""Whole trainings with a known cost: of the paper's Table 6, of a recipe, and finished runs."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit.compute.baselines import is_baseline
from vit.compute.candidate import (
    RESNET_SHAPE,
    SHAPE,
    Candidate,
    candidate,
    describe,
    find_model,
    from_config,
)
from vit.compute.cost import Training
from vit.compute.table6 import JFT_IMAGES, JFT_SIZE, TABLE6, Point
from vit.errors import UserError
from vit.models.zoo import canonical_name, config_from_dict, model_config
from vit.old_names import current_options
from vit.reading import regular_file
from vit.recipes import find_recipe
from vit.yaml_reader import read_options

if TYPE_CHECKING:
    from vit.data.catalog import Dataset

Size = tuple[int, int]


UNNAMED = "vit_ti16"
"""What `vit fit` trains where a recipe names no model."""
BATCH = 64
"""Images in a batch where a recipe names no number."""


@dataclass(frozen=True)
class Length:
    """What the user says about a recipe's length; None leaves it to the recipe."""

    images: float | None = None
    """Training images an epoch."""
    epochs: float | None = None
    processes: int | None = None


def jft_trainings(
    models: Sequence[str], images: float | None, epochs: float | None, num_classes: int | None
) -> list[tuple[Training, Point | None]]:
    """The rows of Table 6, all or those of some models; with its row where it is the paper's own.

    A model that is not in the table needs `epochs`, which then replace the table's for all.
    """
    names = [name if is_baseline(name) else canonical_name(name) for name in models]
    seen = float(JFT_IMAGES if images is None else images)

    def training(name: str, epochs: float) -> Training:
        model = candidate(name, (JFT_SIZE, JFT_SIZE), num_classes)
        return Training(model=model, images=epochs * seen, epochs=epochs)

    if epochs is not None:
        chosen = names or list(dict.fromkeys(point.model for point in TABLE6))
        return [(training(name, epochs), None) for name in chosen]
    for name in names:
        if not any(point.model == name for point in TABLE6):
            raise UserError(f"{name} is not in Table 6 of the paper: say how long, --epochs N")
    points = [p for p in TABLE6 if not names] + [p for n in names for p in TABLE6 if p.model == n]
    return [(training(point.model, point.epochs), point) for point in points]


def recipe_trainings(
    recipe: str,
    models: Sequence[str],
    size: Size | None,
    num_classes: int | None,
    length: Length,
) -> tuple[list[Training], list[str]]:
    """What a `vit fit` recipe trains, or the named models trained by it; and notes about that."""
    options = read_recipe(recipe)
    data, model, trainer = (_group(recipe, options, name) for name in ("data", "model", "trainer"))
    known = _dataset(data)
    if num_classes is None and known is not None:
        num_classes = known.num_classes
    if size is None:
        side = data.get("image_size", 224)
        size = (side, side) if isinstance(side, int) else (int(side[0]), int(side[1]))
    seen, passes, notes = _images_seen(recipe, data, trainer, length)
    task = options.get("task", "classification")
    if task != "classification":
        notes.append(f"Counted as if the task were classification, not {task}.")
    if models:
        found = [find_model(name, size, num_classes) for name in models]
    else:
        found = [_recipe_model(recipe, model, size, num_classes)]
    frozen = _frozen(model)
    return [Training(model=m, images=seen, epochs=passes, frozen=frozen) for m in found], notes


def read_recipe(name: str) -> dict[str, Any]:
    """A recipe's options. UserError where it is not YAML with options."""
    return read_options(find_recipe(name))


def _group(recipe: str, options: dict[str, Any], name: str) -> dict[str, Any]:
    """A group of options; under class_path they are one level down."""
    group = options.get(name) or {}
    if isinstance(group, dict):
        return group.get("init_args", group) if "class_path" in group else group
    raise UserError(f"recipe {recipe!r}: {name}: {group} is a file of its own; give it in one file")


def _recipe_model(
    recipe: str, model: dict[str, Any], size: Size, num_classes: int | None
) -> Candidate:
    name, changes = model.get("name"), model.get("architecture") or {}
    if model.get("pretrained"):
        return find_model(str(model["pretrained"]), size, num_classes)
    if name is None and not {*SHAPE, *RESNET_SHAPE} & set(changes):
        raise UserError(
            f"recipe {recipe!r} leaves the model to you: name it too, as in "
            f"`vit compare vit_s16 --recipe {recipe}`"
        )
    config = model_config(name or UNNAMED, **{**changes, "image_size": size})
    return from_config(describe(config), config, None, num_classes)


def _images_seen(
    recipe: str, data: dict[str, Any], trainer: dict[str, Any], length: Length
) -> tuple[float, float | None, list[str]]:
    """(images seen in all, epochs or None, notes), by the recipe's own limit of epochs or steps."""
    processes = length.processes
    if processes is None:
        processes = _whole(trainer.get("num_nodes"), 1) * _whole(trainer.get("devices"), 1)
    accumulated = _whole(trainer.get("accumulate_grad_batches"), 1)
    whole = data.get("global_batch")  # of a step; the batch or the accumulation follows from it
    batch = (data.get("batch_size") or BATCH) * processes
    if whole and not data.get("batch_size"):
        batch = whole // accumulated
    # The user's epochs stand for the recipe's steps.
    steps = _whole(trainer.get("max_steps"), 0) if length.epochs is None else 0
    step = whole or batch * accumulated
    epochs = length.epochs or _whole(trainer.get("max_epochs"), 0)
    if not epochs and not steps:
        raise UserError(f"recipe {recipe!r} does not say how long it trains: add --epochs N")
    seen = float("inf")
    if epochs:
        images = _train_images(recipe, data) if length.images is None else length.images
        # The images after the last full batch sit out an epoch (vit/data/sampler.py).
        seen = epochs * max(1, images // batch) * batch
    if steps and steps * step <= seen:
        who = "one process" if processes == 1 else f"{processes} processes"
        return steps * step, None, [f"{steps:,} steps of {step:,} images, {who} (--processes)."]
    return seen, epochs, []


def _frozen(model: dict[str, Any]) -> bool:
    return bool((model.get("learning") or {}).get("freeze_backbone"))


def _dataset(data: dict[str, Any]) -> "Dataset | None":
    from vit.data.catalog import CATALOG  # heavy: imports numpy

    return CATALOG.get(str(data.get("dataset")))


def _train_images(recipe: str, data: dict[str, Any]) -> float:
    known = _dataset(data)
    if known is None:
        dataset = data.get("dataset")
        of = f"the dataset {dataset!r}" if dataset else "its data"
        raise UserError(
            f"recipe {recipe!r}: the size of {of} is not known here: add --images N, training "
            "images an epoch"
        )
    share = 0.0 if known.own_val else (data.get("splits") or {}).get("val_fraction", 0.1)
    whole = known.images["train"]
    return whole - round(whole * share)


def _whole(value: Any, otherwise: int) -> int:
    """A number as it stands; `otherwise` for "auto", "-1" devices and what is not set."""
    return value if isinstance(value, int) and value > 0 else otherwise


@dataclass(frozen=True)
class Run:
    """A finished training of the user's."""

    name: str
    training: Training
    accuracy: float | None
    """Per cent, on test images if there are any, else on val; None for a run without top-1."""
    split: str
    dataset: str | None
    """Name of its dataset, where it has one."""
    pretrained: bool
    """Whether it began with weights whose compute is not in its own."""


def read_run(path: str) -> Run:
    """A run directory. UserError where it holds no finished run."""
    folder = Path(path).expanduser()
    try:
        summary = json.loads(regular_file(folder / "summary.json").read_text(encoding="utf-8"))
        config = config_from_dict(summary["model"])
        images, metrics = float(summary["images_seen"]), summary["metrics"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is not the directory of a finished run: it needs summary.json, which "
            f"`vit fit` writes at the end ({type(error).__name__})"
        ) from error
    description = folder / "model" / "config.json"
    recipe: dict[str, Any] = {}
    if description.is_file():
        extra = json.loads(description.read_text(encoding="utf-8")).get("extra") or {}
        recipe = current_options(extra.get("recipe") or {}, f"{description}: ")
    model, data = recipe.get("model") or {}, recipe.get("data") or {}
    split = next((s for s in ("test", "val") if f"{s}/acc1" in metrics), "")
    return Run(
        name=folder.resolve().name,
        training=Training(
            model=from_config(describe(config), config),
            images=images,
            frozen=_frozen(model),
        ),
        accuracy=100 * metrics[f"{split}/acc1"] if split else None,
        split=split,
        dataset=data.get("dataset"),
        pretrained=model.get("pretrained") is not None,
    )
