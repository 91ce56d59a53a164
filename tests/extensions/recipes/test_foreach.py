"""LAMB against timm, SGDW against torch and big_vision's formula, and closures of all of ours."""

import copy

import pytest
import torch

from tests.training.optimizers.test_groups import groups_of, vit
from vit.extensions.recipes.foreach import LAMB, SGDW
from vit.training.optimizers.muon import MuonWithAdamW

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


def test_zeros_learn() -> None:
    head = torch.nn.Parameter(torch.zeros(2))
    head.grad = torch.ones(2)
    LAMB([head], lr=0.1, weight_decay=0.5).step()
    torch.testing.assert_close(head, torch.full((2,), -0.1))


def test_without_decay_it_is_torchs_sgd() -> None:
    ours = vit()
    theirs = copy.deepcopy(ours)
    train(ours, SGDW(groups_of(ours), lr=0.3, momentum=0.8), clip=1.0)
    train(theirs, torch.optim.SGD(theirs.parameters(), lr=0.3, momentum=0.8), clip=1.0)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_decay_bypasses_the_momentum() -> None:
    # big_vision: p - sched * (lr * trace(g) + wd * p), here with sched 1 and wd 0.1 * 0.5.
    p = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = SGDW([p], lr=0.1, momentum=0.9, weight_decay=0.5)
    expected, trace = 1.0, 0.0
    for grad in (1.0, 0.0, -2.0, 0.0):
        p.grad = torch.tensor([grad])
        optimizer.step()
        trace = 0.9 * trace + grad
        expected -= 0.1 * trace + 0.05 * expected
        torch.testing.assert_close(p.detach(), torch.tensor([expected]))


@pytest.mark.parametrize("kind", [LAMB, SGDW, MuonWithAdamW])
def test_a_closure_is_evaluated_with_gradients_before_the_step(kind: type) -> None:
    model = vit()
    optimizer = kind(groups_of(model), lr=0.01)
    before = [p.clone() for p in model.parameters()]

    def closure() -> torch.Tensor:
        loss = model(torch.ones(2, 3, 8, 8)).sum() + 1
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 1  # the head starts at zero
    changed = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert any(changed)
