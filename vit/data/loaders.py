"""The processes that read images: how many, and how they start and end."""

import atexit
import signal
from collections.abc import Sequence
from functools import partial
from multiprocessing import active_children
from typing import Any

from torch.utils.data import DataLoader

from vit.data.dataset import ImageDataset, Sample, collate
from vit.hardware import available_cores
from vit.preprocessing import Size
from vit.signals import HANDLED, end_at_once

MAX_WORKERS = 8
"""More rarely pay: each takes memory, and a GPU is fed by eight cores or by none."""


def choose_num_workers(dataset: ImageDataset, processes: int) -> int:
    """Workers for each of `processes` training processes on this machine.

    0 if batches are cut from memory: that is faster than to send them between processes.
    """
    return 0 if dataset.planes is not None else min(available_cores() // processes, MAX_WORKERS)


def make_loader(
    dataset: ImageDataset,
    image_size: Size,
    channels: int | None = None,
    *,
    num_workers: int,
    pin_memory: bool,
    persistent: bool = False,
    **sampling: Any,
) -> DataLoader[Sample | None]:
    """Batches of `vit.data.dataset.collate`; `sampling` are DataLoader's sampler arguments."""
    return DataLoader(
        dataset,
        num_workers=num_workers,
        collate_fn=partial(collate, image_size=image_size, channels=channels),
        pin_memory=pin_memory,
        persistent_workers=persistent and num_workers > 0,
        worker_init_fn=start_worker,
        **sampling,
    )


def share_of(shown: Sequence[int], rank: int, world_size: int, size: int) -> dict[str, Any]:
    """DataLoader's sampler arguments for a process's share of the images `shown`."""
    mine = shown[rank::world_size]
    starts = range(0, max(-(-len(shown) // world_size), 1), size)  # of the first process
    if len(mine) > starts[-1]:
        return {"sampler": mine, "batch_size": size}
    # As many batches as the others, the last one empty: Lightning would skip the loop of a
    # process without any, and shards of a network are gathered batch by batch.
    return {"batch_sampler": [[*mine[start : start + size]] for start in starts]}


def start_worker(worker: int) -> None:
    """Sets the signal handlers of a worker process.

    Ctrl-C reaches all processes of a terminal, and a scheduler's signals all of a job; the main
    process needs the workers until its step is done, and then ends them itself.
    """
    for number in HANDLED:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_at_second)


def _end_at_second(*_: object) -> None:
    """The main process sends SIGTERM twice to a worker that does not stop."""
    signal.signal(signal.SIGTERM, lambda *_: end_at_once(0))


@atexit.register
def _end_workers() -> None:
    """Ends workers after an error; multiprocessing would wait for them."""
    workers = [child for child in active_children() if child.daemon]
    for worker in workers:
        worker.terminate()
    for worker in workers:
        while worker.is_alive():
            worker.terminate()
            worker.join(0.1)
