"""LightningCLI, wired: links from data to model, errors of one line, one run directory."""

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import jsonargparse
import yaml
from jsonargparse import ArgumentError, Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from vit.checkpoints.pretrained import inspect_pretrained
from vit.cli.messages import explain, shorten
from vit.cli.run_directory import is_first_process
from vit.data.module import ImageData
from vit.errors import UserError, did_you_mean
from vit.hardware import default_precision
from vit.recipes import find_recipe
from vit.training.atomic_io import AtomicCheckpointIO
from vit.training.checkpoints import BestCheckpoint, LastCheckpoint
from vit.training.classifier import ImageClassifier, Labels
from vit.training.csv_log import MetricsCsv
from vit.training.masked_patches import MaskedPatchPrediction
from vit.training.progress import RunProgress

# What is trained, by the name that a recipe gives it.
TASKS = {"classification": ImageClassifier, "masked_patches": MaskedPatchPrediction}

# Attribute docstrings of the option groups become their help texts.
jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)


def resolve_recipes(args: list[str]) -> list[str]:
    """The arguments with recipe names behind -c replaced by their paths."""
    resolved = list(args)
    for i, arg in enumerate(args):
        if arg in ("-c", "--config") and i + 1 < len(args):
            resolved[i + 1] = str(readable(find_recipe(args[i + 1])))
        elif arg.startswith("--config="):
            resolved[i] = f"--config={readable(find_recipe(arg.removeprefix('--config=')))}"
    return resolved


def readable(recipe: Path) -> Path:
    """The path itself. Raises UserError, with file and line, where it is not YAML with options."""
    try:
        content = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise UserError(f"{recipe}{line}: not valid YAML: {error.problem}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(
            f"{recipe} cannot be read as YAML: {' '.join(str(error).split())}"
        ) from error
    if not isinstance(content, dict):
        raise UserError(
            f"{recipe} has no options; expected lines such as 'trainer: {{max_epochs: 9}}'"
        )
    return recipe


def task_of(args: list[str]) -> str:
    """The task that the recipes and options name; it decides which options there are.

    UserError for one that does not exist.
    """
    task = "classification"
    for i, arg in enumerate(args):
        option, _, value = arg.partition("=")
        value = value or (args[i + 1] if i + 1 < len(args) else "")
        if option == "--task":
            task = value
        elif option in ("-c", "--config") and value:
            task = yaml.safe_load(Path(value).read_text(encoding="utf-8")).get("task", task)
    if task not in TASKS:
        hint = did_you_mean(str(task), TASKS) or f"; choose {' or '.join(TASKS)}"
        raise UserError(f"unknown task {task!r}{hint}")
    return task


