"""Fine-tuning by other packages: the counted time, timm's two settings, lightly-train's weights."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

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


def task(training_photos: Path, **values: Any) -> Any:
    rows = {
        split: [
            (file, label)
            for label, name in enumerate("abc")
            for file in sorted((training_photos / split / name).iterdir())
        ]
        for split in ("train", "test")
    }
    given = {"weights": "", "classes": list("abc"), "pixels": 32, "budget": 6.1, **values}
    test = benchmark.Images(rows["test"], benchmark.evaluation(given["pixels"]))
    return benchmark.Task(train=rows["train"], test=test, **given)


class Recorder(nn.Module):
    """A linear classifier that notes its optimizer's rates and how long its gradients are."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.head = nn.Linear(3, 3)
        self.clock = clock

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.clock.now += SECONDS
        return 1000 * self.head(images.mean((2, 3)))


@pytest.mark.parametrize(
    ("name", "rate", "kind"), [("timm", 0.1 * 44 / 256, "SGD"), ("timm-card", 5e-5, "AdamW")]
)
def test_rates_of_timm_rise_fall_and_end_with_the_budget(
    training_photos: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    rate: float,
    kind: str,
) -> None:
    pytest.importorskip("timm")
    clock = Clock()
    monkeypatch.setattr(benchmark, "time", clock)
    model = Recorder(clock)
    monkeypatch.setattr(benchmark, "load_timm", lambda _: model)
    rates, lengths = [], []

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        assert type(optimizer).__name__ == kind
        rates.append([group["lr"] / group.get("lr_scale", 1.0) for group in optimizer.param_groups])
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        lengths.append(math.hypot(*(float(gradient.norm()) for gradient in gradients)))

    hook = register_optimizer_step_pre_hook(note)
    try:
        trained = benchmark.PEERS[name][2](task(training_photos))
    finally:
        hook.remove()
    assert (trained.steps, trained.batch) == (12, 44)
    assert trained.train_cpu_seconds == pytest.approx(6.0)
    assert 0 <= trained.accuracy <= 100
    for step, each in enumerate(rates):
        expected = rate * ((1 + math.cos(math.pi * step * SECONDS / 6.1)) / 2 if step else 1e-4)
        assert each == pytest.approx([expected] * len(each))
    assert max(lengths) < 1.001 if name == "timm-card" else max(lengths) > 2
