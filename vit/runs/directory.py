"""A run directory: new or resumed; the first process of a run decides, locks and writes."""

import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from filelock import FileLock, Timeout

from vit.checkpoints.archives import BEST, DIGESTS, LAST, read_checkpoint
from vit.console import is_first_process, note
from vit.data.addresses import root_name
from vit.errors import UserError, some_of
from vit.runs.files import CONFIG, HEADER, LOCK, SUMMARY, is_run, read_summary
from vit.runs.mistakes import differences, listed
from vit.runs.options import Options
from vit.runs.processes import HANDED_DOWN, decided_by_first
from vit.writing import is_temporary, recover, remove_orphans, write_json, write_text
from vit.yaml_reader import read_options

LIMITS = {"final_split", "patience"} | {
    f"trainer.{name}" for name in ("max_epochs", "max_steps", "max_time", "min_epochs", "min_steps")
}
"""Options that continue a finished run."""


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
    saved: dict[str, Any] | None = None
    """Content of the checkpoint without the values of tensors, in the first process."""
    closing: str = ""
    """Text to print at the end."""
    begun: bool = False

    @classmethod
    @contextmanager
    def open(cls, options: Options) -> Iterator["RunDirectory"]:
        """The directory that --run_dir, --resume or the recipe names, locked until the end.

        UserError if another process writes to it, if it holds something else, or if options differ
        that cannot change.
        """
        first = _First()
        try:
            decision = decided_by_first(lambda: first.decide(options))
            os.environ[HANDED_DOWN] = json.dumps(decision)
            for name, value in decision.pop("unchanged", {}).items():
                options.config[name] = value  # so that config.yaml says what is used
            places = {k: decision[k] and Path(decision[k]) for k in ("folder", "checkpoint")}
            yield cls(**{**decision, **places}, saved=first.saved)
        finally:
            os.environ.pop(HANDED_DOWN, None)
            first.leave()

    def begin(self, options: Options) -> None:
        """Writes config.yaml, and marks an earlier summary as unfinished; once."""
        if self.begun:
            return
        self.begun = True
        if not is_first_process():
            return
        if (self.folder / SUMMARY).is_file():
            summary = {**read_summary(self.folder), "finished": False}
            write_json(self.folder / SUMMARY, summary)
        write_text(self.folder / CONFIG, HEADER + options.recorded_text())


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


