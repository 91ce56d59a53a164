"""The top classes of an image are those of a stable descending sort, with ties and without."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vit.ranking import top_classes


def expected(scores: torch.Tensor, top: int) -> tuple[torch.Tensor, torch.Tensor]:
    values, order = scores.sort(dim=-1, descending=True, stable=True)
    return values[:, :top], order[:, :top]


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    rows=st.integers(0, 6),
    classes=st.integers(1, 300),
    top=st.integers(1, 12),
    levels=st.sampled_from([1, 2, 3, 10, 1000]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    seed=st.integers(0, 2**16),
    holes=st.booleans(),
)
def test_top_classes_are_the_beginning_of_a_stable_sort(
    rows: int, classes: int, top: int, levels: int, dtype: torch.dtype, seed: int, holes: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = (torch.randint(levels, (rows, classes), generator=generator) / levels).to(dtype)
    if holes:
        scores[torch.rand(rows, classes, generator=generator) < 0.1] = float("-inf")
    values, order = top_classes(scores, top)
    assert torch.equal(order, expected(scores, top)[1])
    assert torch.equal(values, expected(scores, top)[0])


def test_rows_with_nan_do_not_change_others() -> None:
    scores = torch.rand(4, 50)
    scores[1, 7] = scores[2, :] = float("nan")
    assert torch.equal(top_classes(scores, 5)[1], expected(scores, 5)[1])
