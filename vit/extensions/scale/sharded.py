"""Checkpoints of sharded models: a folder to which every process writes its rows of the tensors.

By torch.distributed.checkpoint, in its layout of safetensors: its usual one has a pickle, which no
command but a resume could read. `shard-*.safetensors` have the rows that a process holds of each
DTensor; `rest.pt` has everything else, with tensors of the meta device in place of DTensors.
"""
# pyright: reportPrivateImportUsage=false

import json
import shutil
import warnings
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, empty
from torch.futures import Future
from typing_extensions import override

from vit.errors import UserError
from vit.weights.archives import DIGESTS, digest_of
from vit.weights.sealed import write_torch
from vit.writing import beside, put, write_json

REST = "rest.pt"
FILE_BYTES = 1 << 30
"""Of a shard's file: torch copies what goes into one file before it writes."""
TRAINING_ONLY = ("optimizer_states", "current_model_state")
"""Entries of a checkpoint that scoring does not need."""


def save_sharded(checkpoint: dict[str, object], path: Path) -> None:
    """Writes a checkpoint with DTensors as a folder; every process calls it.

    The first process gives the folder its name when all have written, so that it is there whole
    or not at all. OSError, in every process, if one of them cannot write.
    """
    shards: dict[str, DTensor] = {}

    def kept(name: str, tensor: Tensor) -> Tensor:
        if isinstance(tensor, DTensor):
            shards[name] = tensor
            tensor = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        return tensor

    rest = _mapped(checkpoint, kept)
    agreed = [beside(path)]
    dist.broadcast_object_list(agreed)
    writer = _Writer(str(agreed[0]), _files(shards), save_distributed=True)
    writer.target, writer.rest = path, rest
    try:
        dcp.save(shards, storage_writer=writer)
    except BaseException as error:
        if dist.get_rank() == 0:
            shutil.rmtree(agreed[0], ignore_errors=True)
        if not isinstance(error, dcp.CheckpointException):
            raise
        reason = next(iter(error.failures.values()))[0]  # that of one process
        if isinstance(reason, OSError):
            reason = OSError(reason.errno, reason.strerror, str(path))
        raise reason from error


def read_sharded(
    path: Path, device: str = "cpu", *, like: nn.Module | None = None, training: bool = True
) -> dict[str, Any]:
    """The checkpoint in a folder that is whole; any number of processes.

    `like`: if it is sharded, each process reads its rows of the tensors, otherwise all. `training`:
    False leaves out TRAINING_ONLY. `device`: "meta" leaves out the values of tensors.
    """
    rest = torch.load(path / REST, map_location=device, weights_only=True)
    if not training:
        rest = {name: value for name, value in rest.items() if name not in TRAINING_ONLY}
    if device == "meta":
        return rest
    parameters = () if like is None else like.parameters()
    part: Any = next((p for p in parameters if isinstance(p, DTensor)), None)
    shards: dict[str, Tensor] = {}

    def room(name: str, tensor: Tensor) -> Tensor:
        if tensor.is_meta and part is None:
            tensor = shards[name] = torch.empty_like(tensor, device=device)
        elif tensor.is_meta:
            where = {"device_mesh": part.device_mesh, "placements": part.placements}
            tensor = shards[name] = empty(tensor.shape, dtype=tensor.dtype, **where)
        return tensor

    content = _mapped(rest, room)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a process reads alone is meant
        reader = dcp.HuggingFaceStorageReader(str(path))
        dcp.load(shards, storage_reader=reader, no_dist=part is None)
    return content


def read_folder(
    path: Path, device: str, *, like: nn.Module | None, training: bool
) -> dict[str, Any] | None:
    """Row of the table `folders`: `read_sharded`, for a folder that `save_sharded` wrote."""
    if not any((path / name).is_file() for name in (DIGESTS, REST)):
        return None
    _check_folder(path)
    return read_sharded(path, device, like=like, training=training)


def _check_folder(path: Path) -> None:
    name = DIGESTS
    try:
        digests: dict[str, str] = json.loads((path / DIGESTS).read_bytes())
        names = {file.name for file in path.glob("[!.]*")} - {DIGESTS}
        for name in sorted(digests.keys() | names):
            if digest_of(path / name) != digests.get(name):
                raise ValueError("it has changed since it was saved")
    except (OSError, ValueError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path / name} is damaged or incomplete ({reason})") from error


class _Writer(dcp.HuggingFaceStorageWriter):
    """Writes to a temporary folder; the first process completes it and gives it its name."""

    target: Path
    rest: dict[str, object]

    @override
    def write_data(self, plan: Any, planner: Any) -> Future[Any]:
        """Writes a process's part; the results are pairs of file name and SHA-256."""
        written = super().write_data(plan, planner).wait()
        files = {result.storage_data.relative_path for result in written}
        digests: Future[Any] = Future()
        digests.set_result([(name, digest_of(Path(self.path) / name)) for name in sorted(files)])
        return digests

    @override
    def finish(self, metadata: Any, results: list[Any]) -> None:
        """Completes the folder in the first process, when all have written; an error is raised in
        all."""
        folder = Path(self.path)
        write_torch(folder / REST, self.rest)
        digests = dict(sorted(pair for pairs in results for pair in pairs))
        write_json(folder / DIGESTS, {**digests, REST: digest_of(folder / REST)})
        put(folder, self.target)


def _files(shards: dict[str, DTensor]) -> dict[str, int]:
    """Number, from 1, of the file for each tensor; the same in all processes."""
    sizes = (tensor.numel() * tensor.element_size() for tensor in shards.values())
    number = dist.get_world_size()
    ends = accumulate(size // number for size in sizes)
    return {name: 1 + end // FILE_BYTES for name, end in zip(shards, ends, strict=True)}


def _mapped(tree: object, change: Callable[[str, Tensor], Tensor], name: str = "") -> Any:
    """Dicts, lists and tuples in each other with changed tensors, named as paths are."""
    if isinstance(tree, Tensor):
        return change(name, tree)
    if isinstance(tree, dict):
        return {key: _mapped(value, change, f"{name}/{key}") for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_mapped(value, change, f"{name}/{i}") for i, value in enumerate(tree))
    return tree
