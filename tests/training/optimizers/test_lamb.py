import copy

import pytest
import torch

from tests.training.optimizers.test_groups import groups_of, vit
from vit.training.optimizers.lamb import LAMB

IMAGES = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


def backward(model: torch.nn.Module) -> None:
    model.zero_grad()
    images = IMAGES.to(next(model.parameters()).dtype)
    torch.nn.functional.cross_entropy(model(images), LABELS).backward()


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, clip: float | None) -> None:
    for _ in range(5):
        backward(model)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()


def test_it_is_timms_with_the_clipping_outside() -> None:
    timm = pytest.importorskip("timm.optim")
    ours = vit(layer_scale=0.1).double()
    theirs = copy.deepcopy(ours)
    options = {"lr": 0.02, "weight_decay": 0.1, "betas": (0.8, 0.95), "eps": 1e-7}
    train(ours, LAMB(groups_of(ours), **options), clip=0.01)
    groups = [
        {k: v for k, v in g.items() if k in ("params", "weight_decay")} for g in groups_of(theirs)
    ]
    train(theirs, timm.Lamb(groups, max_grad_norm=0.01, **options), clip=None)
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-6, msg=name)


def test_the_step_of_what_decays_is_as_long_as_the_parameter() -> None:
    kernel, bias = (torch.nn.Parameter(torch.full((3, 3), 2.0)) for _ in range(2))
    optimizer = LAMB(
        [{"params": [kernel]}, {"params": [bias], "weight_decay": 0.0}], lr=0.1, weight_decay=0.5
    )
    for p in (kernel, bias):
        p.grad = torch.ones(3, 3)
    optimizer.step()
    torch.testing.assert_close(kernel, torch.full((3, 3), 2.0 - 0.1 * 2))
    torch.testing.assert_close(bias, torch.full((3, 3), 2.0 - 0.1))  # Adam's first step


def test_zeros_learn() -> None:
    head = torch.nn.Parameter(torch.zeros(2))
    head.grad = torch.ones(2)
    LAMB([head], lr=0.1, weight_decay=0.5).step()
    torch.testing.assert_close(head, torch.full((2,), -0.1))


def test_a_loaded_optimizer_steps_as_the_saved_one() -> None:
    first = vit()
    one = LAMB(groups_of(first))
    train(first, one, clip=None)
    second = copy.deepcopy(first)
    two = LAMB(groups_of(second), lr=1.0)  # the saved rates win
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for model, optimizer in ((first, one), (second, two)):
        train(model, optimizer, clip=None)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
