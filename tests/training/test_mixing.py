import pytest
import torch

from vit.errors import UserError
from vit.training.mixing import Mixing


def test_several_labels_an_image_are_mixed_too() -> None:
    labels = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    images = torch.tensor([0.0, 1.0])[:, None, None, None].expand(2, 1, 4, 4).clone()
    torch.manual_seed(0)
    mixed, targets = Mixing(mixup=1.0)(images, labels, 3)
    keep = mixed[1].mean()
    torch.testing.assert_close(targets[1], keep * labels[1] + (1 - keep) * labels[0])


def test_it_is_off_by_default_and_refuses_nonsense() -> None:
    assert not Mixing()
    with pytest.raises(UserError, match=r"mixup=-1\.0 must be at least 0"):
        Mixing(mixup=-1.0)
