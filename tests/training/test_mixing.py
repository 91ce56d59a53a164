import pytest
import torch

from vit.errors import UserError
from vit.training.mixing import Mixing

B, K = 5, 7
LABELS = torch.arange(B)
# Image i is i everywhere, so that its pixels say whose they are.
IMAGES = torch.arange(B, dtype=torch.float32)[:, None, None, None].expand(B, 3, 10, 8).clone()


def draws(mixing: Mixing, n: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return [mixing(IMAGES, LABELS, K) for _ in range(n)]


def own_share(images: torch.Tensor) -> float:
    """Share of pixels of image 1 that are still its own; the partner, image 0, is 0."""
    return images[1].mean().item()


@pytest.mark.parametrize(
    "options", [{"mixup": 0.8}, {"cutmix": 1.0}, {"mixup": 0.8, "cutmix": 1.0}]
)
def test_targets_are_the_shares_of_the_pixels(options: dict[str, float]) -> None:
    for images, targets in draws(Mixing(**options), 50):
        torch.testing.assert_close(targets.sum(1), torch.ones(B))
        assert targets[1, 1].item() == pytest.approx(own_share(images), abs=1e-6)
        assert targets[1, 0].item() == pytest.approx(1 - own_share(images), abs=1e-6)
        for i in range(B):  # the partner is the image before
            assert (targets[i, i] + targets[i, (i - 1) % B]).item() == pytest.approx(1)


def test_mixup_blends_all_pixels_and_cutmix_pastes_a_box() -> None:
    [(blended, _)] = draws(Mixing(mixup=5.0), 1)
    assert len(blended[1].unique()) == 1 and 0 < own_share(blended) < 1
    for pasted, _ in draws(Mixing(cutmix=1.0), 30):
        assert set(pasted[1].unique().tolist()) <= {0.0, 1.0}
        rows, columns = (pasted[1, 0] == 0).nonzero(as_tuple=True)
        if len(rows):
            box = (rows.max() - rows.min() + 1) * (columns.max() - columns.min() + 1)
            assert box == len(rows)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 8.0])
def test_mixup_weights_are_beta_distributed(alpha: float) -> None:
    weights = torch.tensor([own_share(images) for images, _ in draws(Mixing(mixup=alpha), 4000)])
    assert weights.mean().item() == pytest.approx(0.5, abs=0.03)
    variance = 1 / (4 * (2 * alpha + 1))
    assert weights.var().item() == pytest.approx(variance, rel=0.1)


def test_cutmix_boxes_have_the_shape_of_the_image() -> None:
    ratios = []
    wide = torch.zeros(2, 1, 40, 80)
    wide[1] = 1
    torch.manual_seed(0)
    for _ in range(300):
        images, _ = Mixing(cutmix=1.0)(wide, torch.tensor([0, 1]), 2)
        rows, columns = (images[1, 0] == 0).nonzero(as_tuple=True)
        if len(rows) and rows.min() > 0 and rows.max() < 39 and columns.min() > 0:
            if columns.max() < 79:  # not cut off by the border
                height, width = rows.max() - rows.min() + 1, columns.max() - columns.min() + 1
                ratios.append((width / height).item())
    assert len(ratios) > 30
    assert 1.6 < torch.tensor(ratios).median().item() < 2.6


def test_either_is_drawn_half_of_the_time() -> None:
    both = draws(Mixing(mixup=1.0, cutmix=1.0), 400)
    shares = [images[1].unique() for images, _ in both]
    blended = sum(len(share) == 1 and share.item() not in (0, 1) for share in shares)
    assert 160 < blended < 240


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
