from pathlib import Path
from typing import Any

import pytest
import torch

from vit.training.atomic_io import AtomicCheckpointIO

OLD, NEW = {"weights": torch.zeros(3)}, {"weights": torch.ones(3)}


def value(path: Path) -> float:
    return torch.load(path, weights_only=True)["weights"][0].item()


def test_it_replaces_and_makes_folders(tmp_path: Path) -> None:
    path = tmp_path / "new" / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(OLD, path)
    AtomicCheckpointIO().save_checkpoint(NEW, str(path))
    assert value(path) == 1
    assert [p.name for p in path.parent.iterdir()] == ["last.ckpt"]


@pytest.mark.parametrize("fails", ["torch.save", "os.fsync", "os.replace"])
def test_a_crash_while_saving_leaves_the_old_file(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(OLD, path)
    elsewhere = tmp_path / "tmp"
    elsewhere.mkdir()
    monkeypatch.setenv("TMPDIR", str(elsewhere))

    def crash(*args: Any, **kwargs: Any) -> None:
        if fails == "torch.save":
            args[1].write(b"PK half of a checkpoint")
            args[1].flush()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(fails, crash)
        with pytest.raises(OSError, match="No space left"):
            AtomicCheckpointIO().save_checkpoint(NEW, path)
    assert value(path) == 0
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["last.ckpt"]
    assert not list(elsewhere.iterdir())  # nothing passes through another file system


def test_the_bytes_are_on_disk_before_the_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    calls: list[str] = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr("os.fsync", lambda fd: (calls.append("sync"), sync(fd)))
    monkeypatch.setattr("os.replace", lambda a, b: (calls.append("name"), replace(a, b)))
    AtomicCheckpointIO().save_checkpoint(NEW, tmp_path / "last.ckpt")
    assert calls == ["sync", "name", "sync"]  # at last the directory, which holds the name


def test_options_of_remote_stores_are_refused_for_a_file(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="storage_options"):
        AtomicCheckpointIO().save_checkpoint(NEW, tmp_path / "a.ckpt", storage_options={"a": 1})


def test_remote_addresses_are_left_to_lightning(tmp_path: Path) -> None:
    AtomicCheckpointIO().save_checkpoint(NEW, f"file://{tmp_path}/a.ckpt")
    assert value(tmp_path / "a.ckpt") == 1


def test_a_full_disk_is_called_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch fails a second time while it closes the file, and that hides the reason."""

    def full(*_: Any) -> None:
        try:
            raise OSError(28, "No space left on device")
        finally:
            raise RuntimeError("unexpected pos 682240 vs 682192")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match=r"No space left on device: .*last\.ckpt"):
        AtomicCheckpointIO().save_checkpoint(NEW, tmp_path / "last.ckpt")
    assert not list(tmp_path.iterdir())
