import copy

import torch

from tests.training.optimizers.test_groups import groups_of, vit
from tests.training.optimizers.test_lamb import train
from vit.training.optimizers.sgdw import SGDW


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


def test_groups_have_their_own_decay() -> None:
    p, q = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    p.grad, q.grad = torch.zeros(1), torch.zeros(1)
    groups = [{"params": [p]}, {"params": [q], "weight_decay": 0.0}]
    SGDW(groups, lr=0.5, weight_decay=0.5).step()
    assert (p.item(), q.item()) == (0.75, 1.0)
