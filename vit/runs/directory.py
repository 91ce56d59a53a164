"""A run directory: new or resumed; the first process of a run decides, locks and writes."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from filelock import FileLock, Timeout
from lightning.pytorch import Trainer

from vit.console import is_first_process, note
from vit.data.module import ImageData
from vit.data.roots import root_name
from vit.data.trained_on import NONE, TrainedOn, digests
from vit.errors import UserError, check_types, some_of
from vit.runs.mistakes import differences, listed
from vit.runs.options import Module, Options
from vit.runs.processes import HANDED_DOWN, decided_by_first, launched
from vit.runs.records import CONFIG, HEADER, LOCK, SUMMARY, is_run, read_summary
from vit.weights.archives import BEST, DIGESTS, LAST, read_checkpoint
from vit.weights.names import TRAINED_ON
from vit.writing import is_temporary, recover, remove_orphans, write_json, write_text
from vit.yaml_reader import read_options

LIMITS = {"final_split", "patience"} | {
    f"trainer.{name}" for name in ("max_epochs", "max_steps", "max_time", "min_epochs", "min_steps")
}
"""Options that continue a finished run."""
STARTED_FROM = "weights.model.pretrained"
"""Weights that a run which goes on has no more use for: its checkpoint has all of its own."""
# Fields of an architecture on which neither weights nor outputs in evaluation depend.
FREE = {"dropout", "drop_path", "drop_path_uniform", "num_classes"}


@dataclass
class RunDirectory:
    """The directory of a run and its checkpoint; the same in all processes."""

    folder: Path
    checkpoint: Path | None = None
    """The .ckpt to resume from, a file or the folder of a sharded one; None for a new run."""
    step: int | None = None
    """Optimizer steps taken at the checkpoint."""
    finished: bool = False
    """The run has ended, and the command asks at most for more training; without a checkpoint, for
    nothing."""
    saved: dict[str, Any] = field(default_factory=dict)
    """Content of the checkpoint without the values of tensors, in the first process; else empty."""
    begun: bool = False

    @classmethod
    @contextmanager
    def open(cls, options: Options) -> Iterator["RunDirectory"]:
        """The directory that --run_dir, --resume or the recipe names, locked until the end.

        UserError if another process writes to it, if it holds something else, or if options differ
        that cannot change.
        """
        with ExitStack() as held:
            decision, saved = decided_by_first(lambda: _decide(options, held))
            if launched() is None:  # Lightning may start the others
                os.environ[HANDED_DOWN] = json.dumps(decision)
                held.callback(os.environ.pop, HANDED_DOWN, None)
            places = {k: Path(decision.pop(k)) for k in ("folder", "checkpoint") if k in decision}
            yield cls(**places, **decision, saved=saved)

    def begin(self, options: Options) -> None:
        """Writes config.yaml and model/trained_on, and marks an earlier summary as unfinished."""
        if self.begun:
            return
        self.begun = True
        if not is_first_process():
            return
        if (self.folder / SUMMARY).is_file():
            summary = {**read_summary(self.folder), "finished": False}
            write_json(self.folder / SUMMARY, summary)
        if self.checkpoint is not None:  # of the weights that the run began with
            options.weights.update(recorded_options(self.folder).get("weights", {}))
        write_text(self.folder / CONFIG, HEADER + options.recorded_text())
        before, data = options.data.known, options.data
        sets = [data.splits.train, *([data.mixture.unlabelled] if data.mixture else ())]
        here = digests(sets, shown=options.trainer["enable_progress_bar"] is not False)
        if here is None:
            note("a Dataset's images have no lasting names: model/trained_on does not list them")
        parts = (NONE if before is None else before.digests, NONE if here is None else here)
        TrainedOn(*parts).write(self.folder / "model" / TRAINED_ON)

    def check_continues(self, model: Module, data: ImageData, trainer: Trainer) -> None:
        """UserError for other classes, architecture, images per step, images, labels or splits
        than the checkpoint's."""
        saved = self.saved
        if not saved:  # a new run, or not the first process
            return
        of_data = type(data).__qualname__
        types = dict.fromkeys(("vit", "run", "state_dict", of_data), dict)
        check_types(self.checkpoint, saved, **types)
        about, images = saved["vit"], saved[of_data]
        per_step = data.batch_size * trainer.world_size * trainer.accumulate_grad_batches
        then, now = (
            {name: tuple(value.shape) for name, value in state.items()}
            for state in (saved["state_dict"], model.state_dict())
        )
        before = {
            "classes": about["classes"],
            "images per step": saved["run"].get("global_batch", per_step),
            "digest of the images and labels": images["splits"],
            # A folder and its shards are the same images.
            "digest of the contents of the shards": images.get("contents") or data.contents,
            "model.architecture": about["config"],
            "shape": then,
        }
        contents = data.contents or images.get("contents")
        config = model.model.config.to_dict()
        values = (model.classes, per_step, data.digests, contents, config, now)
        found = differences(before, dict(zip(before, values, strict=True)))
        if differing := {n: v for n, v in found.items() if n.rpartition(".")[2] not in FREE}:
            raise UserError(
                f"cannot resume {self.checkpoint}: {listed(differing)}. Give the options and the "
                f"images of that run, or start a new one from its weights: --model.pretrained "
                f"{self.checkpoint}"
            )


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, the last before the best."""
    return [path for name in (LAST, BEST) if (path := run / "checkpoints" / name).exists()]


def find_checkpoint(run: Path) -> Path:
    """The best checkpoint of an unfinished run, or its last. UserError without one."""
    files = checkpoints(run)
    if not files:
        raise UserError(f"{run} has no checkpoint yet: the run stopped before it saved one")
    return files[-1]


def recorded_options(run: Path) -> dict[str, Any]:
    """Content of a run's config.yaml; empty without one."""
    return read_options(run / CONFIG) if is_run(run) else {}


