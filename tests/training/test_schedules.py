import pytest
import torch

from vit.errors import UserError
from vit.training.schedules import Schedule


@pytest.mark.parametrize("decay", ["cosine", "linear", "constant", "rsqrt"])
def test_warmup_rises_linearly_to_one(decay: str) -> None:
    schedule = Schedule(decay=decay, warmup_steps=4)  # pyright: ignore[reportArgumentType]
    factors = [schedule.factor(step, 100) for step in range(5)]
    assert factors == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_warmup_starts_at_the_given_share() -> None:
    # big_vision and vit_jax: min(1, step / warmup_steps)
    google = Schedule(decay="constant", warmup_steps=4, warmup_start=0.0)
    assert [google.factor(step, 100) for step in range(6)] == [0, 0.25, 0.5, 0.75, 1, 1]
    assert Schedule(warmup_steps=4, warmup_start=0.3).factor(0, 100) == 0.3


def test_warmup_in_epochs_is_that_many_steps() -> None:
    epochs, steps = Schedule(warmup_epochs=1.5), Schedule(warmup_steps=15)
    assert epochs.needs_epochs and not steps.needs_epochs
    for step in range(40):
        assert epochs.factor(step, 40, 10) == steps.factor(step, 40)


def test_deits_schedule_is_timms() -> None:
    timm = pytest.importorskip("timm.scheduler")
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1e-3)
    options = {"lr_min": 1e-5, "warmup_t": 5, "warmup_lr_init": 1e-6}
    scheduler = timm.CosineLRScheduler(optimizer, t_initial=30, **options)
    ours = Schedule(
        warmup_epochs=5, warmup_start=1e-3, warmup_counts=True, final_factor=0.01, per_epoch=True
    )
    for epoch in range(30):
        scheduler.step(epoch)
        rate = optimizer.param_groups[0]["lr"]
        for step in range(7 * epoch, 7 * epoch + 7):
            assert 1e-3 * ours.factor(step, 30 * 7, 7) == pytest.approx(rate)


@pytest.mark.parametrize("decay", ["constant", "rsqrt"])
def test_cooldown_falls_linearly_over_the_last_steps_and_leaves_those_before(decay: str) -> None:
    plain = Schedule(decay=decay, warmup_steps=20)  # pyright: ignore[reportArgumentType]
    cooled = Schedule(
        decay=decay,  # pyright: ignore[reportArgumentType]
        warmup_steps=20,
        cooldown_steps=25,
    )
    for total in (30, 120):  # of 30 steps, the first 5 alone are not of the cooldown
        for step in range(total + 1):
            expected = plain.factor(step, None) * min((total - step) / 25, 1)
            assert cooled.factor(step, total) == pytest.approx(expected)
    assert cooled.factor(95, 120) == plain.factor(95, 95) == plain.factor(95, 1000)
    assert cooled.factor(500, 120) == 0 and cooled.factor(110, None) == plain.factor(110, None)


def test_the_decay_waits_until_the_steps_are_known() -> None:
    schedule = Schedule(decay="linear")
    assert schedule.factor(50, 100) == pytest.approx(0.5)
    assert schedule.factor(50, None) == 1
    assert schedule.factor(200, 100) == 0
    short = Schedule(warmup_steps=1000)  # at most half of a step budget
    assert short.factor(5, 10) == 1.0 and short.factor(5, None) == pytest.approx(6 / 1001)


@pytest.mark.parametrize("epoch", [1, 7])
def test_drops_per_epoch_are_those_of_torch(epoch: int) -> None:
    """A drop at an epoch's start counts for that epoch."""
    schedule = Schedule(decay="steps", drops=(0.3, 0.6, 0.9), per_epoch=True)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    reference = torch.optim.lr_scheduler.MultiStepLR(optimizer, [27, 54, 81])
    for number in range(90):
        for step in range(number * epoch, (number + 1) * epoch):
            factor = schedule.factor(step, 90 * epoch, epoch)
            assert factor == pytest.approx(reference.get_last_lr()[0])
        optimizer.step()
        reference.step()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"warmup_steps": -1}, "warmup_steps=-1"),
        ({"warmup_steps": None}, "warmup_steps=None"),
        ({"final_factor": 2.0}, r"final_factor=2\.0"),
        ({"warmup_epochs": 1, "warmup_steps": 1}, "exclude each other"),
        ({"decay": "steps"}, "decay=steps needs drops"),
        ({"decay": "steps", "drops": (0.6, 1.5)}, r"drops=1\.5"),
        ({"drops": (0.5,)}, r"drops=\(0\.5,\) has no effect"),
        ({"decay": "constant", "warmup_counts": True}, "warmup_counts=True"),
        ({"cooldown_steps": 2}, "cooldown_steps=2 has no effect on cosine decay; it is for decay="),
        ({"decay": "constant", "cooldown_steps": 0}, "cooldown_steps=0 must be at least 1"),
        ({"decay": "rsqrt", "final_factor": 0.2}, r"final_factor=0\.2"),
        ({"rsqrt_steps": 0}, "rsqrt_steps=0"),
    ],
)
def test_mistakes_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Schedule(**options)  # pyright: ignore[reportArgumentType]
