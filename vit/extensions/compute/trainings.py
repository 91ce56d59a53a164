"""Options of a comparison, and trainings with a known cost: Table 6, recipes, finished runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from vit.data.batches import DEFAULT_BATCH, batches_per_epoch, divided
from vit.data.catalog import CATALOG
from vit.errors import UserError
from vit.extensions.compute.candidate import (
    SHAPE,
    Adapt,
    Candidate,
    describe,
    find_model,
    from_config,
    head_alone,
    is_baseline,
)
from vit.extensions.compute.memory import TaskStep
from vit.extensions.compute.table6 import JFT_IMAGES, JFT_SIZE, TABLE6, Point
from vit.fine_tuning import steps_for
from vit.models.fields import as_size
from vit.models.zoo import canonical_name, config_from_dict, model_config
from vit.recipes import find_recipe, read_options
from vit.runs.records import read_summary
from vit.tables import resolve
from vit.weights.weight_file import read_json

UNNAMED, USUAL = "vit_ti16", (224, 224)
"""Model of `vit fit` if a recipe names none, and size of images where nothing says one."""
EXAMPLE_IMAGES = 1_000
"""Training images where the length of a recipe follows from them and nothing says how many."""


@dataclass(frozen=True, kw_only=True)
class CostOptions:
    """The options of `vit compare`, which explains them."""

    models: Sequence[str] = ()
    image_size: Sequence[tuple[int, int]] = ()
    """(height, width) in pixels; every model is compared at each."""
    classes: int | None = None
    precision: str = "bf16"
    memory: float | None = None
    devices: Sequence[int] = ()
    strategy: str | None = None
    ema: bool = False
    recipe: str | None = None
    images: float | None = None
    epochs: float | None = None
    processes: int | None = None
    device: str | None = None
    utilisation: float | None = None
    price_per_hour: float | None = None
    runs: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Training:
    """A model and the number of its training images."""

    model: Candidate
    images: float
    """Images seen in total: epochs times images per epoch."""
    epochs: float | None = None
    """None if the length is given in steps or images."""
    adapt: Adapt | None = None
    """None: the whole network is trained."""
    teacher: bool = False
    """A teacher, which is not counted, answers the images."""
    step: TaskStep | None = None
    """Of a task that is not classification."""
    point: Point | None = None
    """Its row of Table 6, if it has one."""

    @cached_property
    def image_flops(self) -> int:
        """Operations of a training step per image."""
        work = self.model.work if self.adapt is None else self.model.adapted(self.adapt)
        return work.training_flops if self.step is None else self.step.flops

    @property
    def flops(self) -> float:
        """Operations of the whole training."""
        return self.images * self.image_flops


def jft_trainings(options: CostOptions) -> tuple[list[Training], list[str]]:
    """Rows of Table 6, of all or some models, and notes.

    A model that is not in the table needs `epochs`, which replaces the table's for all.
    """
    if options.image_size:
        raise UserError("--image-size: the models of --recipe jft are trained at 224 pixels")
    names = [name if is_baseline(name) else canonical_name(name) for name in options.models]
    seen = float(options.images or JFT_IMAGES)
    notes = [f"JFT-300M: {seen / 1e6:g} million images per epoch, {JFT_SIZE} pixels."]
    if options.epochs is not None:
        chosen = names or dict.fromkeys(point.model for point in TABLE6)
        plan = [(name, options.epochs, None) for name in chosen]
    else:
        for name in names:
            if not any(point.model == name for point in TABLE6):
                raise UserError(f"{name} is not in Table 6 of the paper: say how long, --epochs N")
        points = [p for n in names for p in TABLE6 if p.model == n] if names else TABLE6
        plan = [(point.model, point.epochs, point) for point in points]
        notes.append("docs/compute.md explains every difference from the paper.")
    trainings = []
    for name, epochs, point in plan:
        model = find_model(name, (JFT_SIZE, JFT_SIZE), options.classes)
        trainings.append(Training(model=model, images=epochs * seen, epochs=epochs, point=point))
    return trainings, notes


def recipe_trainings(options: CostOptions) -> tuple[list[Training], list[str]]:
    """The training of a recipe, or of the named models by that recipe; and notes."""
    recipe = str(options.recipe)
    content = read_options(find_recipe(recipe))
    data, model, trainer = (_group(content, name) for name in ("data", "model", "trainer"))
    dataset, num_classes = CATALOG.get(str(data.get("dataset"))), options.classes
    if num_classes is None and dataset is not None:
        num_classes = dataset.num_classes
    side = options.image_size[0] if options.image_size else data.get("image_size")
    size = None if side is None else as_size(side)  # None: weights have their own
    images, epochs, notes = _images_seen(options, data, trainer)
    if options.models:
        compared = [find_model(name, size, num_classes, USUAL) for name in options.models]
    else:
        compared = [_recipe_model(recipe, model, size, num_classes)]
    return [_by(content, model=each, images=images, epochs=epochs) for each in compared], notes


def _by(content: dict[str, Any], **fields: Any) -> Training:
    """A training by the options of a recipe or a run."""
    model, trainer = (_group(content, name) for name in ("model", "trainer"))
    teacher = bool((model.get("loss") or {}).get("teacher"))
    training = Training(adapt=_adapted(model, trainer), teacher=teacher, **fields)
    if (task := content.get("task")) in (None, "classification"):
        return training
    if (config := training.model.config) is None:
        raise UserError(f"{training.model.name}: `vit fit` does not train it by task {task}")
    from vit.extensions.compute.steps import counted_step  # heavy: imports lightning

    return replace(training, step=counted_step(task, config, content))


def _group(options: dict[str, Any], name: str) -> dict[str, Any]:
    """A group of options, which a class_path has one level deeper."""
    group = options.get(name) or {}
    return group.get("init_args", group) if "class_path" in group else group


def _recipe_model(
    recipe: str, model: dict[str, Any], size: tuple[int, int] | None, num_classes: int | None
) -> Candidate:
    name, changes = model.get("name"), model.get("architecture") or {}
    if model.get("pretrained"):
        return find_model(str(model["pretrained"]), size, num_classes)
    if name is None and not changes.keys() & {*SHAPE}:
        raise UserError(
            f"recipe {recipe!r} leaves the model to you: name it too, as in "
            f"`vit compare vit_s16 --recipe {recipe}`"
        )
    changes = {key: value for key, value in changes.items() if key != "recompute"}  # memory alone
    config = model_config(name or UNNAMED, **{**changes, "image_size": size or USUAL})
    return from_config(describe(config), config, None, num_classes)


def _images_seen(
    options: CostOptions, data: dict[str, Any], trainer: dict[str, Any]
) -> tuple[float, float | None, list[str]]:
    """(total images seen, epochs or None, notes), from the recipe's limit of epochs or steps."""
    recipe, processes = options.recipe, options.processes
    if processes is None:
        processes = _whole(trainer.get("num_nodes"), 1) * _whole(trainer.get("devices"), 1)
    accumulated = _whole(trainer.get("accumulate_grad_batches"), 1)
    batch, step = _whole(data.get("batch_size"), 0), data.get("global_batch")
    if step:
        divided(step, batch or None, processes, accumulated)  # a UserError where `vit fit` has one
    else:
        step = (batch or DEFAULT_BATCH) * processes * accumulated
    # The user's epochs replace the recipe's steps.
    steps = 0 if options.epochs else _whole(trainer.get("max_steps"), 0)
    epochs = options.epochs or _whole(trainer.get("max_epochs"), 0)
    images = float(options.images or EXAMPLE_IMAGES)
    if not options.epochs and _takes_no_step(trainer):
        return images, None, [f"features of {images:,.0f} images (--images), and no step."]
    if not epochs and not steps and _calls(trainer, ".FineTuneBySize"):
        steps = steps_for(round(images), step)
        return steps * step, None, [f"{steps:,} steps, for {images:,.0f} images (--images)."]
    if not epochs and not steps:
        raise UserError(f"recipe {recipe!r} does not say how long it trains: add --epochs N")
    seen = float("inf")
    if epochs:
        images = int(options.images or _train_images(str(recipe), data))
        seen = epochs * batches_per_epoch(images, step) * step
    if steps and steps * step <= seen:
        if options.images and not epochs:
            raise UserError(f"--images: recipe {recipe!r} takes {steps:,} steps of any data")
        who = "one process" if processes == 1 else f"{processes} processes"
        return steps * step, None, [f"{steps:,} steps of {step:,} images, {who} (--processes)."]
    return seen, epochs, []


