"""Reading of many items in order, by worker processes."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from vit.data.decode import ImageError, NamedBytes
from vit.data.loaders import MAX_WORKERS, start_worker
from vit.errors import printable
from vit.hardware import available_cores


def range_loader(
    read: Callable[[range], Any],
    total: int,
    size: int,
    *,
    start: int = 0,
    num_workers: int | None = None,
) -> DataLoader[Any]:
    """Batches `read(range)` over `size` positions at a time, in order, from `start` to `total`.

    `num_workers` processes read, by default one per core; none for one batch, which waits for
    nothing. The state of torch's generator stays as it is.
    """
    ranges: Any = [range(i, min(i + size, total)) for i in range(start, total, size)]
    if num_workers is None:
        num_workers = min(available_cores(), MAX_WORKERS, len(ranges)) if len(ranges) > 1 else 0
    return DataLoader(
        ranges,
        batch_size=None,
        num_workers=num_workers,
        collate_fn=read,  # pyright: ignore[reportArgumentType]
        worker_init_fn=start_worker,
        generator=torch.Generator(),
    )


def reading_problem(source: str | NamedBytes, error: ImageError | MemoryError) -> str:
    """Text of an error of opening a file, without the file's name."""
    if isinstance(error, MemoryError):
        return "not enough memory to open it"
    name = source.name if isinstance(source, NamedBytes) else source
    return str(error).removeprefix(f"{printable(name)}: ")
