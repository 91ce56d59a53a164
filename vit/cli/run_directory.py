"""Which directory a run writes to, and which checkpoint it continues."""

import os
from pathlib import Path

from vit.errors import UserError


def is_first_process() -> bool:
    """Whether this process writes files; the launchers name the others by their rank."""
    ranks = (os.environ.get(name, "0") for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"))
    return all(rank == "0" for rank in ranks)


def run_name(recipe: str | None, root: str | None, dataset: str | None) -> str:
    """The recipe's name, or the folder's where a recipe has no data of its own."""
    if root is not None and dataset is None:
        path = Path(root).expanduser().resolve()
        return (path.name if path.is_dir() else path.stem) or "run"
    if recipe is not None:
        return Path(recipe).stem if Path(recipe).is_file() else recipe.replace("/", "_")
    return dataset or "run"


def new_run_dir(wanted: str | None, name: str) -> Path:
    """A directory that holds no run yet: `wanted` as it stands, else runs/NAME, runs/NAME-2, ...

    Only the first process decides; the others, which may start later, get its choice by broadcast.
    """
    if not is_first_process():
        return Path(wanted or "runs").expanduser()
    if wanted is not None:
        folder = Path(wanted).expanduser()
        if (folder / "config.yaml").exists():
            raise UserError(
                f"run_dir={wanted} already holds a run: add --ckpt_path last to continue it, or "
                "choose another --run_dir"
            )
        return folder
    path, number = Path("runs") / name, 1
    while (path / "config.yaml").exists():
        number += 1
        path = Path("runs") / f"{name}-{number}"
    return path


def resumed(ckpt_path: str, run_dir: str | None) -> tuple[Path, Path]:
    """(checkpoint, run directory) of the run to continue."""
    if ckpt_path == "last":
        if run_dir is None:
            raise UserError("--ckpt_path last needs --run_dir, the run to continue")
        checkpoint = Path(run_dir).expanduser() / "checkpoints" / "last.ckpt"
    else:
        checkpoint = Path(ckpt_path).expanduser()
    if not checkpoint.is_file():
        raise UserError(f"no checkpoint at {checkpoint}; a run keeps them in RUN/checkpoints/")
    if checkpoint.suffix != ".ckpt":
        raise UserError(
            f"--ckpt_path continues a run from its .ckpt file, not from {checkpoint.name}; weights "
            "to start from go to --model.pretrained"
        )
    inside = checkpoint.resolve().parent
    home = inside.parent if inside.name == "checkpoints" else inside
    return checkpoint, Path(run_dir).expanduser() if run_dir is not None else home


def find_checkpoint(run: Path) -> Path:
    """The best checkpoint of a run directory, or its last."""
    for name in ("best.ckpt", "last.ckpt"):
        if (run / "checkpoints" / name).is_file():
            return run / "checkpoints" / name
    raise UserError(f"{run} has no checkpoint yet: the run stopped before it saved one")


def writable(folder: Path, option: str) -> Path:
    """The folder, made if need be. UserError where it cannot be written; `option` asked for it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{option} {folder}: cannot make this folder: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{option} {folder}: this folder cannot be written to; choose another")
    return folder
