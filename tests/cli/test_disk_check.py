import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.conftest import TINY, Vit
from vit.cli.disk_check import check_space, states_per_weight
from vit.errors import UserError

Usage = namedtuple("Usage", "total used free")
FIT = ("fit", "-c", "cifar10", *TINY, "--trainer.max_epochs=2", "--save_every=0", "--run_dir=run")


class Module(torch.nn.Linear):
    def __init__(self, optimizer: Any) -> None:
        super().__init__(1000, 250, bias=False)  # a megabyte
        self.optimizer = optimizer


OPTIMIZERS = {
    "adamw": (lambda params: torch.optim.AdamW(params, fused=True), 2),
    "amsgrad": (lambda params: torch.optim.AdamW(params, amsgrad=True), 3),
    "sgd": (lambda params: torch.optim.SGD(params, lr=0.1), 0),
    "momentum": (lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9), 1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_need_is_four_checkpoints_and_the_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer, states = OPTIMIZERS[name]
    model = Module(optimizer)
    assert states_per_weight(model) == states
    need = 4 * 1_000_000 * (2 + states) + 1_000_000
    for free in (need, need - 1):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: Usage(0, 0, free))
        if free < need:
            with pytest.raises(UserError, match=r"this run needs 0\.0\d\d: 4 checkpoints of"):
                check_space(model, tmp_path / "new", averaged=True, scored=True)
        else:
            check_space(model, tmp_path / "new", averaged=True, scored=True)


def test_what_is_foreseen_is_what_is_saved(
    vit: Vit, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = (*FIT, "--data.root", photos)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 1000))
        refused = vit(*args)
    assert refused.status == 2 and refused.err.splitlines()[-1].startswith("vit: the disk of run")
    needed = float(refused.err.split("needs ")[1].split(":")[0]) * 1e9
    done = vit(*args)
    assert done.status == 0, done.err
    sizes = [file.stat().st_size for file in Path("run/checkpoints").iterdir()]
    assert len(sizes) == 3
    # Messages round to a megabyte, and small checkpoints are mostly names.
    assert needed <= 4 * max(sizes) + 1e6
