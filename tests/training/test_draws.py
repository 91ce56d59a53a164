"""Order, augmentation, mixing and stochastic depth do not depend on how a step is divided."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader

from vit.data.transforms import TrainTransform
from vit.errors import UserError
from vit.extensions.recipes.randaugment import RandAugment
from vit.models.encoder import DropPath
from vit.seeds import indices_in_step
from vit.training.draws import StepDraws, set_depth
from vit.training.mixing import Mixing
from vit.training.schedules import Schedule

pytestmark = pytest.mark.filterwarnings("ignore")
RANDOM = TrainTransform(crop="inception", flip=True, policy=RandAugment(), erasing=0.25)


def draws(batch: int, rank: int = 0, world: int = 1, accumulated: int = 1, part: int = 0) -> Any:
    mine = indices_in_step(batch, rank, world, accumulated, part)
    return StepDraws(seed=5, global_batch=batch * world * accumulated, places=mine)


def divided(whole: int, draw: Any) -> list[tuple[int, int, int, int]]:
    """(batch of a process, processes, batches of a step) with an even batch."""
    batch = draw(st.sampled_from([n for n in range(2, whole + 1, 2) if whole % n == 0]))
    world = draw(
        st.sampled_from([n for n in range(1, whole // batch + 1) if whole // batch % n == 0])
    )
    return [
        (batch, rank, world, part)
        for rank in range(world)
        for part in range(whole // batch // world)
    ]


@given(st.integers(1, 20), st.data())
def test_every_place_is_taken_once_and_partners_come_together(half: int, data: Any) -> None:
    whole = 2 * half
    taken: list[int] = []
    for batch, rank, world, part in divided(whole, data.draw):
        mine = indices_in_step(batch, rank, world, whole // batch // world, part)
        taken += mine
        for j in range(batch // 2):
            assert mine[j + batch // 2] == mine[j] + half
    assert sorted(taken) == list(range(whole))


@settings(deadline=None)
@given(st.integers(1, 8), st.sampled_from([(0.0, 1.0), (0.7, 0.0), (0.3, 1.0)]), st.data())
def test_images_are_mixed_alike_however_a_step_is_divided(
    half: int, alphas: tuple[float, float], data: Any
) -> None:
    whole, mixing = 2 * half, Mixing(mixup=alphas[0], cutmix=alphas[1])
    images, labels = torch.rand(whole, 3, 6, 9), torch.arange(whole) % 5
    expected = mixing(images, labels, 5, draws(whole))
    for batch, rank, world, part in divided(whole, data.draw):
        step = draws(batch, rank, world, whole // batch // world, part)
        actual = mixing(images[step.places], labels[step.places], 5, step)
        for got, wanted in zip(actual, expected, strict=True):
            assert torch.equal(got, wanted[step.places])


@pytest.mark.parametrize("alpha", [0.1, 1.0, 5.0])
def test_weights_are_beta_distributed(alpha: float) -> None:
    drawn = draws(20_000).beta("mixup", alpha)
    assert drawn.mean().item() == pytest.approx(0.5, abs=0.02)
    assert drawn.var().item() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.05)


def test_an_odd_batch_is_refused_where_partners_would_part() -> None:
    def mixed(images: int, world: int) -> torch.Tensor:
        mix, pixels = Mixing(mixup=1.0), torch.rand(images, 3, 4, 4)
        return mix(pixels, torch.arange(images), 5, draws(images, world=world))[0]

    assert torch.isfinite(mixed(5, 1)).all() and torch.isfinite(mixed(4, 2)).all()
    with pytest.raises(UserError, match="batch_size=5 must be even, as a step of 10 images"):
        mixed(5, 2)


def test_paths_are_dropped_by_image() -> None:
    network = torch.nn.Sequential(DropPath(0.3), DropPath(0.6))
    ones = torch.ones(4000, 2, 3)
    set_depth(network, None)  # nothing has a parameter here
    network.register_parameter("p", torch.nn.Parameter(torch.zeros(())))
    set_depth(network, draws(4000))
    whole = [path(ones) for path in network]
    for kept, rate in zip(whole, (0.3, 0.6), strict=True):
        assert kept.mean().item() == pytest.approx(1, abs=0.06)
        assert (kept == 0).float().mean().item() == pytest.approx(rate, abs=0.04)
    step = draws(1000, rank=1, world=2, accumulated=2, part=1)
    set_depth(network, step)
    for path, kept in zip(network, whole, strict=True):
        assert torch.equal(path(ones[:1000]), kept[step.places])
    set_depth(network, None)
    assert not torch.equal(network[0](ones), whole[0])
    network.eval()
    assert torch.equal(network[0](ones), ones)


def test_new_draws_do_not_compile_again() -> None:
    path, compiled = DropPath(0.5), []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    run = torch.compile(path, backend=backend)
    network = torch.nn.Sequential(path, torch.nn.Linear(1, 1))
    for seed in range(4):
        set_depth(network, StepDraws(seed=seed, global_batch=8, places=list(range(8))))
        wanted = (path.draws < 0.5).float()[:, None, None] * 2  # pyright: ignore
        assert torch.equal(run(torch.ones(8, 1, 1)), wanted)
    assert len(compiled) == 1


class Seen(Callback):
    """Image indices and checksums of their pixels, step by step; weights after the first step."""

    def __init__(self) -> None:
        self.steps: dict[int, dict[int, float]] = {}
        self.first: dict[str, torch.Tensor] = {}

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        seen = self.steps.setdefault(trainer.global_step, {})
        for image, index in zip(batch[0], batch[2].tolist(), strict=True):
            seen[index] = image.double().sum().item()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
        if trainer.global_step == 1 and not self.first:
            self.first = {n: p.detach().clone() for n, p in module.named_parameters()}


def test_a_batch_of_data_that_does_not_count_is_the_whole_step(make_model, make_trainer) -> None:
    loader = DataLoader([(torch.rand(3, 8, 8), i % 3) for i in range(7)], batch_size=5)

    def run(seed: int) -> list[StepDraws]:
        model = make_model(
            init_seed=seed, architecture={"drop_path": 0.3}, mixing=Mixing(mixup=0.5, cutmix=1.0)
        )
        taken: list[StepDraws] = []
        mixing, model.mixing = (
            model.mixing,
            lambda *args: (taken.append(args[-1]), mixing(*args))[1],
        )
        make_trainer(max_epochs=1).fit(model, loader)
        return taken

    first = run(1)
    assert [draws.places for draws in first] == [[0, 1, 2, 3, 4], [0, 1]]
    assert [draws.global_batch for draws in first] == [5, 2]
    assert run(1) == first != run(2)


@pytest.mark.parametrize("stop", [None, 3])
def test_a_step_of_several_batches_is_that_of_one(
    stop: int | None, make_data, make_model, make_trainer, tmp_path: Any
) -> None:
    """Also where a run goes on with batches of another size, in the middle of an epoch."""

    def run(batch: int, seen: Seen, max_steps: int = 7, **options: Any) -> Any:
        model = make_model(
            architecture={"drop_path": 0.3},
            mixing=Mixing(mixup=0.5, cutmix=1.0),
            schedule=Schedule(decay="constant"),
            optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        )
        torch.nn.init.normal_(model.model.head.weight, generator=torch.Generator().manual_seed(0))
        trainer = make_trainer(
            max_steps=max_steps, callbacks=[seen], accumulate_grad_batches=8 // batch
        )
        trainer.fit(model, make_data(batch_size=batch, augment=RANDOM), **options)
        if max_steps < 7:
            trainer.save_checkpoint(tmp_path / "at.ckpt")
        return model

    expected = run(8, one := Seen())
    for batch in (4, 2):
        parts, options = Seen(), {}
        if stop is not None:
            run(8 if batch == 4 else 4, parts, stop)
            options = {"ckpt_path": tmp_path / "at.ckpt"}
        actual = run(batch, parts, **options)
        assert parts.steps == one.steps
        if stop is None:
            for name, value in one.first.items():
                error = (parts.first[name] - value).norm() / value.norm().clamp(min=1e-3)
                assert error <= 1e-6, name
        for name, value in expected.state_dict().items():
            torch.testing.assert_close(actual.state_dict()[name], value, rtol=1e-4, atol=1e-5)
