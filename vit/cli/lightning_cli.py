"""LightningCLI, wired: links from data to model, errors of one line, one run directory."""

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonargparse
import yaml
from jsonargparse import ArgumentError, Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, Checkpoint, EarlyStopping, ProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from vit.checkpoints.pretrained import PretrainedInfo, inspect_pretrained
from vit.cli.batch_choice import ChooseBatch, settle_batch
from vit.cli.first_batch import FirstBatch
from vit.cli.loggers import named_loggers
from vit.cli.memory_check import RGB, check_memory, configured_model
from vit.cli.messages import explain, is_refusal
from vit.cli.option_ranges import check_constructors, check_options
from vit.cli.processes import check_started
from vit.cli.recipes import resolve_recipes, task_of
from vit.cli.run_options import add_run_options
from vit.cli.trial_builds import try_callbacks, try_optimizer
from vit.console import is_first_process
from vit.data.module import DEFAULT_BATCH, ImageData
from vit.errors import MESSAGE, UserError, shorten
from vit.hardware import computes_on_cpu, default_precision
from vit.kernels.routes import use_routes
from vit.training.callbacks import FineTuneBySize, RunProgress, StopTogether, WatchProcesses
from vit.training.classifier import ImageClassifier
from vit.training.counted_data import CountedData
from vit.training.csv_log import MetricsCsv
from vit.training.facts import DataFacts, Labels
from vit.training.losses import refuse_double_balance
from vit.training.masked_patches import MaskedPatchPrediction
from vit.training.saving import AtomicCheckpointIO, BestCheckpoint, LastCheckpoint
from vit.yaml_reader import check_yaml

# What is trained, by the name that a recipe gives it.
TASKS = {"classification": ImageClassifier, "masked_patches": MaskedPatchPrediction}

if TYPE_CHECKING:  # training imports no data; that it gets what it asks for is checked here
    _counted: CountedData = ImageData()


def help_texts(wanted: bool) -> None:
    """Whether attribute docstrings of the option groups become their help texts.

    Reading them takes jsonargparse half a second, so that only --help-all asks for it.
    """
    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=wanted)


def bounded_values() -> None:
    """Lets the parser read YAML, of files and of options, by the rules of vit/cli/yaml_reader.py.

    Under a name of its own, so that other parsers in this process stay as they are.
    """
    load = jsonargparse.get_loader("yaml")

    def load_checked(text: str) -> Any:
        check_yaml(text, "an option")
        try:
            value = load(text)
        except (ValueError, OverflowError) as error:  # such as !!int x
            raise yaml.YAMLError(str(error)) from error
        # An anchor or a tag alone is null by YAML's rules, but nobody who types it means that.
        return text if value is None and text.strip().startswith(("&", "!")) else value

    jsonargparse.set_loader(PARSER_MODE, load_checked, (yaml.YAMLError,))


PARSER_MODE = "bounded_yaml"
_REFUSALS = (ValueError, TypeError, ImportError, RuntimeError)


