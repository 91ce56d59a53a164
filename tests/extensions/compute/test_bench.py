"""Steps, errors and the suggestion of `vit bench`; the rounds: test_timing.py."""

from typing import Any
from unittest.mock import Mock

import pytest
import torch

from tests.extensions.compute.conftest import shallow_candidate
from vit.errors import UserError
from vit.extensions.compute import bench as module
from vit.extensions.compute import timing
from vit.extensions.compute.bench import bench, suggestion
from vit.extensions.compute.timing import inference, training

QUICK: dict[str, Any] = {"device": "cpu", "batch_size": (1,), "precision": ("fp32",), "rounds": 2}


@pytest.fixture(autouse=True)
def _shallow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's name is the side of its images."""
    find = lambda name, size: shallow_candidate("vit_ti16", (int(name), int(name)))  # noqa: E731
    monkeypatch.setattr(module, "find_model", find)


def test_steps_update_the_weights_and_leave_no_gradient() -> None:
    network = shallow_candidate("vit_ti16", (32, 32)).build()
    images = torch.randn(2, 3, 32, 32)
    before: Any = inference(network, images)()
    training(network, "fp32", torch.optim.SGD(network.parameters(), lr=0.1))(images)
    assert network.training and all(p.grad is None for p in network.parameters())
    assert not torch.equal(before, network.eval()(images))


def test_too_little_memory_names_the_batch_and_other_errors_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for text, kind in {"out of memory": UserError, "shapes do not match": RuntimeError}.items():
        monkeypatch.setattr(timing, "in_turns", Mock(side_effect=RuntimeError(text)))
        with pytest.raises(kind, match="--batch-size 1" if kind is UserError else "shapes"):
            bench(["32"], **QUICK)


def test_the_smallest_batch_that_is_nearly_as_fast_is_suggested() -> None:
    names = ("precision", "compile", "batch_size", "images_per_second")
    ways = ("fp32", None, 1, 50.0), ("bf16", None, 1, 60.0), ("bf16", None, 8, 96.0)
    rows: list[Any] = [
        dict(zip(names, way, strict=True)) for way in (*ways, ("bf16", None, 32, 100.0))
    ]
    assert suggestion(rows) == rows[2]
