"""Steps, errors and the suggestion of `vit bench`; rounds, warm-up and statistics of its times."""

import time
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from tests.extensions.compute.conftest import shallow_candidate
from vit.errors import UserError
from vit.extensions.compute import bench as module
from vit.extensions.compute import timing
from vit.extensions.compute.bench import bench, suggestion
from vit.extensions.compute.timing import Times, in_turns, inference, training

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


def test_calls_take_turns_and_the_first_turn_does_not_count() -> None:
    order: list[str] = []
    calls = {name: (lambda name=name: order.append(name)) for name in "ab"}
    times = in_turns(calls, rounds=3, shortest=0.0)
    assert [len(times[name].values) for name in "ab"] == [3, 3]
    assert order == list("abababab")


def test_ratios_are_taken_round_by_round() -> None:
    ours, theirs = Times((1.0, 2.0, 4.0)), Times((2.0, 6.0, 8.0))
    assert ours.ratios(theirs) == [2.0, 3.0, 2.0] and ours.faster_than(theirs) == 2.0
    assert theirs.median == 6.0
    assert ours.spread == pytest.approx(0.75)


def test_the_device_is_waited_for_before_and_after_every_turn() -> None:
    events: list[str] = []
    calls = {"a": lambda: events.append("a")}
    in_turns(calls, rounds=2, shortest=0, finish=lambda: events.append("wait"))
    assert events == ["wait", "a", "wait"] * 3


def test_short_calls_are_repeated_within_a_turn_and_seconds_are_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def call() -> None:
        now[0] += 0.25

    times = in_turns({"a": call}, rounds=3, shortest=1.0)
    assert times["a"].values == (0.25,) * 3
    assert now[0] == 0.25 * (1 + 1 + 3 * 4)


def test_the_cpu_clock_does_not_count_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    wall, cpu = [0.0], [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: wall[0])
    monkeypatch.setattr(time, "process_time", lambda: cpu[0])

    def sleepy() -> None:
        wall[0] += 8.0
        cpu[0] += 2.0

    for clock, seconds in (("wall", 8.0), ("cpu", 2.0)):
        times = in_turns({"a": sleepy}, rounds=1, clock=clock, shortest=0)  # pyright: ignore
        assert times["a"].median == seconds
