"""The identity of weights: equal for a copy of them, another one for other answers."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.command import CLASSES, saved
from vit.errors import UserError
from vit.weights import identity as module
from vit.weights.identity import identity
from vit.weights.weight_file import find_weights, open_weights


def edit(folder: Path, name: str, value: Any) -> None:
    """Sets a field of config.json, as a person does."""
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), name: value}))


CHANGES: dict[str, Callable[[Path], object]] = {
    "weights": lambda folder: saved(folder, seed=1),
    "classes": lambda folder: edit(folder, "classes", CLASSES[::-1]),
    "preprocess": lambda folder: edit(folder, "preprocess", {"image_size": [24, 24]}),
    "temperature": lambda folder: saved(folder, extra={"temperature": 1.5}),
    "thresholds": lambda folder: saved(folder, extra={"multilabel": True, "thresholds": [0.3] * 3}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_answers_otherwise_has_another_identity(change: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "a")
    before = identity(folder)
    assert len(before) == 16 and identity(str(folder / "model.safetensors")) == before
    assert identity(shutil.copytree(folder, tmp_path / "copy")) == before
    CHANGES[change](folder)
    assert identity(folder) != before
    saved(folder, extra={"recipe": {"note": "another"}})
    assert identity(folder) == before, "what no answer depends on"


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_file_of_others_is_known_by_its_bytes(suffix: str, tmp_path: Path) -> None:
    tensors = load_file(saved(tmp_path / "a") / "model.safetensors")
    file = tmp_path / "b" / f"weights{suffix}"
    file.parent.mkdir()
    write = torch.save if suffix == ".pth" else save_file
    write(tensors, file)
    before = identity(file)
    assert identity(shutil.copytree(file.parent, tmp_path / "c") / file.name) == before
    tensors["head.bias"][0] += 1
    write(tensors, file)
    assert identity(file) != before
    after = identity(file)
    (file.parent / "config.json").write_text('{"label_names": ["a", "b", "c"]}')
    assert identity(file) != after, "the description beside it names classes and preprocessing"


def test_an_address_is_known_by_its_local_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path / "a")
    monkeypatch.setattr(module, "locate", lambda address: (folder, None))
    before = identity("hf://somebody/model")
    assert before == identity(folder)
    saved(folder, seed=1)
    assert identity("hf://somebody/model") != before


def test_a_run_without_a_finished_model_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "my run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "last.ckpt").touch()
    (run / "config.yaml").touch()
    (run / "first_batch.npz").touch()  # a finished first batch, which is no model
    for reader in (identity, open_weights):
        with pytest.raises(UserError, match=r"without a finished model.* --run_dir '.*my run'"):
            reader(run)
    (run / "first_batch.npz").rename(run / "B_16.npz")  # somebody's weights beside a config.yaml
    assert find_weights(run) == run / "B_16.npz"