def _calls(trainer: dict[str, Any], *names: str) -> bool:
    """True if the recipe has a callback whose path ends so."""
    callbacks = trainer.get("callbacks") or []
    paths = [c.get("class_path") for c in callbacks if isinstance(c, dict)]
    return any(str(path).endswith(names) for path in paths)


def _takes_no_step(trainer: dict[str, Any]) -> bool:
    """True if a head in closed form is the whole training, to which a limit of 1 step is due."""
    return trainer.get("max_steps") == 1 and _calls(trainer, ".LinearProbe", ".NamedHead")


def _adapted(model: dict[str, Any], trainer: dict[str, Any]) -> Adapt | None:
    if (model.get("learning") or {}).get("freeze_backbone") or _takes_no_step(trainer):
        return head_alone
    if not (adaptation := model.get("adaptation")):
        return None
    module, _, name = adaptation["class_path"].rpartition(".")
    return resolve(f"{module}:{name}")(**adaptation.get("init_args") or {}).apply


def _train_images(recipe: str, data: dict[str, Any]) -> int:
    dataset = CATALOG.get(str(data.get("dataset")))
    if dataset is None:
        raise UserError(f"recipe {recipe!r} does not say on how many images: add --images N")
    share = 0.0 if "val" in dataset.images else (data.get("splits") or {}).get("val_fraction", 0.1)
    whole = dataset.images["train"]
    return whole - round(whole * share)


def _whole(value: Any, otherwise: int) -> int:
    """The value if it is a number; `otherwise` for "auto", -1 devices and missing values."""
    return value if isinstance(value, int) and value > 0 else otherwise


def read_run(path: str) -> tuple[Training, dict[str, Any]]:
    """The training of a run directory, and the fields of its row.

    Accuracy is top-1 in per cent, on test or else val. UserError without a finished run.
    """
    folder = Path(path).expanduser()
    summary = read_summary(folder)
    try:
        config, metrics = config_from_dict(summary["model"]), summary["metrics"]
        images = float(summary["images_seen"] or summary["images"]["train"])  # of a probe
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is not the directory of a finished run of `vit fit`") from error
    content = read_json(folder / "model" / "config.json")
    recipe: dict[str, Any] = (content.get("extra") or {}).get("recipe") or {}
    model, data = recipe.get("model") or {}, recipe.get("data") or {}
    split = next((s for s in ("test", "val") if f"{s}/acc1" in metrics), "")
    fields = {
        "run": folder.resolve().name,
        "accuracy": 100 * metrics[f"{split}/acc1"] if split else None,
        "split": split,
        "dataset": data.get("dataset"),
        "pretrained": model.get("pretrained") is not None,
    }
    training = _by(recipe, model=from_config(describe(config), config), images=images)
    return (training if summary["images_seen"] else replace(training, adapt=head_alone)), fields
