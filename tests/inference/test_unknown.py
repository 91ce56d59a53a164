"""The energy that tells how unlike known classes an image is, against NumPy and SciPy."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from vit.inference.unknown import energy, outside

RANDOM = np.random.default_rng(0)


def test_the_energy_is_that_of_the_papers() -> None:
    logits = RANDOM.normal(size=(20, 6))
    tensor = torch.from_numpy(logits)
    np.testing.assert_allclose(energy(tensor).numpy(), -logsumexp(logits, axis=1), rtol=1e-5)
    joint = -np.log1p(np.exp(logits)).sum(1)
    np.testing.assert_allclose(energy(tensor, multilabel=True).numpy(), joint, rtol=1e-5)


@pytest.mark.parametrize("factor", [1 - 1e-6, 1 + 1e-6])
def test_energies_that_were_rounded_otherwise_have_the_same_answers(factor: float) -> None:
    usual = torch.from_numpy(RANDOM.normal(size=40)).sort().values
    for share in (0.1, 0.5, 0.9):
        assert torch.equal(outside(usual, usual, share), outside(factor * usual, usual, share))


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_of_images_like_val_the_share_is_inside(share: float) -> None:
    energies = energy(torch.from_numpy(RANDOM.normal(size=(20_000, 3))))
    val, fresh = energies[:1_999].sort().values, energies[1_999:]
    assert int(outside(val, val, share).sum()) == 1_999 - round(2_000 * share)
    assert abs(float(outside(fresh, val, share).double().mean()) - (1 - share)) < 0.03
    assert outside(torch.zeros(9), val, share).all()  # logits of which none is large
