"""Which directory a run writes to, which checkpoint it continues, and that no other run does."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from vit.checkpoints.sealed import BEST, LAST, PREVIOUS
from vit.console import is_first_process
from vit.errors import UserError, some_of
from vit.locking import FileLock, Locked
from vit.writing import is_temporary, remove_orphans, writable, write_bytes

LOCK = ".lock"
TRACEBACK = "traceback.txt"
CONFIG = "config.yaml"
# There from the first step to the last page of the report.
UNFINISHED = ".unfinished"
# What a start leaves that has not come to a checkpoint; the next start takes its place.
_REPLACED = {
    TRACEBACK,
    UNFINISHED,
    "metrics.csv",
    "checkpoints",
    "first_batch.png",
    "nonfinite.json",
}
# It leaves these, too. A config.yaml may be the recipe that the user has put there: the next start
# keeps it, as config.yaml.1 where its own differs.
_KEPT = re.compile(rf"{re.escape(LOCK)}|{re.escape(CONFIG)}(\.\d+)?")
# Beside a start: where `vit transfer`, or a shell, puts its output.
_BESIDE_A_START = {"log.txt"}


def run_name(recipe: str | None, root: str | None, dataset: str | None) -> str:
    """The recipe's name, or the folder's where a recipe has no data of its own."""
    if root is not None and dataset is None:
        path = Path(root).expanduser().resolve()
        return (path.name if path.is_dir() else path.stem) or "run"
    if recipe is not None:
        return Path(recipe).stem if Path(recipe).is_file() else recipe.replace("/", "_")
    return dataset or "run"


@dataclass
class Claim:
    """A run directory that this process alone writes to, until it ends."""

    folder: Path
    fresh: bool
    """Whether a new run starts here, as opposed to one that goes on."""
    lock: FileLock | None = None
    """None in processes that write nothing."""
    made: list[Path] = field(default_factory=list)
    """Directories that did not exist before, outermost first."""
    earlier_names: frozenset[str] = frozenset()
    """Names of the files that an earlier start, or the user, has put there."""
    earlier_config: bytes | None = None
    """Content of the config.yaml among them."""
    earlier_runs: list[Path] = field(default_factory=list)
    """Directories of other runs that have taken the names before this one's."""

    def abandon(self) -> None:
        """Removes what a start that came to no checkpoint has written, and gives the lock back."""
        if self.lock is None:
            return
        # What was logged before a loss became infinite is worth a look; the next start replaces it.
        trained = holds_run(self.folder) or (self.folder / "metrics.csv").exists()
        if self.fresh and not trained:
            for name in filter(_is_of_a_start, os.listdir(self.folder)):
                if name not in self.earlier_names:
                    _remove(self.folder / name)
            if self.earlier_config is not None:
                write_bytes(self.folder / CONFIG, self.earlier_config)
            for folder in reversed(self.made):
                with suppress(OSError):  # somebody else has put something there
                    folder.rmdir()
        self.release()

    def release(self) -> None:
        """Gives the lock back."""
        if self.lock is not None:
            self.lock.release()


# The directories that this process has claimed and not given back.
_claims: list[Claim] = []


def claimed() -> Path | None:
    """The run directory that this process writes to, if there is one."""
    return _claims[-1].folder if _claims else None


@contextmanager
def kept(claim: Claim) -> Iterator[Claim]:
    """Holds the claim; a start that fails inside leaves nothing behind that it has made."""
    _claims.append(claim)
    try:
        yield claim
    except BaseException as error:
        # After anything unexpected the traceback is written here before the lock is given back.
        if isinstance(error, UserError | SystemExit | OSError):
            claim.abandon()
            _claims.remove(claim)
        raise
    claim.release()
    _claims.remove(claim)


def release_all() -> None:
    """Gives back what an unexpected error has left claimed."""
    while _claims:
        _claims.pop().release()


def claim_new(wanted: str | None, name: str) -> Claim:
    """A directory that holds no run yet: `wanted` as it stands, else runs/NAME, runs/NAME-2, ...

    It is taken by a lock, so that of two runs that start at once only one gets it. Only the first
    process decides; the others, which may start later, get its choice by broadcast. UserError where
    `wanted` holds anything but a start that failed.
    """
    if not is_first_process():
        return Claim(Path(wanted or "runs").expanduser(), fresh=True)
    if wanted is not None:
        return _claim_free(Path(wanted).expanduser(), f"run_dir={wanted}")
    earlier: list[Path] = []
    while True:
        folder = Path("runs") / (f"{name}-{len(earlier) + 1}" if earlier else name)
        try:
            claim = _claim_free(folder, f"run directory {folder}")
        except (Locked, _Occupied):
            earlier.append(folder)
        else:
            claim.earlier_runs = earlier
            return claim


def claim_resumed(checkpoint: Path, folder: Path) -> Claim:
    """The directory of a run that goes on from `checkpoint`, or a new one where it goes on."""
    if not is_first_process():
        return Claim(folder, fresh=False)
    # RUN/checkpoints may be a link to another disk.
    homes = {_home(checkpoint), checkpoint.absolute().parent.parent.resolve()}
    if folder.resolve() not in homes or not _is_run(folder):
        return _claim_free(folder, f"run_dir={folder}")
    writable(folder, "--run_dir")
    return _take(Claim(folder, fresh=False), f"run_dir={folder}")


class _Occupied(UserError):
    """A directory with something in it."""


