import math

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR

from vit.errors import UserError
from vit.training.schedules import Schedule


def torchs(make: object, steps: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = make(optimizer)  # pyright: ignore
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_cosine_is_torchs() -> None:
    expected = torchs(lambda o: CosineAnnealingLR(o, T_max=40, eta_min=0.1), 40)
    schedule = Schedule(decay="cosine", final_factor=0.1)
    assert [schedule.factor(s, 40) for s in range(40)] == pytest.approx(expected)


def test_linear_is_torchs() -> None:
    expected = torchs(lambda o: LinearLR(o, 1.0, 0.25, total_iters=40), 40)
    schedule = Schedule(decay="linear", final_factor=0.25)
    assert [schedule.factor(s, 40) for s in range(40)] == pytest.approx(expected)


@pytest.mark.parametrize("decay", ["cosine", "linear", "constant", "rsqrt"])
def test_warmup_rises_linearly_to_one(decay: str) -> None:
    schedule = Schedule(decay=decay, warmup_steps=4)  # pyright: ignore[reportArgumentType]
    factors = [schedule.factor(step, 100) for step in range(5)]
    assert factors == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_rsqrt_is_big_visions() -> None:
    # utils.py, create_learning_rate_schedule: 1 / sqrt(1 + (step - warmup_steps) / timescale)
    schedule = Schedule(decay="rsqrt", warmup_steps=10, rsqrt_steps=300)
    for step in (10, 11, 310, 5000):
        expected = 1 / math.sqrt(1 + (step - 10) / 300)
        assert schedule.factor(step, None) == pytest.approx(expected)


@pytest.mark.parametrize("decay", ["constant", "rsqrt"])
def test_cooldown_falls_linearly_over_the_end_of_the_budget(decay: str) -> None:
    plain = Schedule(decay=decay, warmup_steps=20)  # pyright: ignore[reportArgumentType]
    cooled = Schedule(
        decay=decay,  # pyright: ignore[reportArgumentType]
        warmup_steps=20,
        cooldown_fraction=0.25,
    )
    for step in range(120):  # 100 steps after the warm-up: the last 25
        expected = plain.factor(step, 120) * min((120 - step) / 25, 1)
        assert cooled.factor(step, 120) == pytest.approx(expected)


def test_the_budget_nearer_to_its_end_decides() -> None:
    schedule = Schedule(decay="linear")
    assert schedule.factor(50, 100, time_used=0.2) == pytest.approx(0.5)
    assert schedule.factor(50, 100, time_used=0.9) == pytest.approx(0.1)
    assert schedule.factor(50, None, time_used=0.7) == pytest.approx(0.3)
    assert schedule.factor(50, None, time_used=1.5) == 0
    assert schedule.factor(200, 100) == 0


def test_warmup_takes_at_most_half_of_a_step_budget() -> None:
    schedule = Schedule(warmup_steps=1000)
    assert schedule.factor(5, 10) == 1.0
    assert schedule.factor(5, None) == pytest.approx(6 / 1001)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"warmup_steps": -1}, "warmup_steps=-1 must not be negative"),
        ({"final_factor": 2.0}, r"final_factor=2.0 is not in \[0, 1\]"),
        ({"rsqrt_steps": 0}, "rsqrt_steps=0 must be at least 1"),
        ({"cooldown_fraction": 0.2}, "cooldown_fraction=0.2 has no effect on cosine decay"),
        ({"decay": "rsqrt", "final_factor": 0.2}, "final_factor=0.2 has no effect on rsqrt decay"),
    ],
)
def test_mistakes_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Schedule(**options)  # pyright: ignore[reportArgumentType]
