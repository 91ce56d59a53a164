"""Division of the images of an optimizer step among processes and batches."""

from typing import Literal

from vit.errors import UserError

BatchSize = int | Literal["auto"] | None
"""data.batch_size: auto is the largest that fits, which `vit fit` chooses before the first step."""

DEFAULT_BATCH = 64
"""Images in a batch of one process by default."""


def batches_per_epoch(num_samples: int, global_batch: int, ratio: float = 0.0) -> int:
    """Full global batches in an epoch, at least one; `ratio` as of `labelled_part`."""
    return max(1, num_samples // labelled_part(global_batch, ratio))


def labelled_part(global_batch: int, ratio: float) -> int:
    """Labelled images of a global batch with `ratio` others for each: at least one of both."""
    part = min(round(global_batch / (1 + ratio)), global_batch - 1) if ratio else global_batch
    return max(1, part)


def asked_sizes(batch_size: BatchSize, global_batch: int | None) -> tuple[int | None, int]:
    """`batch_size` if it is a number or None, and images in a batch of a single process. UserError
    for auto, or a size below 1."""
    if batch_size == "auto":
        raise UserError("batch_size=auto is chosen by `vit fit`; give a number of images")
    for name, number in (("batch_size", batch_size), ("global_batch", global_batch)):
        if number is not None and number < 1:
            raise UserError(f"{name}={number} must be at least 1")
    return batch_size, batch_size or global_batch or DEFAULT_BATCH


def divided(whole: int, own_batch: int | None, processes: int, accumulated: int) -> tuple[int, int]:
    """(images in a batch of one process, batches of each process in a step).

    Args:
        whole: Images of a step (data.global_batch).
        own_batch: Images in a batch of one process (data.batch_size), or None.
        processes: Number of processes that train together.
        accumulated: Batches of each process in a step (trainer.accumulate_grad_batches).

    Raises UserError for a remainder.
    """
    if own_batch is None:
        per_step = processes * accumulated
        if whole % per_step:
            near = max(whole // per_step, 1) * per_step
            rule = f"a multiple of {per_step} (processes x accumulate_grad_batches), such as {near}"
            raise UserError(f"global_batch={whole} must be {rule}")
        return whole // per_step, accumulated
    needed, rest = divmod(whole, own_batch * processes)
    if rest or accumulated not in (1, needed):
        raise UserError(
            f"global_batch={whole} contradicts batch_size={own_batch} on {processes} processes and "
            f"accumulate_grad_batches={accumulated}; leave out the latter two, and they follow"
        )
    return own_batch, needed
