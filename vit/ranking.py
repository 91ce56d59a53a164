"""The most probable classes of each image, with deterministic ties."""

from torch import Tensor


def top_classes(scores: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """The `top` largest scores of each row `n k` and their classes, both `n t`, largest first.

    Ties, which are common in bfloat16, go to the first classes; `torch.topk` takes any.
    """
    values, classes = scores.sort(dim=-1, descending=True, stable=True)
    return values[..., :top], classes[..., :top]
