"""AIM's attentive probe against attention as PyTorch and the paper's code write it."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from vit.extensions.evaluation import attentive
from vit.extensions.evaluation.attentive import RATES, AttentiveProbe, attentive_accuracy
from vit.extensions.evaluation.probe import probe_accuracy


@pytest.mark.parametrize("training", [True, False])
def test_the_probe_is_cross_attention_on_normalised_patches(training: bool) -> None:
    """As apple/ml-aim, layers.py: queries, keys W_k x, values W_v x, no output projection."""
    torch.manual_seed(0)
    probe = AttentiveProbe(12, 5, num_heads=3).double().train(training)
    probe.norm.running_mean.normal_()  # pyright: ignore
    x = 3 + 2 * torch.randn(4, 7, 12, dtype=torch.float64)
    norm: Any = nn.BatchNorm1d(12, eps=1e-6, affine=False, momentum=None).double().train(training)
    norm.load_state_dict(probe.norm.state_dict())
    attention = nn.MultiheadAttention(12, 3, bias=False, batch_first=True).double()
    with torch.no_grad():
        eye = torch.eye(12, dtype=torch.float64)
        weights = torch.cat([eye, probe.key.weight, probe.value.weight])
        attention.in_proj_weight.copy_(weights)
        attention.out_proj.weight.copy_(eye)
        scaled = norm(x.transpose(1, 2)).transpose(1, 2)
        found, _ = attention(probe.query.expand(4, 1, -1), scaled, scaled)
        torch.testing.assert_close(probe(x), probe.head(found[:, 0]))
    torch.testing.assert_close(probe.norm.running_var, norm.running_var)


def found_by_one_patch(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The class is in one patch, at a place of its own in each image; its mark is constant. The
    mean of the patches hides it under the noise of the others."""
    draws = np.random.default_rng(seed)
    labels, places = draws.integers(0, 3, count), draws.integers(0, 16, count)
    patches = 2 * draws.normal(size=(count, 16, 8))
    patches[:, :, 7] = 0
    patches[np.arange(count), places] = 4 * np.eye(8)[labels] + 4 * np.eye(8)[7]
    return patches.astype(np.float16), labels


def test_a_patch_that_stands_out_is_found_and_its_mean_is_not() -> None:
    train, val, test = (found_by_one_patch(count, i) for i, count in enumerate((400, 100, 200)))
    result = attentive_accuracy(train, test, 3, 2, val=val, epochs=60)
    assert list(result.sweep) == list(RATES)
    assert result.sweep[result.chosen] == max(result.sweep.values())
    means: Any = [(patches.astype(float).mean(1), y) for patches, y in (train, test, val)]
    assert result.accuracy > probe_accuracy(*means[:2], 3, val=means[2], num_c=4).accuracy


def test_the_fit_is_that_of_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """AdamW, a cosine to 0, a new order in each epoch; answers by the mean statistics."""
    monkeypatch.setattr(attentive, "RATES", (3e-3,))
    monkeypatch.setattr(attentive, "BATCH", 16)
    (x, y), (queries, truth) = found_by_one_patch(50, 0), found_by_one_patch(200, 1)
    found = attentive_accuracy((x, y), (queries, truth), 3, 2, epochs=6)
    patches, labels = torch.from_numpy(x).float(), torch.from_numpy(y)
    torch.manual_seed(0)
    probe = AttentiveProbe(8, 3, num_heads=2)
    optimizer = torch.optim.AdamW(probe.parameters(), lr=3e-3, weight_decay=0.1)
    mean, var, step = torch.zeros(8), torch.zeros(8), 0
    for _ in range(6):
        order = torch.randperm(50)
        for rows in order.split(16):
            optimizer.param_groups[0]["lr"] = 3e-3 * (1 + np.cos(np.pi * step / 24)) / 2
            flat = patches[rows].flatten(0, 1)
            mean, var, step = mean + flat.mean(0) / 24, var + flat.var(0) / 24, step + 1
            optimizer.zero_grad()
            nn.functional.cross_entropy(probe.train()(patches[rows]), labels[rows]).backward()
            optimizer.step()
    torch.testing.assert_close(probe.norm.running_mean, mean)
    torch.testing.assert_close(probe.norm.running_var, var)
    answers = probe.eval()(torch.from_numpy(queries).float()).argmax(1).numpy()
    assert found.accuracy == pytest.approx((answers == truth).mean())


def test_the_scale_of_the_features_is_nothing_also_to_few_images() -> None:
    """Twenty steps, in which a moving average would keep an eighth of its start."""
    draws = np.random.default_rng(0)
    labels = draws.integers(0, 3, 400)
    patches = draws.normal(size=(400, 16, 8)) + 2 * np.eye(8)[labels][:, None]
    patches = patches.astype(np.float32)
    train, test = (patches[:100], labels[:100]), (patches[100:], labels[100:])
    results = [
        attentive_accuracy((scale * train[0], train[1]), (scale * test[0], test[1]), 3, 2)
        for scale in (np.float32(1), np.float32(1 / 64))
    ]
    assert results[0].accuracy == pytest.approx(results[1].accuracy, abs=0.02)
    assert results[0].accuracy > 0.45  # 0.33 by chance
