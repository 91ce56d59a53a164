"""Scores of masked patch prediction against NumPy."""

import numpy as np
import pytest
import torch

from vit.extensions.pretraining.patch_metrics import PatchMetrics


@pytest.mark.parametrize("answers", [1, 4])
def test_colours_are_scored_as_by_hand(answers: int) -> None:
    random = np.random.default_rng(0)
    metrics = PatchMetrics(answers, 512)
    metrics.reset()
    labels, right, losses = [], [], []
    for batch in (3, 5):
        targets = random.integers(0, 6, (batch, 7, answers))
        logits = random.normal(size=(batch, 7, answers, 512))
        loss = random.uniform()
        metrics.update(
            torch.from_numpy(logits).flatten(2),
            torch.from_numpy(targets),
            torch.tensor(loss),
            batch,
        )
        labels.append(targets)
        right.append(logits.argmax(-1) == targets)
        losses += [loss] * batch
    scores = metrics.compute()
    flat = np.concatenate(labels).reshape(-1, answers)
    shares = np.stack([np.bincount(column, minlength=512) / len(flat) for column in flat.T])
    held = np.where(shares > 0, shares, 1)
    assert scores["loss"].item() == pytest.approx(np.mean(losses))
    assert scores["acc1"].item() == pytest.approx(np.concatenate(right).mean())
    assert scores["constant_loss"].item() == pytest.approx(-(held * np.log(held)).sum(1).mean())
    assert scores["constant_acc1"].item() == pytest.approx(shares.max(1).mean())
    assert int(metrics.images.compute()) == 8


def test_pixels_are_compared_with_their_variance() -> None:
    metrics = PatchMetrics(6, 0)
    metrics.reset()
    targets = torch.randn(4, 5, 6, dtype=torch.float64) + 100
    for part in targets.split(2):
        metrics.update(part, part, torch.tensor(0.5), 2)
    scores = metrics.compute()
    variance = targets.flatten(0, 1).numpy().var(0).mean()
    assert set(scores) == {"loss", "constant_loss"}
    assert scores["constant_loss"].item() == pytest.approx(variance, rel=1e-9)
