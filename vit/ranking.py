"""The most probable classes of each image, with deterministic ties.

Shapes: n images, k classes, t top classes.
"""

from torch import Tensor


def top_classes(scores: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """The `top` largest scores of each row and their classes, both `n t`, largest first.

    Equal to the beginning of a stable descending sort of `scores` `n k`, but much faster for small
    t. `torch.topk` alone selects any of several equal scores, which are common in bfloat16.
    """
    if top >= scores.shape[-1]:
        return scores.sort(dim=-1, descending=True, stable=True)
    values, order = scores.topk(top)
    # Rows in which the number of scores at least `last` is not `top`: ties, or NaN.
    unclear = (scores >= values[:, -1:]).sum(-1) != top
    unclear |= values.isnan().any(-1)
    if unclear.any():
        order[unclear] = _first_of_equals(scores[unclear], values[unclear, -1:], top)
    order = order.sort(-1).values
    values, places = scores.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    return values, order.gather(-1, places)


def _first_of_equals(scores: Tensor, last: Tensor, top: int) -> Tensor:
    """Classes `n t`, ascending, of the scores above `last` and the first ones equal to it."""
    above, equal = scores > last, scores == last
    lacking = top - above.sum(-1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(-1) <= lacking))
    if scores.isnan().any():  # NaN sorts as the largest, but compares as false
        return scores.sort(dim=-1, descending=True, stable=True).indices[:, :top]
    return chosen.nonzero()[:, 1].reshape(len(scores), top)
