"""Alternating models: order, sharing and errors of `vit bench`."""

from typing import Any

import pytest
import torch

from tests.compute.conftest import shallow_candidate
from vit.compute import bench as module
from vit.compute.bench import bench, suggestion
from vit.compute.steps import inference, training
from vit.console import Meter
from vit.errors import UserError

QUICK: dict[str, Any] = {"device": "cpu", "batch_size": (1,), "precision": ("fp32",), "rounds": 2}


@pytest.fixture(autouse=True)
def _shallow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's name is the side of its images."""
    find = lambda name, size: shallow_candidate("vit_ti16", (int(name), int(name)))  # noqa: E731
    monkeypatch.setattr(module, "find_model", find)


def test_models_take_turns_and_the_first_round_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(Meter, "show", lambda self, name: shown.append(name))
    first, second = bench(["32", "64"], train=True, **QUICK)
    turns = [line for line in shown if "32 px" in line or "64 px" in line]
    assert [line.split(":")[0] for line in turns] == [
        turn for turn in ("warming up", "round 1/2", "round 2/2") for _ in range(2)
    ]
    assert [line.split(" at ")[1][:5] for line in turns] == 3 * ["32x32", "64x64"]
    assert all(row["rounds"] == 2 for report in (first, second) for row in report["rows"])


def test_a_model_that_is_named_twice_is_measured_twice() -> None:
    first, second = bench(["32", "32"], **QUICK)
    assert first["rows"] != second["rows"]


def test_steps_update_the_weights_and_leave_no_gradient() -> None:
    network = shallow_candidate("vit_ti16", (32, 32)).build()
    images = torch.randn(2, 3, 32, 32)
    before: Any = inference(network, images)()
    training(network, "fp32", torch.optim.SGD(network.parameters(), lr=0.1))(images)
    assert network.training and all(p.grad is None for p in network.parameters())
    assert not torch.equal(before, network.eval()(images))


def test_inference_runs_in_the_dtype_of_the_weights() -> None:
    network = shallow_candidate("vit_ti16", (32, 32)).build()
    for dtype in (torch.float32, torch.bfloat16):
        answer: Any = inference(network.to(dtype), torch.randn(1, 3, 32, 32))()
        assert answer.dtype == dtype


def test_too_little_memory_names_the_batch_and_other_errors_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors = {"CUDA out of memory": UserError, "shapes do not match": RuntimeError}
    for text, kind in errors.items():

        def fail(*arguments: object, text: str = text, **options: object) -> None:
            raise RuntimeError(text)

        monkeypatch.setattr(module, "in_turns", fail)
        with pytest.raises(kind, match="--batch-size 1" if kind is UserError else "shapes"):
            bench(["32"], **QUICK)


def test_the_smallest_batch_that_is_nearly_as_fast_is_suggested() -> None:
    rates = {("fp32", 1): 50.0, ("bf16", 1): 60.0, ("bf16", 8): 96.0, ("bf16", 32): 100.0}
    rows = [
        {"precision": precision, "compile": None, "batch_size": n, "images_per_second": rate}
        for (precision, n), rate in rates.items()
    ]
    assert suggestion(rows) == rows[2]
