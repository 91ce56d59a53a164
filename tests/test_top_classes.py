"""The top classes of an image are those of a stable descending sort, with ties and without."""

import numpy as np
import pytest
import torch

from vit.confidence import top_classes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("levels", [1, 3, 10, 1000])
@pytest.mark.parametrize(("classes", "top"), [(1, 5), (7, 7), (300, 5)])
def test_top_classes_are_the_beginning_of_a_stable_sort(
    classes: int, top: int, levels: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(levels)
    scores = (torch.randint(levels, (6, classes), generator=generator) / levels).to(dtype)
    scores[torch.rand(6, classes, generator=generator) < 0.1] = float("-inf")
    values, order = top_classes(scores, top)
    expected = np.argsort(-scores.double().numpy(), axis=1, kind="stable")[:, :top]
    assert order.tolist() == expected.tolist()
    assert torch.equal(values, scores.gather(1, order))


def test_rows_with_nan_do_not_change_others() -> None:
    scores = torch.rand(4, 50)
    expected = top_classes(scores, 5)[1]
    scores[1, 7] = scores[2, :] = float("nan")
    assert torch.equal(top_classes(scores, 5)[1][[0, 3]], expected[[0, 3]])
