"""A run that goes on: its checkpoint is compared with the configuration before anything is written.

What must be equal: task, classes, architecture, optimizer with its parameter groups, and the global
batch, on which the order of the images rests.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vit.checkpoints.sealed import verify
from vit.console import is_first_process
from vit.errors import UserError, some_of
from vit.yaml_reader import read_options

# Fields of an architecture that no weights and no outputs in evaluation depend on.
_FREE = {"dropout", "drop_path", "drop_path_uniform"}
_CLASSES_SHOWN = 3


def read_checkpoint(checkpoint: Path) -> dict[str, Any]:
    """The content of a .ckpt file without its tensors' values. UserError where it is damaged."""
    import torch

    if not verify(checkpoint) and is_first_process():
        print(
            f"note: {checkpoint} has no digest (earlier versions saved none); its tensors "
            "were checked",
            file=sys.stderr,
        )
    try:
        saved = torch.load(checkpoint, map_location="meta", weights_only=True)
        saved["global_step"] = int(saved["global_step"])
        saved["state_dict"].keys()
    except Exception as error:  # torch.load has no error type of its own for a broken file
        raise UserError(
            f"{checkpoint} is not a readable checkpoint ({type(error).__name__})"
        ) from error
    return saved


def config_beside(checkpoint: Path) -> dict[str, Any]:
    """The configuration of the run that has written the checkpoint; empty where it is not there."""
    inside = checkpoint.resolve().parent
    file = (inside.parent if inside.name == "checkpoints" else inside) / "config.yaml"
    try:
        return read_options(file)
    except UserError:
        return {}


def check_continues(checkpoint: Path, saved: dict[str, Any], cli: Any, trainer: Any) -> None:
    """UserError that names what differs between a checkpoint and the run that is to go on."""
    before = config_beside(checkpoint)
    now = cli.config.as_dict()
    differences = [
        *_task(before, now),
        *_classes(saved, cli.model),
        *_architecture(saved, cli.model),
        *_optimizer(before, now),
        *_batch(saved, cli, trainer),
    ]
    if differences:
        raise UserError(
            f"{checkpoint} does not go on with this configuration: {'; '.join(differences)}. Give "
            "the options of that run, or start a new one from its weights: --model.pretrained "
            f"{checkpoint}"
        )


def ineffective(checkpoint: Path, config: Any) -> list[str]:
    """Options of the optimizer that were changed, although the checkpoint's values go on."""
    before = _group(config_beside(checkpoint), "model", "optimizer").get("init_args") or {}
    now = _group(config.as_dict(), "model", "optimizer").get("init_args") or {}
    if not before:
        return []
    return [
        f"model.optimizer.init_args.{name}={now[name]} has no effect on a run that goes on; it "
        f"keeps {before[name]}"
        for name in now
        if name in before and not _same(before[name], now[name])
    ]


def _task(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    if before and before.get("task", "classification") != now["task"]:
        yield _differ("task", before.get("task", "classification"), now["task"])


def _classes(saved: dict[str, Any], model: Any) -> Iterator[str]:
    header = saved.get("vit") or {}
    there = header.get("classes")
    here = getattr(getattr(model, "labels", None), "names", None)
    if there is None or here is None or there == here:
        return
    if len(there) != len(here):
        yield _differ(
            "classes", *(f"{len(c)} ({some_of(c, _CLASSES_SHOWN)})" for c in (there, here))
        )
        return
    at = next(i for i, pair in enumerate(zip(there, here, strict=True)) if pair[0] != pair[1])
    yield _differ(f"class {at}", repr(there[at]), repr(here[at]))


def _architecture(saved: dict[str, Any], model: Any) -> Iterator[str]:
    there = (saved.get("vit") or {}).get("config") or {}
    here = model.model.config.to_dict()
    named = False
    for name in there.keys() | here.keys():
        # A field that one version knows and the other does not has its neutral value there.
        if name in _FREE or name not in there or name not in here or name == "num_classes":
            continue
        if not _same(there[name], here[name]):
            named = True
            yield _differ(f"model.architecture.{name}", there[name], here[name])
    shapes = {name: tuple(value.shape) for name, value in saved["state_dict"].items()}
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    if named or shapes == expected:
        return
    name = min(n for n in shapes.keys() | expected.keys() if shapes.get(n) != expected.get(n))
    yield _differ(name, _shape(shapes.get(name)), _shape(expected.get(name)))


def _shape(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else f"shape {'x'.join(map(str, shape)) or 'of a number'}"


def _optimizer(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    there, here = _group(before, "model"), _group(now, "model")
    if not there:
        return
    classes = [_group(model, "optimizer").get("class_path") for model in (there, here)]
    if classes[0] != classes[1]:
        yield _differ("model.optimizer", *(name or "the default" for name in classes))
    there, here = _group(there, "learning"), _group(here, "learning")
    for name, value in there.items():
        if not _same(value, here.get(name)):
            yield _differ(f"model.learning.{name}", value, here.get(name))


def _batch(saved: dict[str, Any], cli: Any, trainer: Any) -> Iterator[str]:
    here = cli.datamodule.batch_size * trainer.world_size * trainer.accumulate_grad_batches
    there = ((saved.get("callbacks") or {}).get("LastCheckpoint") or {}).get("global_batch")
    if there is not None and there != here:
        yield _differ("images per step (batch_size x processes x accumulation)", there, here)


def _group(config: dict[str, Any], *names: str) -> dict[str, Any]:
    """The part of a configuration under the names; empty where it is absent or no mapping."""
    part: Any = config
    for name in names:
        part = part.get(name) if isinstance(part, dict) else None
    return part if isinstance(part, dict) else {}


def _same(a: Any, b: Any) -> bool:
    as_lists = [list(value) if isinstance(value, tuple) else value for value in (a, b)]
    return as_lists[0] == as_lists[1]


def _differ(name: str, there: Any, here: Any) -> str:
    return f"{name} was {there} and is {here}"
