"""A checkpoint of several processes is there whole or not at all, and damage is named."""

import os
import random
import re
import resource
import shutil
import signal
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.models.small_models import filled
from tests.processes import together
from vit.errors import UserError
from vit.extensions.scale.sharded import read_sharded, save_sharded
from vit.models.config import ViTConfig
from vit.models.zoo import build_model
from vit.tables import TABLES
from vit.weights.archives import DIGESTS, read_checkpoint
from vit.weights.native import save_native
from vit.weights.weight_file import open_weights
from vit.writing import recover, remove_orphans

pytestmark = pytest.mark.filterwarnings("ignore")
# Layers of fewer rows than processes, and a buffer that is not sharded.
TINY = ViTConfig(
    image_size=8, patch_size=4, width=8, depth=2, mlp_dim=9, num_heads=1, num_classes=3
)
CALLS = [(os, "fsync"), (os, "replace"), (os, "rename"), (shutil, "rmtree")]


def network(seed: int) -> nn.Module:
    return filled(build_model(TINY), seed)


def checkpoint(model: nn.Module) -> dict[str, Any]:
    """The entries of Lightning's checkpoint after a step of the model."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0)  # a step that rounds alike in shards
    for parameter in model.parameters():
        parameter.grad = parameter.detach() * 2
    optimizer.step()
    return {
        "state_dict": {f"model.{name}": value for name, value in model.state_dict().items()},
        "global_step": 1,
        "optimizer_states": [optimizer.state_dict()],
        "vit": {"config": TINY.to_dict(), "classes": None},
    }


def joined(seed: int) -> nn.Module:
    """The network, sharded by all processes."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    model, mesh = network(seed), init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.get_submodule("blocks").children():
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, list):
        return [tensor for part in tree for tensor in tensors(part)]
    return [tree] if isinstance(tree, Tensor) else []


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(tensors(a), tensors(b), strict=True))


def save(path: Path, seed: int) -> None:
    save_sharded(checkpoint(joined(seed)), path)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """best.ckpt of seed 0, saved by two processes over one of seed 1."""
    folder = tmp_path_factory.mktemp("old")

    def twice() -> None:
        save(folder / "best.ckpt", 1)
        save(folder / "best.ckpt", 0)

    assert together(2, folder / "log", twice) == [0, 0], (folder / "log/0.err").read_text()
    assert [path.name for path in folder.glob("*.ckpt")] == ["best.ckpt"]
    return folder / "best.ckpt"


@pytest.fixture
def best(old: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(old, tmp_path / "best.ckpt"))


def test_one_process_reads_what_two_have_written(best: Path) -> None:
    expected = checkpoint(network(0))
    found = read_checkpoint(best)
    assert found.keys() == expected.keys() and same(found, expected)
    shapes = read_checkpoint(best, "meta")
    assert [t.shape for t in tensors(shapes)] == [t.shape for t in tensors(expected)]
    assert all(t.is_meta for t in tensors(shapes))
    file = open_weights(best)
    for name, value in network(0).state_dict().items():
        assert torch.equal(file.read(name), value), name
    assert "optimizer_states" not in read_sharded(best, training=False)


def test_three_processes_continue_from_two(best: Path, tmp_path: Path) -> None:
    def resume() -> None:
        model = joined(5)
        content = read_sharded(best, like=model)
        nn.ModuleDict({"model": model}).load_state_dict(content["state_dict"])
        optimizer = torch.optim.AdamW(model.parameters())
        optimizer.load_state_dict(content["optimizer_states"][0])
        again = {**content, "optimizer_states": [optimizer.state_dict()]}
        again["state_dict"] = nn.ModuleDict({"model": model}).state_dict()
        save_sharded(again, tmp_path / "last.ckpt")

    assert together(3, tmp_path, resume) == [0, 0, 0], (tmp_path / "0.err").read_text()
    shards = [path.name for path in (tmp_path / "last.ckpt").glob("shard-*")]
    assert len(shards) == 3
    assert same(read_checkpoint(tmp_path / "last.ckpt"), checkpoint(network(0)))


def test_a_flipped_bit_a_cut_and_a_missing_file_are_named(best: Path) -> None:
    draw = random.Random(0)
    for file in sorted(best.iterdir()):
        content = file.read_bytes()
        place = draw.randrange(len(content))
        flipped = bytearray(content)
        flipped[place] ^= 1 << draw.randrange(8)
        name = ".*" if file.name == DIGESTS else file.name  # a digest is that of another file
        for damaged in (bytes(flipped), content[:-2], b"", b"{}", None):
            file.unlink()
            if damaged is not None:
                file.write_bytes(damaged)
            with pytest.raises(UserError, match=f"^{re.escape(str(best))}/{name} is damaged"):
                read_checkpoint(best)
            file.write_bytes(content)
    read_checkpoint(best)


