"""Boxes of CutMix have the shape of the image."""

import torch

from vit.training.mixing import Mixing


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
