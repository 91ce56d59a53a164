import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from vit.data import loaders
from vit.data.dataset import ImageDataset
from vit.data.loaders import choose_num_workers, make_loader
from vit.data.sources import ImageSet, PathList
from vit.preprocessing import Preprocess

PLAIN = Preprocess(image_size=(4, 4), crop_fraction=1.0)


def images(size: int | None) -> ImageSet:
    names = PathList("abcd")
    items = names if size is None else np.zeros((4, size, size, 3), np.uint8)
    return ImageSet(items, np.zeros(4, np.int64), names)


@pytest.mark.parametrize(
    ("cores", "processes", "expected"),
    [(2, 1, 2), (1, 1, 1), (64, 1, 8), (64, 16, 4), (4, 8, 0)],
)
def test_workers_share_the_cores(cores, processes, expected, monkeypatch):
    monkeypatch.setattr(loaders, "available_cores", lambda: cores)
    for size in (None, 32):  # in memory, too, if they are changed one by one
        assert choose_num_workers(ImageDataset(images(size), PLAIN), processes) == expected


def test_batches_cut_from_memory_need_no_workers():
    dataset = ImageDataset(images(32), PLAIN, planes=np.zeros((4, 3, 32, 32), np.uint8))
    assert choose_num_workers(dataset, 1) == 0


class Worker:
    """A transform that tells about the process it runs in."""

    channels = None

    def __call__(self, image: object) -> torch.Tensor:
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        return torch.tensor([torch.get_num_threads(), int(ignored)])


def test_workers_use_one_thread_and_leave_ctrl_c_to_the_main_process():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    dataset = ImageDataset(images(4), Worker())  # pyright: ignore
    try:
        loader = make_loader(
            dataset, num_workers=1, image_size=(4, 4), pin_memory=False, batch_size=4
        )
        seen = next(iter(loader))[0]
    finally:
        torch.set_num_threads(threads)
    assert seen.unique(dim=0).tolist() == [[1, 1]]


HOLDS_WORKERS = """
from torch.utils.data import DataLoader
from vit.data.loaders import start_worker
batches = iter(DataLoader(range(100), num_workers=2, worker_init_fn=start_worker))
next(batches)
raise ValueError("while workers wait")
"""


def test_a_process_that_fails_with_workers_ends() -> None:
    """Its traceback keeps the loader, so that nobody has told the workers to stop."""
    done = subprocess.run([sys.executable, "-c", HOLDS_WORKERS], capture_output=True, timeout=100)
    assert done.returncode == 1 and b"ValueError: while workers wait" in done.stderr
