"""Whether `vit fit` starts a run or continues one, and from which checkpoint."""

import shlex
import sys
from pathlib import Path
from typing import Any

from vit.checkpoints.sealed import BEST, LAST, PREVIOUS
from vit.cli.recorded_config import LIMITS, differences
from vit.cli.resuming import read_checkpoint
from vit.cli.run_directory import (
    CONFIG,
    has_checkpoint,
    holds_run,
    is_finished,
    newest_file,
)
from vit.console import is_first_process
from vit.errors import UserError, some_of
from vit.locking import FileLock, Locked
from vit.yaml_reader import read_options

_SHOWN = 5
"""Differing options in a message."""


class Finished(Exception):
    """The run in `folder` is finished, and the command asks for nothing more."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.folder = folder


def settle(cli: Any) -> None:
    """Sets `ckpt_path` where --resume, or --run_dir with an unfinished run, asks to continue.

    Raises:
        Finished: The run has ended, and the limits are those it ended with.
        UserError: The run in --run_dir has another configuration.
    """
    config = cli.config
    if config.resume not in ("auto", "never"):
        _name_checkpoint(config)
    if config.ckpt_path is not None or config.resume == "never" or config.run_dir is None:
        return
    folder = Path(config.run_dir).expanduser()
    finished = is_finished(folder)
    if not finished and not has_checkpoint(folder):
        return
    before = _config_of(folder)
    if not before:
        return
    # What nobody has set, this machine would choose; the run has its choice.
    precision = (before.get("trainer") or {}).get("precision")
    config.trainer.precision = config.trainer.precision or precision
    differing = differences(cli.parser, config, before)
    if refused := [text for name, text in differing.items() if name not in LIMITS]:
        state = "a finished" if finished else "an unfinished"
        raise UserError(
            f"run_dir={config.run_dir} already holds {state} run of another configuration: "
            f"{some_of(refused, _SHOWN, '; ')}. Give the options of that run, or choose another "
            "--run_dir"
        )
    if finished and not differing:
        raise Finished(folder)
    if has_checkpoint(folder):
        config.ckpt_path = "last"


def _name_checkpoint(config: Any) -> None:
    """Turns --resume PATH into --ckpt_path."""
    place, config.resume = config.resume, "auto"
    if config.ckpt_path is not None:
        raise UserError(f"--resume {place} and --ckpt_path {config.ckpt_path}: give one of them")
    folder = Path(place).expanduser()
    config.ckpt_path = place
    if folder.is_dir():
        config.ckpt_path, config.run_dir = str(newest_file(folder)), config.run_dir or place


def whole_checkpoint(checkpoint: Path, *, newest: bool) -> tuple[Path, dict[str, Any]]:
    """An undamaged checkpoint, and its content without the tensors' values.

    With `newest`: last.ckpt, previous.ckpt or best.ckpt of that folder, the first one without
    damage, which is reported. UserError where there is none.
    """
    if not newest:
        try:
            return checkpoint, read_checkpoint(checkpoint)
        except UserError as error:
            raise UserError(
                f"{error}; --ckpt_path last, with --run_dir, takes the newest undamaged checkpoint"
            ) from error
    places = [checkpoint.with_name(name) for name in (LAST, PREVIOUS, BEST)]
    places, faults = [place for place in places if place.is_file()], []
    for place in places:
        try:
            saved = read_checkpoint(place)
        except UserError as error:
            faults.append(str(error))
            continue
        if is_first_process():
            for fault in faults:
                print(f"note: {fault}", file=sys.stderr)
            if faults:
                step = saved["global_step"]
                print(f"note: continuing from {place.name}, step {step}", file=sys.stderr)
        return place, saved
    raise UserError(f"{'; '.join(faults)}; no other checkpoint is there: start a new run")


def note_unfinished(cli: Any, folders: list[Path]) -> None:
    """Prints a line where one of the runs could be continued instead of starting another."""
    for other in reversed(folders):
        before = _config_of(other)
        if not before or not has_checkpoint(other) or is_finished(other) or _is_in_use(other):
            continue
        precision = (before.get("trainer") or {}).get("precision")
        config = cli.config.clone()
        config.trainer.precision = config.trainer.precision or precision
        if not differences(cli.parser, config, before):
            print(
                f"note: {other} is an unfinished run of this configuration; "
                f"vit fit --run_dir {shlex.quote(str(other))} continues it",
                file=sys.stderr,
            )
            return


def _config_of(folder: Path) -> dict[str, Any]:
    """The configuration of a run; empty where there is none."""
    if not holds_run(folder):
        return {}
    try:
        return read_options(folder / CONFIG)
    except UserError:
        return {}


def _is_in_use(folder: Path) -> bool:
    try:
        with FileLock(folder / ".lock"):
            return False
    except (Locked, OSError):
        return True
