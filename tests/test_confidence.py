"""Temperatures against SciPy and a closed form; sets against the paper's formula in numpy."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.stats import betabinom
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from vit.confidence import carried_over, cut, fit_temperature, set_scores
from vit.errors import UserError


def answers(num: int, sharpness: float, *, several: bool = False) -> tuple[Tensor, Tensor]:
    """Logits `n 6`, and labels drawn from the probabilities of logits / sharpness."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(num, 6, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    if several:
        labels = (torch.rand(num, 6, generator=generator) < logits.sigmoid()).float()
    return sharpness * logits, labels


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("sharpness", [0.3, 1.0, 9.0])
def test_temperature_is_the_minimum_that_scipy_finds(sharpness: float, several: bool) -> None:
    logits, labels = answers(2000, sharpness, several=several)

    def loss(log_t: float) -> float:
        scores = logits.double() / np.exp(log_t)
        if several:
            return float(binary_cross_entropy_with_logits(scores, labels.double()))
        return float(cross_entropy(scores, labels))

    best = minimize_scalar(loss, bounds=(-4, 4), method="bounded", options={"xatol": 1e-9})
    found = fit_temperature(logits, labels)
    assert found == pytest.approx(np.exp(best.x), rel=1e-5)
    assert found == pytest.approx(sharpness, rel=0.1)  # the labels were drawn with it


def test_temperature_of_one_margin_states_the_share_that_is_right() -> None:
    """Logits (a, 0) with a share q of class 0: 1 / (1 + exp(-a / T)) = q."""
    logits, labels = torch.tensor([[7.0, 0.0]]).repeat(10, 1), torch.tensor([0] * 8 + [1] * 2)
    assert fit_temperature(logits, labels) == pytest.approx(7 / np.log(0.8 / 0.2), rel=1e-6)


@pytest.mark.parametrize("scale", [0.0, 1.0, 50.0])
def test_images_that_are_all_right_or_all_alike_have_no_temperature(scale: float) -> None:
    logits, _ = answers(50, scale)
    assert fit_temperature(logits, logits.argmax(1)) == 1


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_thresholds_carried_over_decide_as_before(temperature: float) -> None:
    logits = torch.linspace(-12, 12, 2401, dtype=torch.float64)
    thresholds = [0.0, 1e-4, 0.123, 0.5, 0.999, 1.0]
    carried = carried_over(thresholds, temperature)
    for before, after in zip(thresholds, carried, strict=True):
        assert ((logits / temperature).sigmoid() > after).equal(logits.sigmoid() > before)


def test_scores_are_the_papers_with_u_0() -> None:
    """E = rho + u pi + lambda (o - k_reg)+; arXiv:2009.14193, equation 4."""
    probabilities = answers(5, 1.0)[0].double().softmax(1).repeat(1, 2) / 2  # with equal ones
    expected = np.empty((5, 12))
    for row, p in enumerate(probabilities.numpy()):
        order = sorted(range(12), key=lambda y: -p[y])  # stable
        for rank, y in enumerate(order, start=1):
            expected[row, y] = sum(p[k] for k in order[: rank - 1]) + 0.01 * max(rank - 5, 0)
    np.testing.assert_allclose(set_scores(probabilities).numpy(), expected, atol=1e-12)


def test_the_cut_is_the_smallest_score_that_enough_others_are_below() -> None:
    scores = torch.arange(1.0, 20.0)  # 19 of them: the next image's is as likely in every gap
    assert cut(scores, 0.95) == 19 and cut(scores, 0.9) == 18 and cut(scores, 0.05) == 1
    assert cut(scores, 1e-12) == cut(scores, 0.05)  # the smallest, not the last
    assert cut(scores[:9], 0.9) == 9
    with pytest.raises(UserError, match=r"coverage=0.95 needs at least 19 .* measured on 18"):
        cut(scores[:18], 0.95)


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
def test_sets_hold_the_true_class_as_often_as_asked(coverage: float) -> None:
    """Of probabilities that are wrong, sharpened threefold; two of three largest are right."""
    logits, labels = answers(6000, 3.0)
    scores = set_scores(logits.softmax(1))
    of_label = scores.gather(1, labels[:, None])[:, 0]
    assert (of_label == 0).double().mean() < 0.75
    n, inside = 1000, 0
    for held_out in torch.randperm(6000, generator=torch.Generator().manual_seed(1)).split(2000):
        threshold = cut(of_label[held_out[:n]].sort().values, coverage)
        hits = int((of_label[held_out[n:]] <= threshold).sum())
        place = int(np.ceil((n + 1) * coverage))
        low, high = betabinom(n, place, n + 1 - place).interval(0.99)
        inside += low <= hits <= high
    assert inside == 3


def test_the_most_probable_class_is_always_in_the_set() -> None:
    logits, _ = answers(100, 0.5)
    assert (set_scores(logits.softmax(1)).gather(1, logits.argmax(1)[:, None]) == 0).all()
