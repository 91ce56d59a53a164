"""Rows of new classes beside those that weights know."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from tests.training.callbacks.test_linear_probe import blobs
from vit.extensions.adaptation.known_classes import extend_head
from vit.logistic import STRENGTHS, fit_head, set_head

__all__ = ["blobs"]


@pytest.mark.parametrize("several", [False, True])
def test_rows_of_new_classes_are_the_minimum_beside_rows_that_stay(
    blobs: tuple[Tensor, Tensor], several: bool
) -> None:
    """By scipy, on the loss written plainly in numpy."""
    x, labels = blobs
    layer = torch.nn.Linear(6, 4).double()
    torch.nn.init.zeros_(layer.weight)
    answers = torch.nn.functional.one_hot(labels).double()
    head = extend_head(layer, [2, 0], x, answers if several else labels, [0.01], None)
    assert torch.equal(head.weight[[0, 2]], layer.weight[[0, 2]])
    assert torch.equal(head.bias[[0, 2]], layer.bias[[0, 2]])
    z = ((x - x.mean(0)) / (x.std(0, correction=0) + 1e-5)).numpy()
    y, scores = answers.numpy(), np.tile(layer.bias.detach().numpy(), (120, 1))

    def loss(flat: np.ndarray) -> float:
        rows = flat.reshape(2, 7)
        scores[:, [1, 3]] = z @ rows[:, :6].T + rows[:, 6]
        each = np.logaddexp(0, scores) if several else np.log(np.exp(scores).sum(1, keepdims=True))
        total = each.sum() - (y * scores).sum()
        return total / 120 + 0.01 * (rows[:, :6] ** 2).sum()

    best = minimize(loss, np.zeros(14), options={"gtol": 1e-7})
    loss(best.x)
    ours = (x @ head.weight.T + head.bias).detach().numpy()
    assert ours == pytest.approx(scores, abs=2e-3)


def test_left_out_images_choose_between_old_rows_and_new_ones(blobs: tuple[Tensor, Tensor]) -> None:
    x, labels = blobs
    whole, layer = fit_head(x, labels, 4), torch.nn.Linear(6, 4).double()
    for known, better in (([0, 1], True), ([1, 0], False)):  # the second time under wrong names
        set_head(layer, whole.weight[[*known, 2, 3]], whole.bias[[*known, 2, 3]])
        longer = extend_head(layer, [0, 1], x, labels, STRENGTHS, None)
        assert (longer.loss <= whole.loss) == better
