"""Who reads the images: how many processes, and what each does first."""

import os
import signal
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from vit.data.dataset import ImageDataset, collate

MAX_WORKERS = 8
"""More rarely pay: each takes memory, and a GPU is fed by eight cores or by none."""


def choose_num_workers(dataset: ImageDataset, processes: int) -> int:
    """Workers for each of `processes` training processes on this machine; never above its cores.

    None where batches are cut from memory: that is faster than to send them between processes.
    """
    return 0 if dataset.in_batches else min(available_cores() // processes, MAX_WORKERS)


def available_cores() -> int:
    """Cores this process may use, which a job scheduler may limit."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows do not know it
        return os.cpu_count() or 1


def make_loader(
    dataset: ImageDataset,
    *,
    num_workers: int,
    image_size: tuple[int, int],
    pin_memory: bool,
    persistent: bool = False,
    **sampling: Any,
) -> DataLoader[Any]:
    """Batches of `vit.data.dataset.collate`; `sampling` are DataLoader's sampler arguments."""
    return DataLoader(
        dataset,
        num_workers=num_workers,
        collate_fn=partial(collate, image_size=image_size),
        pin_memory=pin_memory,
        persistent_workers=persistent and num_workers > 0,
        worker_init_fn=start_worker,
        **sampling,
    )


def start_worker(worker: int) -> None:
    """First thing in a worker process. (torch itself has set it to one thread.)

    Ctrl-C reaches all processes of a terminal, and a scheduler's signals all of a job; the main
    process needs the workers until it has finished its step, and then ends them in its own time,
    without a traceback of each.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGUSR1"):  # not on Windows
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_at_second)


def _end_at_second(*_: object) -> None:
    """The main process ends a worker that does not stop by a SIGTERM of its own, or by two."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
