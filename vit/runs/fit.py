"""A whole training in one function."""

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, LambdaCallback, ProgressBar

from vit.console import note, say
from vit.data.module import ImageData
from vit.runs.directory import RunDirectory, checkpoints
from vit.runs.finish import clocks, closing, finish, limit_option
from vit.runs.finishers import finish_rest
from vit.runs.first_batch import save_first_batch
from vit.runs.following import check_held_out
from vit.runs.lineage import known_by
from vit.runs.options import Options
from vit.runs.processes import ChildrenAlive, ending_together, launched
from vit.runs.resuming import check_continues, check_same
from vit.runs.trainer import (
    Module,
    build_trainer,
    in_one_line,
    limit_threads_of,
    naming_a_smaller_batch,
)
from vit.signals import Stopped
from vit.training.callbacks.by_size import FineTuneBySize
from vit.training.callbacks.progress import RunProgress
from vit.training.callbacks.stopping import StopTogether
from vit.training.csv_log import MetricsCsv
from vit.training.image_classifier import ImageClassifier
from vit.training.saving import AtomicCheckpointIO, BestCheckpoint, LastCheckpoint
from vit.weights.names import record_of
from vit.weights.native import OURS

IMBALANCE = 5
"""Ratio of the largest class to the smallest one from which on a remedy is named."""


def fit(options: Options) -> tuple[RunDirectory, str]:
    """Trains or resumes, and scores the best weights once; every process calls it.

    Returns the run, and for the first process what to say at the end. UserError for a
    mistake; Stopped after a signal, once the run is saved.
    """
    with RunDirectory.open(options) as run:
        if run.finished and run.checkpoint is None:
            told = f"{finish_rest(run.folder)}\n{run.folder} is finished; to train on, raise"
            return run, f"{told} --epochs or --steps (a probe takes no steps)"
        data = options.data
        if run.checkpoint is not None:  # cut as it was then
            data.unseen_by(known_by(run.checkpoint, before=True))
        check_held_out(options.config, data.look(options.looked))
        model, alive = options.build_model(data), ChildrenAlive()
        trainer = build_trainer(
            **options.trainer,
            default_root_dir=str(run.folder),
            logger=[MetricsCsv(run.folder, run.step), *options.loggers(run.folder)],
            plugins=[AtomicCheckpointIO(), *options.listed("plugins")],
            callbacks=[alive, *_callbacks(run, options, model, data)],
        )
        data.share_batch(trainer)
        limit_threads_of(trainer, model, data)
        check_continues(run.checkpoint, run.saved, model, data, trainer)
        _announce(run, model, data)
        run.began = clocks()
        with (
            ending_together(trainer, alive),
            naming_a_smaller_batch(trainer, data),
            _saying(run, options),
        ):
            trainer.fit(model, data, ckpt_path=run.checkpoint and str(run.checkpoint))
            _say_why_it_ended(run, options, trainer)
            if options.config.trainer.fast_dev_run:
                return run, "training and validation went through; nothing was kept"
            result = None
            if run.begun or not run.finished:
                run.begin(options)  # also where nothing was left to train
                result = finish(run, options, trainer, model, data)
        finish_rest(run.folder)  # the first process is alone now
        model.length.close(run.folder)
        if result is None:
            return run, f"{run.folder} is finished and stays as it is"
        return run, closing(run.folder, result, options, trainer, data)


def _callbacks(
    run: RunDirectory, options: Options, model: Module, data: ImageData
) -> list[Callback]:
    """The callbacks of the fit, in the order in which they act."""
    recipe, folder = options.listed("callbacks"), run.folder / "checkpoints"
    wanted = options.trainer["enable_progress_bar"] is not False
    bar = wanted and not any(isinstance(c, ProgressBar) for c in recipe)
    by_size = any(isinstance(c, FineTuneBySize) for c in recipe)
    best = data.splits.val is not None and not by_size
    return [
        LambdaCallback(setup=partial(check_same, options, data)),
        *options.batch_trial,
        *recipe,
        *options.early_stopping(data, model.monitor),
        *([RunProgress()] if bar else []),
        *model.guards(),  # count samples, stop at NaN, count every image once
        LambdaCallback(on_train_batch_start=partial(run.begin, options)),
        LambdaCallback(on_train_batch_start=partial(save_first_batch, run.folder, data)),
        StopTogether(),
        *([BestCheckpoint(folder, model.monitor)] if best else []),
        LastCheckpoint(folder, options.config.save_every),
    ]


@contextmanager
def _saying(run: RunDirectory, options: Options) -> Generator[None]:
    """Says after a signal how to continue the run; turns an error of the Trainer's into one line,
    such as that for an epoch of less than a batch."""
    try:
        with in_one_line(MisconfigurationException):
            yield
    except Stopped as stop:
        stop.announced = True
        how = options.continuing(run.folder)
        if launched() and options.config.resume == "auto":
            how = "the same command continues it"  # perhaps on several machines
        saved = checkpoints(run.folder)
        say(f"stopped; {how}" if saved else "stopped before the first step: nothing to save")
        raise


def _say_why_it_ended(run: RunDirectory, options: Options, trainer: Trainer) -> None:
    for stop in trainer.early_stopping_callbacks:
        if stop.wait_count >= stop.patience:
            say(f"stopped early: {stop.monitor} not improved in {stop.patience} validations")
    if trainer.global_step == run.step:
        limit = limit_option(options, trainer)
        remedy = f"raise it: {limit}" if limit else "give other options and another --run_dir"
        note(f"nothing is left to train at step {run.step}; {remedy}")


def _note_imbalance(model: Module, data: ImageData) -> None:
    """Names the option for classes of very different sizes, unless one is chosen."""
    counts = sorted(data.counts)
    weighted = isinstance(model, ImageClassifier) and model.class_weights is not None
    corrected = data.multilabel or data.sampling.balanced or weighted
    if corrected or counts[-1] < IMBALANCE * max(counts[0], 1):
        return
    note(
        f"the largest class has {counts[-1]:,} training images, the smallest {counts[0]:,}; "
        "--data.sampling.balanced true lets rare classes count as much"
    )


def _announce(run: RunDirectory, model: Module, data: ImageData) -> None:
    for text in data.splits.notes:
        note(text)
    say(data.summary())
    if data.labelled:
        say(data.splits.per_class())
        _note_imbalance(model, data)
    report = model.load_report
    if run.checkpoint is None and report is not None:
        say("\n".join(report.lines()))
        held_out = len(data.splits.present()) > 1
        if held_out and report.format in OURS and record_of(report.source) is None:
            note(f"{report.source} has no record of its training images; held-out ones may be some")
    total = sum(p.numel() for p in model.model.parameters())
    trained = sum(p.numel() for p in model.model.parameters() if p.requires_grad)
    share = "" if trained == total else f", {trained:,} of them trained"
    objective = sum(p.numel() for p in model.parameters() if p.requires_grad) - trained
    share += f", and {objective:,} of the objective" if objective else ""
    if not trained:  # a teacher, which follows what is trained
        share = f" to save, which follow {objective:,} others that are trained"
    say(f"{total / 1e6:.1f} million parameters{share}; run directory {run.folder}")