@dataclass
class _First:
    """The first process of a run, which holds the lock."""

    lock: FileLock | None = None
    made: list[Path] = field(default_factory=list)
    """Folders that did not exist before, the innermost first."""
    saved: dict[str, Any] | None = None
    scratch: Path | None = None
    """Directory of a fast_dev_run, which keeps nothing."""

    def decide(self, options: Options) -> dict[str, Any]:
        """Arguments of RunDirectory, in JSON types."""
        run_dir, resume = options.config.run_dir, options.config.resume
        if options.config.trainer.fast_dev_run:
            self.scratch = Path(mkdtemp(prefix="vit_"))
            return {"folder": str(self.scratch), "checkpoint": None}
        if resume in ("auto", "never") and run_dir is None:
            return {"folder": str(self._numbered(options)), "checkpoint": None}
        source, file = _source(resume, run_dir)
        folder = source if run_dir is None else Path(run_dir).expanduser()
        if folder.resolve() == source.resolve():
            source = folder
        _check_free(folder)
        self._take(folder)
        if source != folder and _contents(folder):
            raise UserError(f"{folder} already holds a run; choose an empty --run_dir")
        finished = read_summary(source).get("finished") is True
        files = [file] if file is not None else checkpoints(source)
        if resume == "never" and (files or finished):
            raise UserError(f"{folder} already holds a run; choose another --run_dir")
        decision: dict[str, Any] = {"folder": str(folder), "checkpoint": None}
        if resume == "never" or not (files or finished):
            return decision
        before = recorded_options(source)
        differing = differences(before, options.recorded()) if before else {}
        if finished and source == folder:
            decision["finished"] = "final_split" not in differing
            if not differing:
                return decision
            if not (files and differing.keys() <= LIMITS):
                raise UserError(
                    f"{folder} holds a finished run with other options: {listed(differing)}; "
                    f"give the options of that run, or choose another --run_dir"
                )
        checkpoint, self.saved = _whole(files)
        step = self.saved["global_step"]
        unchanged = _check_options(source, differing)
        note(f"resuming {folder} at step {step:,} from {checkpoint}")
        return {**decision, "checkpoint": str(checkpoint), "step": step, "unchanged": unchanged}

    def _numbered(self, options: Options) -> Path:
        """The first free one of runs/NAME, NAME-2, ...; notes an unfinished run before it."""
        earlier: list[Path] = []
        name = run_name(options)
        while True:
            number = len(earlier) + 1
            folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
            if not folder.is_file() and not _contents(folder):
                with suppress(_Locked):
                    self._take(folder)
                    if not _contents(folder):  # no other run has come and gone
                        break
                    self.leave()
            earlier.append(folder)
        for other in reversed(earlier):
            unfinished = checkpoints(other) and read_summary(other).get("finished") is not True
            if unfinished and not differences(recorded_options(other), options.recorded()):
                how = options.objects.continuing(other)
                note(f"{other} is an unfinished run with these options; {how}")
                break
        return folder

    def _take(self, folder: Path) -> None:
        """Makes and locks the folder. UserError if that is impossible."""
        self.made = [place for place in (folder, *folder.parents) if not place.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / LOCK, timeout=0)
            lock.acquire()
        except Timeout as error:
            owner = " on ".join((folder / LOCK).read_text(errors="replace").split()[:2])
            raise _Locked(
                f"run directory {folder} is being written to by process {owner}; choose another "
                "--run_dir, or wait until it has ended"
            ) from error
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise UserError(f"--run_dir {folder} cannot be written to: {reason}") from error
        self.lock = lock
        owner = f"{os.getpid()}\n{socket.gethostname()}\n"
        if not (folder / LOCK).read_text(errors="replace").startswith(owner):  # a soft lock's does
            (folder / LOCK).write_text(owner)
        recover(folder / "checkpoints", DIGESTS)
        for place in (folder, folder / "checkpoints", folder / "model"):
            remove_orphans(place)

    def leave(self) -> None:
        """Releases the lock, and removes the folders of a start that wrote nothing."""
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)
        if self.lock is None:
            return
        folder = Path(self.lock.lock_file).parent
        if not _contents(folder):
            (folder / LOCK).unlink(missing_ok=True)
            with suppress(OSError):  # somebody else has put something there
                for place in self.made:
                    place.rmdir()
        self.lock.release()
        self.lock = None


class _Locked(UserError):
    """Another process writes to the directory."""


def _contents(folder: Path) -> list[str]:
    """Names in the folder, without the lock and temporary files."""
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted(name for name in names if name != LOCK and not is_temporary(name))


def _check_free(folder: Path) -> None:
    """UserError for a place that is neither empty nor a run of ours."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"run_dir={folder} is a file; choose another --run_dir")
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


def _check_options(source: Path, differing: dict[str, tuple[Any, Any]]) -> dict[str, Any]:
    """Options whose value the checkpoint keeps. Notes other changes; UserError for fixed ones."""
    names = ("task", "seed_everything", "model.optimizer", "model.optimizer.class_path")
    fixed = {
        name: values
        for name, values in differing.items()
        if name in names or name.startswith("model.learning.")
    }
    if fixed:
        raise UserError(
            f"{source} cannot be resumed with other values of {listed(fixed)}; give those of the "
            f"run, or start a new one from its weights: --model.pretrained {source}"
        )
    optimizer = {n: v for n, v in differing.items() if n.startswith("model.optimizer.")}
    others = {n: v for n, v in differing.items() if n not in optimizer}
    if others:
        note(f"options that differ from {source / CONFIG}: {listed(others)}")
    for name, (before, now) in optimizer.items():
        note(f"{name}={now} has no effect: the checkpoint keeps {before}")
    return {name: before for name, (before, _) in optimizer.items()}


def _whole(files: list[Path]) -> tuple[Path, dict[str, Any]]:
    """The first undamaged checkpoint, and its content without tensor values."""
    faults: list[str] = []
    for path in files:
        try:
            saved = read_checkpoint(path, "meta")
        except UserError as error:
            faults.append(str(error))
        else:
            for fault in faults:
                note(fault)
            return path, saved
    siblings = [p for p in files[0].parent.glob("*.ckpt") if p not in files]
    others = f"resume from {some_of(map(str, siblings), 3)}" if siblings else "start a new run"
    raise UserError(f"{'; '.join(faults)}; {others}")