def _claim_free(folder: Path, what: str) -> Claim:
    # Before anything is made, so that a refusal changes nothing.
    _check_free(folder, what)
    new_folders = [path for path in (*reversed(folder.parents), folder) if not path.exists()]
    writable(folder, "--run_dir")
    earlier = frozenset(filter(_KEPT.fullmatch, os.listdir(folder)))
    claim = _take(Claim(folder, fresh=True, made=new_folders, earlier_names=earlier), what)
    try:
        _check_free(folder, what)  # another run may have come and gone
        for name in _REPLACED:
            _remove(folder / name)
        if (folder / CONFIG).is_file():
            claim.earlier_config = (folder / CONFIG).read_bytes()
    except BaseException:
        claim.release()
        raise
    return claim


def _take(claim: Claim, what: str) -> Claim:
    lock = FileLock(claim.folder / LOCK)
    try:
        lock.acquire()
    except Locked as error:
        raise Locked(
            f"{what} is being written to by {lock.owner()}; choose another --run_dir, or wait "
            "until it has ended"
        ) from error
    except FileNotFoundError:  # whoever made it has failed and removed it
        claim.folder.mkdir(parents=True, exist_ok=True)
        return _take(claim, what)
    claim.lock = lock
    for folder in (claim.folder, claim.folder / "checkpoints", claim.folder / "model"):
        remove_orphans(folder)
    return claim


def _check_free(folder: Path, what: str) -> None:
    """UserError unless a run can start in the folder without replacing anything of the user's."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise _Occupied(f"{what} is a file; choose another --run_dir")
    names = {name for name in os.listdir(folder) if not is_temporary(name)}
    if holds_run(folder):
        if has_checkpoint(folder):
            raise _Occupied(
                f"{what} already holds a run: add --ckpt_path last to continue it, or choose "
                "another --run_dir"
            )
        raise _Occupied(f"{what} already holds a run; choose another --run_dir")
    others = sorted(name for name in names - _BESIDE_A_START if not _is_of_a_start(name))
    started = _is_our_lock(folder / LOCK) or _is_our_config(folder / CONFIG)
    if not others and not started:  # these may be anybody's
        others = sorted(names - _BESIDE_A_START)
    if others:
        raise _Occupied(
            f"{what} is not empty and holds no run ({some_of(others, 3)}); choose another --run_dir"
        )


def _is_of_a_start(name: str) -> bool:
    return name in _REPLACED or _KEPT.fullmatch(name) is not None


def holds_run(folder: Path) -> bool:
    """Whether there is something of a run that took time: weights, a checkpoint, a summary."""
    return _is_run(folder) and (
        _has_checkpoints(folder)
        or (folder / "model").exists()
        or (folder / "summary.json").exists()
    )


def _is_run(folder: Path) -> bool:
    return (
        _is_our_lock(folder / LOCK) or _is_our_config(folder / CONFIG) or _has_checkpoints(folder)
    )


def _has_checkpoints(folder: Path) -> bool:
    checkpoints = folder / "checkpoints"
    if not checkpoints.is_dir():
        return False
    return any(not is_temporary(name) for name in os.listdir(checkpoints))


def _is_our_lock(file: Path) -> bool:
    return file.is_file() and b'"pid"' in file.read_bytes()


def _is_our_config(file: Path) -> bool:
    """Whether a run of any version has written the file."""
    if not file.is_file():
        return False
    with file.open(encoding="utf-8", errors="replace") as lines:
        # Not parsed: it may be anybody's file.
        tops = {line.split(":", 1)[0] for line in lines if line[:1].isalpha()}
    return {"data", "model", "trainer", "seed_everything"} <= tops


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _home(checkpoint: Path) -> Path:
    inside = checkpoint.resolve().parent
    return inside.parent if inside.name == "checkpoints" else inside


def resumed(ckpt_path: str, run_dir: str | None) -> tuple[Path, Path]:
    """(checkpoint, run directory) of the run to continue."""
    if ckpt_path == "last":
        if run_dir is None:
            raise UserError("--ckpt_path last needs --run_dir, the run to continue")
        checkpoint = newest_file(Path(run_dir).expanduser())
    else:
        checkpoint = Path(ckpt_path).expanduser()
    if not checkpoint.is_file():
        raise UserError(f"no checkpoint at {checkpoint}; a run keeps them in RUN/checkpoints/")
    if checkpoint.suffix != ".ckpt":
        raise UserError(
            f"--ckpt_path continues a run from its .ckpt file, not from {checkpoint.name}; weights "
            "to start from go to --model.pretrained"
        )
    return checkpoint, Path(run_dir).expanduser() if run_dir is not None else _home(checkpoint)


def newest_file(run: Path) -> Path:
    """The newest checkpoint file of a run, by name; last.ckpt where there is none."""
    files = [run / "checkpoints" / name for name in (LAST, PREVIOUS, BEST)]
    return next((file for file in files if file.is_file()), files[0])


def has_checkpoint(run: Path) -> bool:
    """Whether there is a file that the run could continue from."""
    return newest_file(run).is_file()


def is_finished(run: Path) -> bool:
    """Whether the run has been scored and reported."""
    return (run / "summary.json").is_file() and not (run / UNFINISHED).exists()


def find_checkpoint(run: Path) -> Path:
    """The best checkpoint of a run directory, or its last."""
    for name in (BEST, LAST, PREVIOUS):
        if (run / "checkpoints" / name).is_file():
            return run / "checkpoints" / name
    raise UserError(f"{run} has no checkpoint yet: the run stopped before it saved one")
