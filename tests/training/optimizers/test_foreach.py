import pytest
import torch

from tests.training.optimizers.test_groups import groups_of, vit
from vit.training.optimizers import LAMB, SGDW, MuonWithAdamW


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


def test_parameters_without_gradients_are_left_alone() -> None:
    moved, left = (torch.nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    moved.grad = torch.ones(2, 2)
    optimizer = SGDW([moved, left], lr=0.1)
    optimizer.step()
    assert torch.equal(left, torch.ones(2, 2)) and list(optimizer.state) == [moved]
    assert torch.equal(moved, torch.full((2, 2), 0.9))