def run_name(options: Options) -> str:
    """DATA-RECIPE, or RECIPE alone where the recipes have their own data."""
    recipe = options.recipe or "run"
    recipe = Path(recipe).stem if Path(recipe).is_file() else recipe.replace("/", "_")
    groups = [content.get("data") or {} for content in options.recipes]
    named, data = any(g.get("dataset") or g.get("root") for g in groups), options.config.data
    if named or (data.root is None and data.dataset is None):  # images from Python have no name
        return recipe
    return f"{data.dataset if data.root is None else root_name(data.root)}-{recipe}"


def _decide(options: Options, held: ExitStack) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of RunDirectory in JSON types, where they differ from its defaults, and `saved`.

    The folder is locked until `held` is closed.
    """
    run_dir, resume = options.config.run_dir, options.config.resume
    if options.config.trainer.fast_dev_run:  # which keeps nothing
        return {"folder": held.enter_context(TemporaryDirectory(prefix="vit_"))}, {}
    if resume in ("auto", "never") and run_dir is None:
        return {"folder": str(_numbered(options, held))}, {}
    source, file = _source(resume, run_dir)
    folder = source if run_dir is None else Path(run_dir).expanduser()
    if folder.resolve() == source.resolve():
        source = folder
    _check_free(folder)
    held.enter_context(locked(folder))
    finished = read_summary(source).get("finished") is True
    files = [file] if file is not None else checkpoints(source)
    if (source != folder and _contents(folder)) or (resume == "never" and (files or finished)):
        raise UserError(f"{folder} already holds a run; choose an empty --run_dir")
    decision: dict[str, Any] = {"folder": str(folder)}
    if not (files or finished):
        return decision, {}
    before = recorded_options(source)
    differing = differences(before, options.recorded()) if before else {}
    if finished and source == folder:
        decision["finished"] = "final_split" not in differing
        if not differing:
            return decision, {}
        limits = differing.keys() - {STARTED_FROM}
        if not (files and limits and limits <= LIMITS):
            raise UserError(
                f"{folder} holds a finished run with other options: {listed(differing)}; "
                f"give the options of that run, or choose another --run_dir"
            )
    checkpoint, saved = _whole(files)
    _check_options(source, differing)
    note(f"resuming {folder} at step {saved['global_step']:,} from {checkpoint}")
    return {**decision, "checkpoint": str(checkpoint), "step": saved["global_step"]}, saved


def _numbered(options: Options, held: ExitStack) -> Path:
    """The first free one of runs/NAME, NAME-2, ..., locked; notes an unfinished run before it."""
    name, earlier = run_name(options), list[Path]()
    folder = Path("runs", name)
    while True:
        with suppress(_Locked):
            if not _contents(folder):
                held.enter_context(locked(folder))
                break
        earlier.append(folder)
        folder = Path("runs", f"{name}-{len(earlier) + 1}")
    for other in reversed(earlier):
        unfinished = checkpoints(other) and read_summary(other).get("finished") is not True
        if unfinished and not differences(recorded_options(other), options.recorded()):
            how = options.continuing(other)
            note(f"{other} is an unfinished run with these options; {how}")
            break
    return folder


@contextmanager
def locked(folder: Path, way: str = "choose another --run_dir, or ") -> Iterator[None]:
    """The folder, made and locked. UserError if that is impossible; `way`: on from a locked one.

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
            f"run directory {folder} is being written to by process {owner}; {way}wait until it "
            "has ended"
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


def _source(resume: str, run_dir: str | None) -> tuple[Path, Path | None]:
    """Directory of the run to resume, and its checkpoint if a file was named."""
    if resume in ("auto", "never"):
        assert run_dir is not None
        return Path(run_dir).expanduser(), None
    place = Path(resume).expanduser()
    if checkpoints(place) or read_summary(place):
        return place, None
    if place.exists() and place.suffix == ".ckpt":
        inside = place.resolve().parent
        return (inside.parent if inside.name == "checkpoints" else inside), place
    raise UserError(
        f"--resume {resume} is neither a run with a checkpoint nor a .ckpt; weights to start "
        "from go to --model.pretrained"
    )


OBJECTIVES = tuple(
    f"model.{name}"
    for name in ("mask_ratio", "mask_in_encoder", "norm_pix", "prefix", "fraction", "target")
)
"""Options of tasks without labels by which their losses are measured: with others, the best score
so far would be of another kind."""


def _check_options(source: Path, differing: dict[str, tuple[Any, Any]]) -> None:
    """Notes options that differ from the run's. UserError for those that a checkpoint fixes."""
    names = ("task", "seed_everything", "model.optimizer", "model.learning.", *OBJECTIVES)
    names += ("weights.model.loss",)
    fixed = {name: values for name, values in differing.items() if name.startswith(names)}
    if fixed:
        raise UserError(
            f"{source} cannot be resumed with other values of {listed(fixed)}; give those of the "
            f"run, or start a new one from its weights: --model.pretrained {source}"
        )
    if differing:
        note(f"options that differ from {source / CONFIG}: {listed(differing)}")


def _whole(files: list[Path]) -> tuple[Path, dict[str, Any]]:
    """The first undamaged checkpoint, and its content without tensor values."""
    for path in files:
        try:
            return path, read_checkpoint(path, "meta")
        except UserError as error:
            note(str(error))
    raise UserError(
        f"{some_of(map(str, files))}: nothing whole to resume from; name another checkpoint of the "
        "run, such as best.ckpt, or start a new run"
    )
