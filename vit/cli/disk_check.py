"""Whether a run's checkpoints fit on the disk, asked before training."""

import shutil
from pathlib import Path
from typing import Any

from vit.checkpoints.sealed import BEST, LAST, PREVIOUS
from vit.errors import UserError

_GB = 1e9


def check_space(model: Any, run_dir: Path, *, averaged: bool, scored: bool) -> None:
    """UserError where the disk has less free space than the run will need.

    That is the checkpoints that are kept, the next one, which is written before it replaces any,
    and model/.

    Args:
        model: The module that is trained.
        run_dir: Where it goes.
        averaged: Whether checkpoints have an average of the weights, too.
        scored: Whether the best checkpoint is kept.
    """
    weights = _bytes(model.state_dict().values())
    learned = _bytes(p for p in model.parameters() if p.requires_grad)
    size = weights * (1 + averaged) + learned * states_per_weight(model)
    names = [LAST, PREVIOUS, *([BEST] if scored else [])]
    there = sum(_size(run_dir / "checkpoints" / name) for name in names)
    needed = (len(names) + 1) * size + weights - there
    place = next(folder for folder in (run_dir, *run_dir.absolute().parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise UserError(
            f"the disk of {run_dir} has {free / _GB:,.3f} GB free, and this run needs "
            f"{needed / _GB:,.3f}: {len(names) + 1} checkpoints of {size / _GB:,.3f} GB and the "
            "model; free some space, or choose another --run_dir"
        )


def states_per_weight(model: Any) -> int:
    """Numbers that the optimizer keeps for each weight of a matrix."""
    import torch

    from vit.training.optimizers.groups import param_groups

    weight = torch.nn.Parameter(torch.zeros(4, 4))
    optimizer = model.optimizer(param_groups([("blocks.0.mlp.fc1.weight", weight)], depth=1))
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    states = optimizer.state[weight].values()
    return sum(torch.is_tensor(state) and state.shape == weight.shape for state in states)


def _bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0
