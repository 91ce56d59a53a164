"""A function of one's own is the whole loss, and excludes the other options."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.training.test_losses import LABELS, LOGITS, SOFT
from vit.errors import UserError
from vit.extensions.adaptation.distillation import Distillation
from vit.training.losses import Loss


@pytest.mark.parametrize(
    ("function", "targets"),
    [(F.multi_margin_loss, LABELS), (nn.MultiMarginLoss(), LABELS), (nn.CrossEntropyLoss(), SOFT)],
)
def test_a_function_is_the_whole_loss(function: Any, targets: torch.Tensor) -> None:
    for several in (False, True):
        loss = Loss(function=function).for_labels(multilabel=several)
        assert torch.equal(loss(LOGITS, targets), function(LOGITS, targets))
    half = LOGITS.bfloat16()
    assert torch.equal(loss(half, targets), function(half.float(), targets))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "bce"}, "--model.loss.kind auto"),
        ({"label_smoothing": 0.1}, "--model.loss.label_smoothing 0"),
        ({"class_weights": {"cat": 2.0}}, "--model.loss.class_weights none"),
        ({"teacher": Distillation("x")}, "--model.loss.teacher null"),
        ({"function": nn.Linear(4, 4)}, "Linear has parameters to train"),
    ],
)
def test_mistakes_with_a_function_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Loss(**{"function": F.multi_margin_loss, **options}).for_labels(multilabel=False)
