from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight

from vit.errors import UserError
from vit.facts import Facts
from vit.training.losses import Loss, balanced_weights

LOGITS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)) * 3
LABELS = torch.tensor([0, 3, 1, 1, 2, 0])
SOFT = torch.rand(6, 4, generator=torch.Generator().manual_seed(1)).softmax(-1)
WEIGHTS = torch.tensor([0.5, 2.0, 1.0, 3.0])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("targets", "weights"), [(LABELS, None), (SOFT, None), (SOFT, WEIGHTS)])
def test_softmax_loss_is_torchs_cross_entropy(
    targets: torch.Tensor, weights: torch.Tensor | None, smoothing: float
) -> None:
    expected = F.cross_entropy(LOGITS, targets, weight=weights, label_smoothing=smoothing)
    actual = Loss(label_smoothing=smoothing)(LOGITS, targets, weights)
    torch.testing.assert_close(actual, expected)


def test_class_weights_on_labels_are_a_mean_over_images() -> None:
    terms = F.cross_entropy(LOGITS, LABELS, weight=WEIGHTS, reduction="none")
    torch.testing.assert_close(Loss()(LOGITS, LABELS, WEIGHTS), terms.mean())


@pytest.mark.parametrize("smoothing", [0.0, 0.2])  # towards 1 / k
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_sigmoid_loss_is_the_sum_over_classes(
    weights: torch.Tensor | None, smoothing: float
) -> None:
    # big_vision/utils.py, sigmoid_xent
    targets = F.one_hot(LABELS, 4) * (1 - smoothing) + smoothing / 4
    options = {"weight": weights, "reduction": "sum"}
    expected = F.binary_cross_entropy_with_logits(LOGITS, targets, **options) / 6
    actual = Loss(kind="sigmoid", label_smoothing=smoothing)(LOGITS, LABELS, weights)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_bce_is_deit_threes(weights: torch.Tensor | None) -> None:
    # deit/engine.py: targets.gt(0.0), and main.py: BCEWithLogitsLoss()
    targets = F.one_hot(LABELS, 4).float().lerp(F.one_hot(LABELS.roll(1), 4).float(), 0.3)
    expected = F.binary_cross_entropy_with_logits(LOGITS, targets.gt(0).float(), weight=weights)
    torch.testing.assert_close(Loss(kind="bce")(LOGITS, targets, weights), expected)
    plain = F.binary_cross_entropy_with_logits(LOGITS, F.one_hot(LABELS, 4).float())
    torch.testing.assert_close(Loss(kind="bce")(LOGITS, LABELS), plain)


def test_the_loss_is_in_single_or_double_precision() -> None:
    assert Loss()(LOGITS.double(), LABELS).dtype == torch.float64
    half = LOGITS.bfloat16()  # which loses digits in the sum
    torch.testing.assert_close(Loss()(half, LABELS), F.cross_entropy(half.float(), LABELS))


def test_balanced_weights_are_scikit_learns() -> None:
    counts = [5, 1, 14]
    labels = np.repeat([0, 1, 2], counts)
    expected = compute_class_weight("balanced", classes=np.array([0, 1, 2]), y=labels)
    assert balanced_weights(counts).tolist() == pytest.approx(expected.tolist())


def test_weights_by_name_follow_the_classes() -> None:
    loss = Loss(class_weights={"dog": 3.0, "cat": 0.5})
    assert loss.weights_of(Facts(classes=["cat", "dog", "hen"])).tolist() == [0.5, 3, 1]
    with pytest.raises(UserError, match="there is no class 'dog'; did you mean 'dg'"):
        loss.weights_of(Facts(classes=["cat", "dg"]))


def test_auto_follows_from_the_labels() -> None:
    assert Loss().for_labels(multilabel=True).kind == "sigmoid"
    assert Loss().for_labels(multilabel=False).kind == "softmax"
    assert Loss(kind="bce").for_labels(multilabel=True).kind == "bce"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_smoothing": 1.5}, r"label_smoothing=1\.5"),
        ({"class_weights": {"dog": 0.0}}, r"class_weights: dog=0\.0"),
        ({"kind": "bce", "label_smoothing": 0.1}, r"label_smoothing=0\.1"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Loss(**options)