class TrainingCLI(LightningCLI):
    """Parses the arguments of fit, validate, test and predict and builds data, model and Trainer.

    `--ckpt_path` is an argument of ours that is only ever resumed from: Lightning's own merges the
    checkpoint's hyperparameters over what the user typed.
    """

    def __init__(
        self,
        args: list[str],
        *,
        parsed: Callable[[Any], None] | None = None,
        classes: list[str] | None = None,
        multilabel: bool = False,
    ) -> None:
        """`parsed` is called with this object before anything is built, which takes time.

        `classes`, of a model that exists: data.root is held-out images, to be scored by them;
        `multilabel`: whether that model is one for several labels per image.
        """
        quiet_lightning()
        self._parsed = parsed
        self._known = {"classes": classes, "multilabel": multilabel}
        args = self._args = named_loggers(resolve_recipes(args))
        self.task = task_of(args, TASKS)
        help_texts("--help" in args)
        bounded_values()
        try:
            super().__init__(
                TASKS[self.task],
                ImageData,
                run=False,
                args=args,
                seed_everything_default=0,
                save_config_callback=None,
                load_from_checkpoint_support=False,
                auto_configure_optimizers=False,  # model.optimizer and model.schedule are the ones
                parser_kwargs={
                    "prog": "vit fit",
                    "exit_on_error": False,
                    "allow_abbrev": False,
                    "parser_mode": PARSER_MODE,
                },
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
        add_run_options(parser)
        parser.link_arguments("seed_everything", "data.splits.seed", compute_fn=int)
        parser.link_arguments("data", "model.facts", compute_fn=_facts, apply_on="instantiate")

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        assert isinstance(args, list)
        self.config = parser.parse_args(args)
        # Before Lightning seeds its generators, which is what it does next.
        check_options(self.config)
        check_constructors(self.config.data, ImageData)
        check_constructors(self.config.model, TASKS[self.task])
        try_optimizer(self.config)
        try_callbacks(self.config)

    def before_instantiate_classes(self) -> None:
        config = self.config
        if config.final_split not in ("test", "val", "none"):
            raise UserError(f"final_split={config.final_split!r}: choose test, val or none")
        if config.save_lora and config.model.get("lora") is None:
            raise UserError("save_lora=true keeps what --model.lora RANK trains: give a rank")
        loss = config.model.get("loss")  # masked patches have none to choose
        refuse_double_balance(config.data.sampling.balanced, loss and loss.class_weights)
        pretrained = None
        if config.model.pretrained is not None:
            config.model.pretrained = os.path.expanduser(config.model.pretrained)
            pretrained = fill_from_pretrained(config)
        if config.data.batch_size is None and config.data.global_batch is None:
            config.data.batch_size = DEFAULT_BATCH  # config.yaml says what was used
        settle_batch(config, self._args)
        model = configured_model(config, pretrained)
        check_memory(config, model, on_cpu=computes_on_cpu(config.trainer.accelerator or "auto"))
        if self._parsed is not None:
            self._parsed(self)
        if config.routes != "auto":
            use_routes(config.routes)
        if config.trainer.precision is None:
            precision, reason = default_precision(config.trainer.accelerator or "auto")
            config.trainer.precision = precision
            if is_first_process():
                print(f"precision {precision}: {reason} (--trainer.precision)", file=sys.stderr)

    def instantiate_classes(self) -> None:
        """Data, then the model with what the data says; the Trainer waits for `build_trainer`."""
        labelled, known = _needs_labels(self.task), self._known

        # A function, no method: the optimizer of the model keeps the instantiators, and copying the
        # model, as for an average of the weights, would copy this object with its Trainer.
        def read_as(class_type: type[Any], *args: Any, **options: Any) -> Any:
            return class_type(*args, **options).read_as(labelled=labelled, **known)

        self.config_init = self.parser.instantiate(
            self.config, instantiators=[(read_as, ImageData, False)]
        )
        self.datamodule = self.config_init["data"]
        self.model = self.config_init["model"]

    def build_trainer(self, run_dir: Path | None, resumed_step: int | None = None) -> Trainer:
        """The Trainer of a run that writes into `run_dir`; without one it writes nothing."""
        self.model.on_nonfinite = self.config.on_nonfinite
        progress: list[Callback] = [*self._progress(), WatchProcesses()]
        if self.datamodule.chooses_batch:
            progress.append(ChooseBatch(self.config))
        callbacks: dict[str, Any] = {"logger": False, "callbacks": [*progress, StopTogether()]}
        if run_dir is not None:
            callbacks = {
                "default_root_dir": str(run_dir),
                "logger": [MetricsCsv(run_dir, resumed_step), *self._configured("logger")],
                # LastCheckpoint is a StopTogether.
                "callbacks": [
                    *progress,
                    *self._early_stopping(),
                    *([FirstBatch(run_dir)] if self.datamodule.labelled else []),
                    *self._checkpoints(run_dir),
                ],
                "plugins": [AtomicCheckpointIO(), *self._configured("plugins")],
            }
        callbacks["callbacks"] = [*self._configured("callbacks"), *callbacks["callbacks"]]
        try:
            self.trainer = self.instantiate_trainer(**callbacks)
        except UserError:
            raise
        # Such as a GPU or a package that is not there, a list of devices for a CPU, or a callback
        # that can be there only once.
        except (MisconfigurationException, *_REFUSALS) as error:
            raise UserError(f"trainer: {shorten(' '.join(str(error).split()), MESSAGE)}") from error
        check_started(self.trainer.world_size)
        self.datamodule.share_batch(self.trainer)
        return self.trainer

    def _progress(self) -> list[ProgressBar]:
        """Our progress line, unless the user wants none or another one."""
        others = any(isinstance(c, ProgressBar) for c in self._configured("callbacks"))
        enabled = self.config.trainer.enable_progress_bar is not False
        return [RunProgress()] if enabled and not others else []

    def _configured(self, name: str) -> list[Any]:
        """What the user's configuration lists under trainer.`name`."""
        value = self.config_init["trainer"].get(name) or []
        return [] if value is True else value if isinstance(value, list) else [value]

    def _checkpoints(self, run_dir: Path) -> list[Checkpoint]:
        """The best weights by validation score, and the last."""
        folder = run_dir / "checkpoints"
        seconds = self.config.save_every
        last = LastCheckpoint(folder)
        if seconds is not None:
            last = LastCheckpoint(folder, epoch_seconds=seconds, step_seconds=seconds)
        by_size = any(isinstance(c, FineTuneBySize) for c in self._configured("callbacks"))
        if self.datamodule.splits.val is None or by_size:
            return [last]
        return [BestCheckpoint(folder, self._monitor()), last]

    def _monitor(self) -> str:
        """The score that says which weights are the best."""
        if not self.datamodule.labelled:
            return "val/loss"
        return "val/map" if self.datamodule.multilabel else "val/acc1"

    def _early_stopping(self) -> list[Callback]:
        if self.config.patience is None:
            return []
        if self.datamodule.splits.val is None or self.config.trainer.limit_val_batches == 0:
            raise UserError(
                f"patience={self.config.patience} needs validation images, which this run has not; "
                "leave it out, or raise --data.splits.val_fraction"
            )
        monitor = self._monitor()
        mode = "min" if monitor == "val/loss" else "max"
        return [EarlyStopping(monitor, patience=self.config.patience, mode=mode)]

    def _explain(self, error: BaseException) -> UserError:
        """One line for a bad configuration, with the nearest known key."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, UserError):
                return cause
            cause = cause.__cause__ or cause.__context__
        if not isinstance(error, ArgumentError) and not is_refusal(str(error)):
            raise error
        known = [action.dest for action in self.parser._actions if "." in action.dest]
        known += [f"model.optimizer.{name}" for name in ("lr", "weight_decay", "momentum")]
        return UserError(explain(str(error), known))


def _needs_labels(task: str) -> bool:
    return task == "classification"


def _facts(data: ImageData) -> DataFacts:
    facts = DataFacts(
        image_size=data.image_size, channels=data.channels, preprocess=data.preprocess.to_dict()
    )
    if data.labelled:
        # Held-out images come without a train split; an evaluation does not weigh classes.
        counts = data.class_counts if len(data.splits.train) else [1] * data.num_classes
        facts.num_classes = data.num_classes
        facts.labels = Labels(names=data.classes, counts=counts, multilabel=data.multilabel)
    return facts


def fill_from_pretrained(config: Namespace) -> PretrainedInfo:
    """Lets the weights decide image size and normalisation where the user has not."""
    # What the file does not record, the user's changes to the architecture may say.
    facts = dict(config.model.get("architecture") or {})
    info = inspect_pretrained(config.model.pretrained, **facts)
    preprocess = info.preprocess or {}
    if config.data.channels is None:
        config.data.channels = preprocess.get("channels")
        if config.data.channels is None and info.config.in_channels != RGB:
            config.data.channels = info.config.in_channels
    elif len(preprocess.get("mean", ())) != config.data.channels:
        preprocess = {k: v for k, v in preprocess.items() if k not in ("mean", "std")}
    for group, names in (
        (config.data, ("image_size",)),
        (config.data.inputs, ("resize", "crop_fraction", "interpolation", "mean", "std")),
    ):
        for name in names:
            if name in preprocess and group[name] is None:
                value = preprocess[name]
                group[name] = tuple(value) if isinstance(value, list) else value
    return info


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
        # A frozen backbone is kept in evaluation mode on purpose.
        ".*module\\(s\\) in eval mode at the start of training.*",
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
    # These speak only where --trainer.enable_model_summary or --trainer.profiler asks for it.
    for name in ("callbacks.model_summary", "profilers.profiler"):
        logging.getLogger(f"lightning.pytorch.{name}").setLevel(logging.INFO)