def dying(path: Path, rank: int, count: int) -> int:
    """Saves seed 1; a process gets kill -9 before its call number `count` of CALLS.

    Returns the number of calls if there are fewer.
    """
    state, calls = checkpoint(joined(1)), 0

    def counting(function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += dist.get_rank() == rank
            if calls == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **options)

        return call

    for owner, name in CALLS:
        setattr(owner, name, counting(getattr(owner, name)))
    save_sharded(state, path)
    return calls


def test_a_kill_in_a_save_leaves_the_old_or_the_new_one(best: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(best, tmp_path / "0" / "last.ckpt"))
    calls, _ = together(2, tmp_path / "log", dying, path, 0, -1)
    before, after = read_checkpoint(best), read_checkpoint(path)
    assert same(after, checkpoint(network(1))) and calls is not None and calls > 8
    naming = [calls - 3, calls - 2, calls - 1, calls]  # rename, replace, fsync, rmtree
    drawn = random.sample(range(1, calls - 3), 2)
    found = []
    for rank, count in [(1, 1), *((0, count) for count in sorted(drawn) + naming)]:
        path = Path(shutil.copytree(best, tmp_path / f"{rank}-{count}" / "last.ckpt"))
        ends = together(2, tmp_path / "log", dying, path, rank, count)
        assert ends[rank] == -signal.SIGKILL and ends[1 - rank] == 1, (rank, count, ends)
        recover(path.parent, DIGESTS)
        remove_orphans(path.parent)
        assert os.listdir(path.parent) == ["last.ckpt"], count
        state = read_checkpoint(path)
        found.append(same(state, after))
        assert found[-1] or same(state, before), count
    assert found == [False] * 4 + [True] * 3


@pytest.mark.parametrize(("rank", "most"), [(1, 1_000), (0, 99_000)], ids=["shard", "rest"])
def test_an_error_of_one_process_is_raised_in_all_and_leaves_the_old_one(
    rank: int, most: int, best: Path, tmp_path: Path
) -> None:
    def full() -> int:
        state = {**checkpoint(joined(1)), "own": torch.zeros(99_000)}
        if dist.get_rank() == rank:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))  # as a disk that is full
        with pytest.raises(OSError, match=re.escape(f"File too large: '{best}'")):
            save_sharded(state, best)
        return 5

    assert together(2, tmp_path / "log", full) == [5, 5], (tmp_path / "log/0.err").read_text()
    assert sorted(os.listdir(tmp_path)) == ["best.ckpt", "log"]
    assert same(read_checkpoint(best), checkpoint(network(0)))


def test_a_sharded_model_is_written_as_a_whole_one_by_the_first_process(tmp_path: Path) -> None:
    about: dict[str, Any] = {"classes": ["a", "b", "c"], "preprocess": None, "extra": {}}
    together(2, tmp_path / "log", lambda: save_native(tmp_path / "two", joined(0), **about))
    save_native(tmp_path / "one", network(0), **about)
    assert len(os.listdir(tmp_path / "one")) == 2
    for file in (tmp_path / "one").iterdir():
        assert (tmp_path / "two" / file.name).read_bytes() == file.read_bytes()


def test_a_model_directory_is_written_without_a_second_copy_in_memory(tmp_path: Path) -> None:
    gathered: list[weakref.ref[np.ndarray]] = []
    most = 0

    class Sharded:
        """Stands in for a DTensor."""

        def __init__(self, tensor: Tensor) -> None:
            self.shape, self.dtype = tensor.shape, tensor.dtype
            self.numel, self.element_size = tensor.numel, tensor.element_size

        def full_tensor(self) -> Tensor:
            nonlocal most
            array = np.zeros(self.shape, dtype=np.float32)
            gathered.append(weakref.ref(array))
            most = max(most, sum(reference() is not None for reference in gathered))
            return torch.from_numpy(array)

    model: Any = network(0)
    state: Any = {name: Sharded(tensor) for name, tensor in model.state_dict().items()}
    model.state_dict = lambda: state
    save_native(tmp_path, model, classes=None, preprocess=None, extra={})
    assert len(gathered) == 2 * len(state) > 20 and most <= 2


def test_a_folder_that_no_row_reads_is_refused(best: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rows, reason in (
        ({}, "is a folder of a kind that is not read here"),
        ({"gone": "vit.gone:read"}, "vit.gone:read is not installed"),
    ):
        monkeypatch.setitem(TABLES, "folders", rows)
        for reader in (read_checkpoint, open_weights):
            with pytest.raises(UserError, match=reason):
                reader(best)
