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
        return Path(root).resolve().stem
    if recipe is not None:
        return Path(recipe).stem if Path(recipe).is_file() else recipe.replace("/", "_")
    return dataset or "run"


def new_run_dir(wanted: str | None, name: str) -> Path:
    """A directory that holds no run yet: `wanted` as it stands, else runs/NAME, runs/NAME-2, ...

    Only the first process decides; the others, which may start later, get its choice by broadcast.
    """
    if not is_first_process():
        return Path(wanted or "runs")
    if wanted is not None:
        if (Path(wanted) / "config.yaml").exists():
            raise UserError(
                f"run_dir={wanted} already holds a run: add --ckpt_path last to continue it, or "
                "choose another --run_dir"
            )
        return Path(wanted)
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
        checkpoint = Path(run_dir) / "checkpoints" / "last.ckpt"
    else:
        checkpoint = Path(ckpt_path)
    if not checkpoint.is_file():
        raise UserError(f"no checkpoint at {checkpoint}; a run keeps them in RUN/checkpoints/")
    if checkpoint.suffix != ".ckpt":
        raise UserError(
            f"--ckpt_path continues a run from its .ckpt file, not from {checkpoint.name}; weights "
            "to start from go to --model.pretrained"
        )
    inside = checkpoint.resolve().parent
    home = inside.parent if inside.name == "checkpoints" else inside
    return checkpoint, Path(run_dir) if run_dir is not None else home


def find_checkpoint(run: str) -> Path:
    """The best checkpoint of a run directory, or its last."""
    folder = Path(run) / "checkpoints"
    for name in ("best.ckpt", "last.ckpt"):
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{run} is not a run: it has no checkpoints/best.ckpt")
