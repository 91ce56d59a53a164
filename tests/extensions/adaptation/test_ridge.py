"""Rows near those of the names: the closed form against the problem that it solves."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vit.extensions.adaptation.ridge import STRENGTHS, TEMPERATURES, ridge_towards

CLASSES, WIDTH = 3, 12


def drawn(each: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(each)
    rows = F.normalize(torch.randn(CLASSES, WIDTH, generator=generator, dtype=torch.float64), dim=1)
    labels = torch.arange(CLASSES).repeat_interleave(each)
    noise = torch.randn(len(labels), WIDTH, generator=generator, dtype=torch.float64)
    return F.normalize(rows[labels] + 0.7 * noise, dim=1), labels, rows


def solved(x: Tensor, y: Tensor, rows: Tensor, factor: float, strength: float) -> Tensor:
    """Weight and bias, `k (d + 1)`, by the normal equations of the residual of the rows."""
    ones = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], dim=1)
    penalty = strength * torch.eye(x.shape[1] + 1, dtype=x.dtype)
    penalty[-1, -1] = 0
    rest = y - factor * x @ rows.T
    moved = torch.linalg.solve(ones.T @ ones + penalty, ones.T @ rest).T
    return moved + factor * F.pad(rows, (0, 1))


@pytest.mark.parametrize("each", [1, 4])
@pytest.mark.parametrize("strength", [0.1, 10.0])
def test_left_out_scores_are_those_of_fits_without_the_image(each: int, strength: float) -> None:
    x, labels, rows = drawn(each)
    head = ridge_towards(x, labels, rows, strength)
    targets = F.one_hot(labels, CLASSES).double()

    def left_out(factor: float) -> Tensor:
        scores = []
        for i in range(len(x)):
            rest = torch.arange(len(x)) != i
            fit = solved(x[rest], targets[rest], rows, factor, strength)
            scores.append(fit[:, :-1] @ x[i] + fit[:, -1])
        return torch.stack(scores)

    zero, one = left_out(0.0), left_out(1.0)  # linear in the factor
    apart, of_rows = targets - zero, one - zero
    factor = max(float((apart * of_rows).sum() / of_rows.square().sum()), 0.0)
    scores = zero + factor * of_rows
    t = min(TEMPERATURES, key=lambda t: float(F.cross_entropy(scores / t, labels)))
    torch.testing.assert_close(head.held_out, scores / t)
    fit = solved(x, targets, rows, factor, strength)
    torch.testing.assert_close(head.weight, fit[:, :-1] / t)
    torch.testing.assert_close(head.bias, fit[:, -1] / t)


def test_the_strength_has_the_least_loss_of_left_out_images() -> None:
    x, labels, rows = drawn(6)
    losses = {s: ridge_towards(x, labels, rows, s).loss for s in STRENGTHS}
    chosen = ridge_towards(x, labels, rows)
    assert chosen.loss == min(losses.values()) == losses[chosen.strength]
    assert max(losses.values()) > 1.05 * chosen.loss


def test_a_strong_ridge_is_the_names_and_a_weak_one_the_photos() -> None:
    x, labels, rows = drawn(20)
    strong, weak = (ridge_towards(x, labels, rows, s).weight for s in (1e6, 1e-6))
    cosine = F.cosine_similarity(strong, rows, dim=1)
    assert cosine.min() > 0.999 and F.cosine_similarity(weak, rows, dim=1).min() < 0.99