class TrainingCLI(LightningCLI):
    """Parses the arguments of fit, validate, test and predict and builds data, model and Trainer.

    `--ckpt_path` is an argument of ours that is only ever resumed from: Lightning's own merges the
    checkpoint's hyperparameters over what the user typed.
    """

    def __init__(self, args: list[str]) -> None:
        quiet_lightning()
        args = resolve_recipes(args)
        self.task = task_of(args)
        try:
            super().__init__(
                TASKS[self.task],
                ImageData,
                run=False,
                args=args,
                seed_everything_default=0,
                save_config_callback=None,
                load_from_checkpoint_support=False,
                parser_kwargs={"prog": "vit fit", "exit_on_error": False, "allow_abbrev": False},
                trainer_defaults={
                    "use_distributed_sampler": False,
                    "num_sanity_val_steps": 0,
                    "enable_model_summary": False,
                    "log_every_n_steps": 10,
                },
            )
        except (ArgumentError, TypeError, KeyError, ValueError) as error:
            raise self._explain(error) from error

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument(
            "--task",
            type=str,
            default="classification",
            help="What is trained: classification, or masked_patches, which needs no labels.",
        )
        parser.add_argument(
            "--ckpt_path",
            type=str | None,
            default=None,
            help="Checkpoint of a run to continue exactly, or 'last' for the one in --run_dir.",
        )
        parser.add_argument(
            "--run_dir",
            type=str | None,
            default=None,
            help="Where the run goes; by default runs/ and the name of the recipe or of data.root.",
        )
        parser.add_argument(
            "--final_split",
            type=str,
            default="test",
            help="Images that the finished run is scored on: test, val, or none. A set without "
            "test images is scored on val.",
        )
        parser.link_arguments("seed_everything", "data.seed", compute_fn=int)
        parser.link_arguments("task", "data.labelled", compute_fn=_needs_labels)
        links: list[tuple[str, str, Any]] = [
            ("data.image_size", "model.image_size", None),
            ("data", "model.preprocess", _preprocess),
        ]
        if _needs_labels(self.task):
            links += [
                ("data.num_classes", "model.num_classes", None),
                ("data", "model.labels", _labels),
            ]
        for source, target, convert in links:
            parser.link_arguments(source, target, compute_fn=convert, apply_on="instantiate")

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        assert isinstance(args, list)
        self.config = parser.parse_args(args)

    def before_instantiate_classes(self) -> None:
        config = self.config
        if config.final_split not in ("test", "val", "none"):
            raise UserError(f"final_split={config.final_split!r}: choose test, val or none")
        interval = config.trainer.val_check_interval
        if isinstance(interval, int | float) and interval <= 0:
            raise UserError(f"trainer.val_check_interval={interval} must be more than 0")
        if config.trainer.precision is None:
            precision, reason = default_precision(config.trainer.accelerator or "auto")
            config.trainer.precision = precision
            if is_first_process():
                print(f"precision {precision}: {reason} (--trainer.precision)", file=sys.stderr)
        if config.model.pretrained is not None:
            config.model.pretrained = os.path.expanduser(config.model.pretrained)
            fill_from_pretrained(config)

    def instantiate_classes(self) -> None:
        """Data, then the model with what the data says; the Trainer waits for `build_trainer`."""
        self.config_init = self.parser.instantiate(self.config)
        self.datamodule = self.config_init["data"]
        self.model = self.config_init["model"]

    def build_trainer(self, run_dir: Path | None, resumed_step: int | None = None) -> Trainer:
        """The Trainer of a run that writes into `run_dir`; without one it writes nothing."""
        own: dict[str, Any] = {"logger": False, "callbacks": [RunProgress()]}
        if run_dir is not None:
            own = {
                "default_root_dir": str(run_dir),
                "logger": [MetricsCsv(run_dir, resumed_step), *self._configured("logger")],
                "callbacks": [RunProgress(), *self._checkpoints(run_dir)],
                "plugins": [AtomicCheckpointIO(), *self._configured("plugins")],
            }
        own["callbacks"] = [*self._configured("callbacks"), *own["callbacks"]]
        try:
            self.trainer = self.instantiate_trainer(**own)
        except UserError:
            raise
        except (MisconfigurationException, ValueError) as error:  # such as a GPU that is not there
            raise UserError(f"trainer: {shorten(' '.join(str(error).split()))}") from error
        return self.trainer

    def _configured(self, name: str) -> list[Any]:
        """What the user's configuration lists under trainer.`name`."""
        value = self.config_init["trainer"].get(name) or []
        return [] if value is True else value if isinstance(value, list) else [value]

    def _checkpoints(self, run_dir: Path) -> list[Checkpoint]:
        """The best weights by validation score, and the last."""
        folder = run_dir / "checkpoints"
        last = LastCheckpoint(folder)
        if self.datamodule.splits.val is None:
            return [last]
        monitor = "val/map" if self.datamodule.multilabel else "val/acc1"
        if not self.datamodule.labelled:
            monitor = "val/loss"
        return [BestCheckpoint(folder, monitor), last]

    def save_config(self, path: Path) -> None:
        """The resolved configuration without what belongs to one start: the run it resumed."""
        config = self.config.clone()
        config.ckpt_path = None
        config.run_dir = None
        places = [(config.data, "root"), (config.model, "pretrained")]
        loss = config.model.get("loss")  # masked patches have none to choose
        if loss is not None and loss.get("distillation") is not None:
            places.append((loss.distillation, "teacher"))
        for group, name in places:
            place = group[name] and os.path.abspath(os.path.expanduser(group[name]))
            if place and os.path.exists(place):  # not the address of a hub
                group[name] = place  # so that the run can be scored from any directory
        self.parser.save(config, path, skip_unset=False, overwrite=True, multifile=False)

    def _explain(self, error: BaseException) -> UserError:
        """One line for a bad configuration, with the nearest known key."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, UserError):
                return cause
            cause = cause.__cause__ or cause.__context__
        if not isinstance(error, ArgumentError):
            raise error
        known = [action.dest for action in self.parser._actions if "." in action.dest]
        known += [f"model.optimizer.{name}" for name in ("lr", "weight_decay", "momentum")]
        return UserError(explain(str(error), known))


def _needs_labels(task: str) -> bool:
    return task == "classification"


def _labels(data: ImageData) -> Labels:
    # Held-out images come without a train split; an evaluation does not weigh classes.
    counts = data.class_counts if len(data.splits.train) else [1] * data.num_classes
    return Labels(names=data.classes, counts=counts, multilabel=data.multilabel)


def _preprocess(data: ImageData) -> dict[str, Any]:
    return data.preprocess.to_dict()


def fill_from_pretrained(config: Namespace) -> None:
    """Lets the weights decide image size and normalisation where the user has not."""
    found = inspect_pretrained(config.model.pretrained).preprocess
    if not found:
        return
    for group, names in (
        (config.data, ("image_size",)),
        (config.data.inputs, ("resize", "crop_fraction", "interpolation", "mean", "std")),
    ):
        for name in names:
            if name in found and group[name] is None:
                value = found[name]
                group[name] = tuple(value) if isinstance(value, list) else value


def quiet_lightning() -> None:
    """Drops the lines of Lightning that ask for what this package does already, and its adverts."""
    import logging

    for pattern in (
        ".*does not have many workers.*",
        ".*The number of training batches.*",
        ".*Total length of `list` across ranks is zero.*",
        ".*Consider setting `persistent_workers.*",
        ".*resuming from a checkpoint that ended before the epoch ended.*",
        ".*Checkpoint directory .* exists and is not empty.*",
        ".*was called before the ``update`` method.*",
        # Ours are sums over all processes already.
        ".*It is recommended to use `self.log.*sync_dist=True.*",
        ".*WeightAveraging callback with a model that overrides the configure_model.*",
        ".*`isinstance\\(treespec, LeafSpec\\)` is deprecated.*",
        ".*Detected call of `lr_scheduler.step\\(\\)` before `optimizer.step.*",
    ):
        warnings.filterwarnings("ignore", message=pattern)
    # LightningCLI 2.6 still calls what jsonargparse 4.49 renamed.
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="lightning.pytorch.cli")
    for name in ("pytorch", "fabric", "pytorch.utilities.rank_zero", "fabric.utilities.rank_zero"):
        logging.getLogger(f"lightning.{name}").setLevel(logging.WARNING)
