"""Linear probing before fine-tuning: the fit, and its place in a run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from tests.grouped import tuned
from vit.errors import UserError
from vit.extensions.recipes.ema import EMA
from vit.logistic import FOLDS, fit_head
from vit.training.callbacks.linear_probe import LinearProbe
from vit.training.losses import balanced_weights
from vit.weights.native import save_native

Make = Callable[..., Any]


@pytest.fixture(scope="module")
def blobs() -> tuple[Tensor, Tensor]:
    """120 points of 4 overlapping classes in 6 dimensions."""
    random = np.random.default_rng(0)
    labels = np.arange(120) % 4
    points = random.normal(size=(4, 6))[labels] + random.normal(size=(120, 6))
    return torch.from_numpy(points), torch.from_numpy(labels)


def test_the_head_undoes_the_standardisation(blobs: tuple[Tensor, Tensor]) -> None:
    z, labels = blobs
    head = fit_head(z, labels, 4)
    moved = fit_head(z * 100 + 7, labels, 4)
    answers, expected = (z * 100 + 7) @ moved.weight.T + moved.bias, z @ head.weight.T + head.bias
    torch.testing.assert_close(answers, expected, atol=1e-4, rtol=1e-4)
    right = float((expected.argmax(1) == labels).double().mean())
    assert 0.4 < head.accuracy(labels) <= right  # images left out of the fit are not easier


def test_class_weights_and_held_out_answers_are_those_of_scikit_learn(
    blobs: tuple[Tensor, Tensor],
) -> None:
    z, labels = blobs[0], blobs[1].clamp(min=1) - 1  # one class twice as frequent
    z = (z - z.mean(0)) / (z.std(0, correction=0) + 1e-5)
    weights = balanced_weights(labels.bincount().tolist()).double()

    def sklearns(rows: Tensor) -> LogisticRegression:
        c = 1 / (2 * 0.01 * int(rows.sum()))  # its penalty is half a squared norm, per image
        peer = LogisticRegression(C=c, tol=1e-10, class_weight=dict(enumerate(weights.tolist())))
        return peer.fit(z[rows].numpy(), labels[rows].numpy())

    head = fit_head(z, labels, 3, [0.01], weights)
    peer = sklearns(torch.ones(len(z), dtype=torch.bool))
    expected = torch.from_numpy(peer.predict_log_proba(z.numpy()))
    ours = (z @ head.weight.T + head.bias).log_softmax(1)
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)
    fold = torch.zeros(len(z), dtype=torch.bool)
    fold[torch.randperm(len(z), generator=torch.Generator().manual_seed(0))[::FOLDS]] = True
    assert head.held_out is not None
    expected = torch.from_numpy(sklearns(~fold).predict_log_proba(z[fold].numpy()))
    torch.testing.assert_close(head.held_out[fold].log_softmax(1), expected, atol=1e-4, rtol=1e-4)


def test_two_images_are_enough(blobs: tuple[Tensor, Tensor]) -> None:
    head = fit_head(blobs[0][:2], blobs[1][:2], 4)
    assert head.weight.isfinite().all()
    assert head.held_out is None


@pytest.fixture
def backbone(save_weights: Make) -> str:
    return save_weights("xy")


def test_the_run_starts_from_the_fitted_head(
    make_data: Make, make_trainer: Make, backbone: str, capsys: Any
) -> None:
    model, data = tuned(backbone), make_data()
    trainer = make_trainer(max_steps=0, callbacks=[LinearProbe()])
    trainer.fit(model, datamodule=data)
    assert "fitted to the features of 44 images" in capsys.readouterr().err
    images, labels = zip(*[batch[:2] for batch in data.evaluation_loader("train")], strict=True)
    with torch.inference_mode():
        images = data.preprocess.normalize(torch.cat(images))
        features = model.model.eval().pool(model.model.features(images)).double()
    head = fit_head(features, torch.cat(labels), 3)
    torch.testing.assert_close(model.model.head.weight, head.weight.float())
    torch.testing.assert_close(model.model.head.bias, head.bias.float())


def test_averaging_starts_from_it_too(make_data: Make, make_trainer: Make, backbone: str) -> None:
    plain = tuned(backbone)
    make_trainer(max_steps=0, callbacks=[LinearProbe()]).fit(plain, datamodule=make_data())
    model = tuned(backbone, optimizer=lambda params: torch.optim.SGD(params, lr=1e-12))
    trainer = make_trainer(max_steps=1, callbacks=[EMA(0.9), LinearProbe()])
    trainer.fit(model, datamodule=make_data())
    torch.testing.assert_close(model.model.head.weight, plain.model.head.weight)


def test_max_images_limits_the_fit(
    make_data: Make,
    make_trainer: Make,
    backbone: str,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vit.training.callbacks.linear_probe.MAX_IMAGES", 20)
    trainer = make_trainer(max_steps=0, callbacks=[LinearProbe()])
    trainer.fit(tuned(backbone), datamodule=make_data())
    assert "features of 20 images" in capsys.readouterr().err


def test_features_that_are_not_finite_end_the_run(
    make_data: Make, make_trainer: Make, backbone: str
) -> None:
    model = tuned(backbone)
    torch.nn.init.constant_(next(iter(model.model.parameters())), torch.nan)
    trainer = make_trainer(max_steps=0, callbacks=[LinearProbe()])
    with pytest.raises(UserError, match="features of train are not finite numbers"):
        trainer.fit(model, datamodule=make_data())


def test_random_weights_and_given_heads_are_left_alone(
    make_model: Make, make_data: Make, make_trainer: Make, tmp_path: Path
) -> None:
    random = make_model()
    make_trainer(max_steps=0, callbacks=[LinearProbe()]).fit(random, datamodule=make_data())
    assert not random.model.head.weight.any()
    torch.nn.init.ones_(random.model.head.weight)
    save_native(tmp_path / "own", random.model, classes=list("abc"), preprocess=None, extra={})
    same = tuned(str(tmp_path / "own"))
    make_trainer(max_steps=0, callbacks=[LinearProbe()]).fit(same, datamodule=make_data())
    assert (same.model.get_parameter("head.weight") == 1).all()
