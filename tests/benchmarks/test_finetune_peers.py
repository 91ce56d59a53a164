"""Fine-tuning by other packages takes the steps of `vit fit`, and its start is not counted."""

import pytest
import torch
from torch import nn

from benchmarks.papers.few_images import peers as benchmark

SECONDS = 0.5  # of CPU that a step takes by the test's clock


class Clock:
    """CPU time that passes only when a step is taken, in place of the module `time`."""

    def __init__(self) -> None:
        self.now = 100.0

    def process_time(self) -> float:
        return self.now


def test_as_many_steps_as_fit_are_taken_and_start_up_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(benchmark, "time", clock)
    asked = []

    def train(steps: int) -> str:
        weight = nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        clock.now += 30  # start-up
        for _ in range(steps):
            clock.now += SECONDS
            optimizer.step()
        clock.now += 7  # saving, validation
        asked.append(steps)
        return f"after {steps}"

    trained, steps, spent = benchmark.train_within(20.0, train)
    assert asked == [benchmark.TRIAL_STEPS, 40]
    assert (trained, steps) == ("after 40", 40)
    assert spent == pytest.approx(20.0)
