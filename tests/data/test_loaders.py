import signal

import numpy as np
import pytest
import torch

from vit.data import loaders
from vit.data.dataset import ImageDataset
from vit.data.loaders import choose_num_workers, make_loader
from vit.data.sources import ImageSet, PathList


def images(size: int | None) -> ImageSet:
    names = PathList("abcd")
    items = names if size is None else np.zeros((4, size, size, 3), np.uint8)
    return ImageSet(items, np.zeros(4, np.int64), names)


@pytest.mark.parametrize(
    ("cores", "processes", "size", "expected"),
    [
        (2, 1, None, 2),
        (1, 1, None, 1),
        (64, 1, None, 8),
        (64, 16, None, 4),
        (4, 8, None, 0),
        (64, 1, 32, 0),
        (64, 1, 96, 8),
    ],
)
def test_workers_share_the_cores(cores, processes, size, expected, monkeypatch):
    monkeypatch.setattr(loaders, "available_cores", lambda: cores)
    assert choose_num_workers(images(size), processes) == expected


def test_available_cores_respects_the_scheduler():
    assert 1 <= loaders.available_cores() <= (loaders.os.cpu_count() or 1)


class Worker:
    """A transform that tells about the process it runs in."""

    def __call__(self, image: object) -> torch.Tensor:
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        return torch.tensor([torch.get_num_threads(), int(ignored)])


def test_workers_use_one_thread_and_leave_ctrl_c_to_the_main_process():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    dataset = ImageDataset(images(4), Worker())
    try:
        loader = make_loader(
            dataset, num_workers=1, image_size=(4, 4), pin_memory=False, batch_size=4
        )
        told = next(iter(loader))[0]
    finally:
        torch.set_num_threads(threads)
    assert told.unique(dim=0).tolist() == [[1, 1]]
