"""The directory of a run, new or resumed: the first process decides, locks it and writes."""

import json
import os
import socket
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from filelock import FileLock, Timeout

from vit.console import is_first_process, note
from vit.data.roots import root_name
from vit.data.trained_on import NONE, Known, TrainedOn, digests
from vit.errors import UserError, some_of
from vit.runs.following import TEACHER
from vit.runs.lineage import known_by
from vit.runs.options import Options
from vit.runs.processes import HANDED_DOWN, decided_by_first, launched
from vit.runs.records import (
    CONFIG,
    HEADER,
    LOCK,
    SUMMARY,
    Record,
    is_run,
    read_summary,
    recorded_options,
)
from vit.runs.resuming import check_changes, differences, listed
from vit.weights.archives import BEST, DIGESTS, LAST, read_checkpoint
from vit.weights.names import TRAINED_ON, record_of
from vit.writing import is_temporary, recover, remove_orphans, write_json, write_text

LIMITS = ("final_split", "patience", "model.schedule.length", "trainer.max_", "trainer.min_")
"""Beginnings of options that continue a finished run."""
STARTED_FROM = "weights.model.pretrained"
"""Weights that a resumed run does not need: its checkpoint has all of its own."""


@dataclass
class RunDirectory:
    """The directory of a run and its checkpoint; the same in all processes."""

    folder: Path
    checkpoint: Path | None = None
    """The .ckpt to resume from, a file or the folder of a sharded one; None for a new run."""
    step: int | None = None
    """Optimizer steps taken at the checkpoint."""
    finished: bool = False
    """It has ended, and the command asks for more training, or without a checkpoint for nothing."""
    saved: Record = field(default_factory=Record)
    """Content of the checkpoint without the values of tensors, in the first process; else empty."""
    begun: bool = False
    began: tuple[float, float] = (0.0, 0.0)
    """Seconds, and CPU seconds, of the first process before the training."""

    @classmethod
    @contextmanager
    def open(cls, options: Options) -> Generator["RunDirectory"]:
        """The directory that --run_dir, --resume or the recipe names, locked until the end.

        UserError if another process writes to it, if it holds something else, or if options differ
        that cannot change.
        """
        saved: Record = {}
        with ExitStack() as stack:
            decision = decided_by_first(lambda: _decide(options, stack, saved))
            if launched() is None:  # Lightning may start the others
                os.environ[HANDED_DOWN] = json.dumps(decision)
                stack.callback(os.environ.pop, HANDED_DOWN, None)
            places = {k: Path(decision.pop(k)) for k in ("folder", "checkpoint") if k in decision}
            run = cls(**places, **decision, saved=saved)
            if run.checkpoint and not run.checkpoint.resolve().is_relative_to(run.folder.resolve()):
                options.cool_down_from(run.step or 0)
            yield run

    def begin(self, options: Options, *_: object) -> None:
        """Writes config.yaml and model/trained_on, and marks an earlier summary as unfinished.
        Notes images of val and test that are in train, too."""
        if self.begun:
            return
        self.begun = True
        if not is_first_process():
            return
        if summary := read_summary(self.folder):
            write_json(self.folder / SUMMARY, {**summary, "finished": False})
        if self.checkpoint is not None:  # of the weights that the run began with
            options.weights.update(recorded_options(self.folder).get("weights", {}))
        write_text(self.folder / CONFIG, HEADER + options.recorded_text())
        data, record = options.data, self.folder / "model" / TRAINED_ON
        sets = [data.splits.train, *([data.mixture.unlabelled] if data.mixture else ())]
        bar = options.trainer["enable_progress_bar"] is not False
        here = digests(sets, shown=bar)
        if here is None:
            note("a Dataset's images have no lasting names: model/trained_on does not list them")
            here = NONE
        for text in Known(here, "this run").held_out(data.splits, shown=bar):
            note(text)
        if (teacher := known_by(options.config.model.get(TEACHER))) is not None:
            here = np.union1d(here, teacher.digests)
        if self.checkpoint is not None and (file := record_of(self.checkpoint)) is not None:
            here = np.union1d(here, TrainedOn.read(file).here)  # files may be others by now
        TrainedOn(NONE if data.known is None else data.known.digests, here).write(record)


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, the last before the best."""
    return [path for name in (LAST, BEST) if (path := run / "checkpoints" / name).exists()]


def find_checkpoint(run: Path) -> Path:
    """The best checkpoint of an unfinished run, or its last. UserError without one."""
    files = checkpoints(run)
    if not files:
        raise UserError(f"{run} has no checkpoint yet: the run stopped before it saved one")
    return files[-1]


def run_name(options: Options) -> str:
    """DATA-RECIPE, or RECIPE alone where the recipes have their own data."""
    recipe, data = options.recipe or "run", options.config.data
    recipe = Path(recipe).stem if Path(recipe).is_file() else recipe.replace("/", "_")
    groups: list[Record] = [content.get("data") or {} for content in options.recipes]
    of_recipe = any(group.get("dataset") or group.get("root") for group in groups)
    if of_recipe or (data.root is None and data.dataset is None):  # images from Python: no name
        return recipe
    return f"{data.dataset if data.root is None else root_name(data.root)}-{recipe}"


def _decide(options: Options, stack: ExitStack, saved: Record) -> Record:
    """Arguments of RunDirectory in JSON types; `saved` gets the content of the checkpoint.

    The folder is locked until `stack` is closed.
    """
    run_dir, resume = options.config.run_dir, options.config.resume
    if options.config.trainer.fast_dev_run:  # which keeps nothing
        return {"folder": stack.enter_context(TemporaryDirectory(prefix="vit_"))}
    if resume in ("auto", "never") and run_dir is None:
        return {"folder": str(_numbered(options, stack))}
    place = Path(run_dir if resume in ("auto", "never") else resume).expanduser()
    file, inside = place if place.suffix == ".ckpt" else None, place.resolve().parent
    source = place if file is None else inside.parent if inside.name == "checkpoints" else inside
    folder = source if run_dir is None else Path(run_dir).expanduser()
    if folder.resolve() == source.resolve():
        source = folder
    _check_free(folder)
    stack.enter_context(locked(folder))
    finished = read_summary(source).get("finished") is True
    files = [file] if file is not None else checkpoints(source)
    if (source != folder and _contents(folder)) or (resume == "never" and (files or finished)):
        raise UserError(f"{folder} already holds a run; choose an empty --run_dir")
    if not (files or finished):
        return {"folder": str(folder)}
    before = recorded_options(source)
    changes = differences(before, options.recorded()) if before else {}
    ended = finished and source == folder
    if ended and not changes:
        return {"folder": str(folder), "finished": True}
    limits = changes.keys() - {STARTED_FROM}
    if ended and not (files and limits and all(name.startswith(LIMITS) for name in limits)):
        raise UserError(
            f"{folder} holds a finished run with other options: {listed(changes)}; give the "
            "options of that run, or choose another --run_dir"
        )
    checkpoint = _whole(files, saved)
    check_changes(source, options, changes)
    step: int = saved["global_step"]
    note(f"resuming {folder} at step {step:,} from {checkpoint}")
    arguments = {"folder": str(folder), "checkpoint": str(checkpoint), "step": step}
    return {**arguments, "finished": ended and "final_split" not in changes}


def _numbered(options: Options, stack: ExitStack) -> Path:
    """The first free one of runs/NAME, NAME-2, ..., locked; notes an unfinished run before it."""
    name, number, unfinished = run_name(options), 1, None
    while True:
        folder = Path("runs", name if number == 1 else f"{name}-{number}")
        with suppress(_Locked):
            if not _contents(folder):
                stack.enter_context(locked(folder))
                break
        if checkpoints(folder) and read_summary(folder).get("finished") is not True:
            if not differences(recorded_options(folder), options.recorded()):
                unfinished = folder
        number += 1
    if unfinished is not None:
        note(f"{unfinished} is unfinished, with these options; {options.continuing(unfinished)}")
    return folder


@contextmanager
def locked(folder: Path) -> Generator[None]:
    """The folder, made and locked. UserError if that is impossible.

    What was made is removed again if nothing was written.
    """
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        owner = " on ".join((folder / LOCK).read_text(errors="replace").split()[:2])
        raise _Locked(
            f"run directory {folder} is being written to by process {owner}; wait until it has "
            "ended, or choose another directory"
        ) from error
    except OSError as error:
        raise UserError(f"run directory {folder} cannot be written to: {error.strerror}") from error
    (folder / LOCK).write_text(f"{os.getpid()}\n{socket.gethostname()}\n")
    recover(folder / "checkpoints", DIGESTS)
    for place in (folder, folder / "checkpoints", folder / "model"):
        remove_orphans(place)
    try:
        yield
    finally:
        if not _contents(folder):
            (folder / LOCK).unlink(missing_ok=True)
            with suppress(OSError):  # somebody else has put something there
                for place in made:
                    place.rmdir()
        lock.release()


class _Locked(UserError):
    """Another process writes to the directory."""


def _contents(folder: Path) -> list[str]:
    """Names in the folder, without the lock and temporary files."""
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted(name for name in names if name != LOCK and not is_temporary(name))


def _check_free(folder: Path) -> None:
    """UserError for a place that is neither empty nor a run of ours."""
    if (names := _contents(folder)) and not is_run(folder):
        raise UserError(
            f"run_dir={folder} is not empty and holds no run ({some_of(names, 3)}); choose another "
            "--run_dir"
        )


def _whole(files: list[Path], saved: Record) -> Path:
    """The first undamaged checkpoint; `saved` gets its content without tensor values."""
    for path in files:
        try:
            saved.update(read_checkpoint(path, "meta"))
            return path
        except UserError as error:
            note(str(error))
    raise UserError(
        f"{some_of(map(str, files))}: nothing whole to resume from; name another checkpoint of the "
        "run, such as best.ckpt, or start a new run"
    )
