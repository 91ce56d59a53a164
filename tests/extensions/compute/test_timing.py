"""Alternating calls: order, warm-up, and statistics of their times."""

import time

import pytest

from vit.extensions.compute.timing import Times, in_turns


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
