"""Trainings with a known cost: the paper's Table 6, recipes, and finished runs."""

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
from vit.fine_tuning import steps_for
from vit.models.zoo import canonical_name, config_from_dict, model_config
from vit.reading import regular_file
from vit.recipes import find_recipe
from vit.yaml_reader import read_options

if TYPE_CHECKING:
    from vit.data.catalog import Dataset

Size = tuple[int, int]


UNNAMED = "vit_ti16"
"""Model of `vit fit` if a recipe names none."""
BATCH = 64
"""Batch size if a recipe names none."""
EXAMPLE_IMAGES = 1_000
"""Training images where the length of a recipe follows from them and nothing says how many."""


@dataclass(frozen=True)
class Length:
    """Length of the training, given by the user; None takes the recipe's."""

    images: float | None = None
    """Training images per epoch."""
    epochs: float | None = None
    processes: int | None = None


def jft_trainings(
    models: Sequence[str], images: float | None, epochs: float | None, num_classes: int | None
) -> list[tuple[Training, Point | None]]:
    """Rows of Table 6, of all or some models, each with its point if it is in the paper.

    A model that is not in the table needs `epochs`, which then replaces the table's for all.
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
    """The training of a recipe, or of the named models by that recipe; and notes."""
    options = read_recipe(recipe)
    data, model, trainer = (_group(recipe, options, name) for name in ("data", "model", "trainer"))
    dataset = _dataset(data)
    if num_classes is None and dataset is not None:
        num_classes = dataset.num_classes
    if size is None:
        side = data.get("image_size", 224)
        size = (side, side) if isinstance(side, int) else (int(side[0]), int(side[1]))
    seen, passes, notes = _images_seen(recipe, data, trainer, length)
    task = options.get("task", "classification")
    if task != "classification":
        notes.append(f"Counted as if the task were classification, not {task}.")
    if models:
        compared = [find_model(name, size, num_classes) for name in models]
    else:
        compared = [_recipe_model(recipe, model, size, num_classes)]
    frozen = _frozen(model)
    return [Training(model=m, images=seen, epochs=passes, frozen=frozen) for m in compared], notes


def read_recipe(name: str) -> dict[str, Any]:
    """A recipe's options. UserError if it is not YAML with options."""
    return read_options(find_recipe(name))


def _group(recipe: str, options: dict[str, Any], name: str) -> dict[str, Any]:
    """A group of options; with class_path they are one level deeper."""
    group = options.get(name) or {}
    if isinstance(group, dict):
        return group.get("init_args", group) if "class_path" in group else group
    raise UserError(f"recipe {recipe!r}: {name}: {group} is a separate file; give it in one file")


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
    """(total images seen, epochs or None, notes), from the recipe's limit of epochs or steps."""
    processes = length.processes
    if processes is None:
        processes = _whole(trainer.get("num_nodes"), 1) * _whole(trainer.get("devices"), 1)
    accumulated = _whole(trainer.get("accumulate_grad_batches"), 1)
    whole = data.get("global_batch")  # of a step; the batch or the accumulation follows from it
    own = _whole(data.get("batch_size"), 0)  # auto divides global_batch, or another recipe's batch
    batch = (own or BATCH) * processes
    if whole and not own:
        batch = whole // accumulated
    # The user's epochs replace the recipe's steps.
    steps = _whole(trainer.get("max_steps"), 0) if length.epochs is None else 0
    step = whole or batch * accumulated
    epochs = length.epochs or _whole(trainer.get("max_epochs"), 0)
    if not epochs and not steps and _by_size(trainer):
        images = EXAMPLE_IMAGES if length.images is None else length.images
        steps = steps_for(round(images), step)
        return steps * step, None, [f"{steps:,} steps, for {images:,.0f} images (--images)."]
    if not epochs and not steps:
        raise UserError(f"recipe {recipe!r} does not say how long it trains: add --epochs N")
    seen = float("inf")
    if epochs:
        images = _train_images(recipe, data) if length.images is None else length.images
        # An epoch skips the images after the last full batch (vit/data/sampler.py).
        seen = epochs * max(1, images // batch) * batch
    if steps and steps * step <= seen:
        who = "one process" if processes == 1 else f"{processes} processes"
        return steps * step, None, [f"{steps:,} steps of {step:,} images, {who} (--processes)."]
    return seen, epochs, []


def _by_size(trainer: dict[str, Any]) -> bool:
    """Whether the recipe's steps follow from the number of training images."""
    callbacks = trainer.get("callbacks") or []
    paths = [c.get("class_path") for c in callbacks if isinstance(c, dict)]
    return any(str(path).endswith(".FineTuneBySize") for path in paths)


def _frozen(model: dict[str, Any]) -> bool:
    return bool((model.get("learning") or {}).get("freeze_backbone"))


def _dataset(data: dict[str, Any]) -> "Dataset | None":
    from vit.data.catalog import CATALOG  # heavy: imports numpy

    return CATALOG.get(str(data.get("dataset")))


def _train_images(recipe: str, data: dict[str, Any]) -> float:
    dataset = _dataset(data)
    if dataset is None:
        name = data.get("dataset")
        of = f"the dataset {name!r}" if name else "its data"
        raise UserError(
            f"recipe {recipe!r}: the size of {of} is unknown: add --images N, training "
            "images per epoch"
        )
    share = 0.0 if dataset.own_val else (data.get("splits") or {}).get("val_fraction", 0.1)
    whole = dataset.images["train"]
    return whole - round(whole * share)


def _whole(value: Any, otherwise: int) -> int:
    """The value if it is a number; `otherwise` for "auto", -1 devices and missing values."""
    return value if isinstance(value, int) and value > 0 else otherwise


@dataclass(frozen=True)
class Run:
    """A finished run of the user."""

    name: str
    training: Training
    accuracy: float | None
    """Top-1 in per cent, on test if there is one, otherwise on val; None without top-1."""
    split: str
    dataset: str | None
    """Name of its data set, if any."""
    pretrained: bool
    """Whether it started from weights whose compute is not included."""


def read_run(path: str) -> Run:
    """Reads a run directory. UserError if it has no finished run."""
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
        recipe = extra.get("recipe") or {}
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
