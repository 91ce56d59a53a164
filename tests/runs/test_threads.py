"""Threads of a command: a small model computes on one, in training and in evaluations alike."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vit import hardware
from vit.cli import main
from vit.models.config import ViTConfig
from vit.models.zoo import build_model
from vit.runs.trainer import limit_threads_of


def parts(device: str, batch_size: int) -> tuple[Any, Any, Any]:
    """Trainer, module of a model of 4 tokens, and data, as far as they are looked at."""
    sizes = {"image_size": 8, "patch_size": 4, "num_classes": 2}
    config = ViTConfig(**sizes, width=16, depth=1, mlp_dim=32, num_heads=2)
    return (
        SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device(device))),
        SimpleNamespace(model=build_model(config)),
        SimpleNamespace(image_size=(8, 8), batch_size=batch_size),
    )


@pytest.mark.parametrize(("device", "chosen"), [("cpu", [1]), ("meta", [])])
def test_a_small_step_takes_one_thread_of_a_cpu(
    device: str, chosen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", found.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    small = parts(device, batch_size=8)
    limit_threads_of(*small)
    assert found == chosen
    params = sum(p.numel() for p in small[1].model.parameters())
    large = int(hardware.SMALL_STEP_FLOPS / (6 * params * 4)) + 1
    limit_threads_of(*parts(device, batch_size=large))
    assert found == chosen


def test_every_command_lets_waiting_threads_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(main, "sleep_when_waiting", lambda: calls.append("asked"))
    assert main.main(["recipes"]) == 0
    assert calls == ["asked"]
