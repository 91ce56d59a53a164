"""What test_stopping.py starts: pairs of processes, in which one gets a signal at a chosen place,
or fails there (the signal 0).

Arguments: STOPPED or LOST, folder of photos, folder to write to, seconds to wait for a pair. Prints
a list of [place, rank, signal, exit statuses, step of last.ckpt, last lines on stderr] as JSON.
"""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback

from tests.training import ddp_run
from vit.cli.main import _status
from vit.data.transforms import TrainTransform
from vit.errors import UserError
from vit.runs.processes import ChildrenAlive, ending_together
from vit.signals import handled
from vit.training.callbacks import StopTogether
from vit.training.saving import LastCheckpoint

STOPPED = [
    ("on_before_backward", 0, signal.SIGTERM),
    ("on_before_backward", 1, signal.SIGINT),
    ("setup", 1, signal.SIGTERM),
    ("on_validation_batch_start", 0, signal.SIGTERM),
    ("on_train_epoch_end", 1, signal.SIGTERM),
    ("on_test_batch_start", 1, signal.SIGTERM),
    ("nowhere", 0, signal.SIGTERM),
]
LOST = [
    ("on_train_batch_start", 1, signal.SIGKILL),
    ("on_validation_batch_start", 1, signal.SIGKILL),
    ("on_save_checkpoint", 0, signal.SIGKILL),
    ("on_test_batch_start", 1, signal.SIGKILL),
    ("on_train_batch_start", 1, 0),
]


class SignalAt(Callback):
    """Sends a signal to its own process, once, in a hook."""

    def __init__(self, place: str, number: int) -> None:
        self.place, self.number = place, number

    def __getattribute__(self, name: str) -> Any:
        if name == object.__getattribute__(self, "place"):
            object.__setattr__(self, "place", "")
            if not self.number:
                raise UserError("b/3.png cannot be read")
            os.kill(os.getpid(), self.number)
        return super().__getattribute__(name)


def work(rank: int, place: str, target: int, number: int, photos: str, folder: str) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    os.makedirs(folder, exist_ok=True)
    sys.stderr = open(f"{folder}/{rank}.err", "w", buffering=1)
    data = ddp_run.make_data(photos, TrainTransform(crop="none", flip=False), 4)
    callbacks: list[Callback] = [StopTogether(), LastCheckpoint(folder)]
    if rank == target:
        callbacks.insert(0, SignalAt(place, number))
    options: dict[str, Any] = {"callbacks": callbacks, "enable_checkpointing": True}
    trainer = ddp_run.make_trainer(2, max_epochs=2, **options)
    model = ddp_run.make_model()
    try:
        with handled(), ending_together(trainer, ChildrenAlive()):  # as vit/runs/fit.py does
            trainer.fit(model, data)
            trainer.test(model, datamodule=data, verbose=False)
    except Exception as error:
        sys.exit(_status(error))


def pair(photos: str, folder: Path, seconds: float, case: Any) -> list[Any]:
    place, target, number = case
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ.update(
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]),
            WORLD_SIZE="2", NODE_RANK="0",
        )  # fmt: skip
    processes = [
        multiprocessing.get_context("fork").Process(
            target=work, args=(rank, place, target, int(number), photos, str(folder))
        )
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    end = time.monotonic() + seconds
    for process in processes:
        process.join(max(end - time.monotonic(), 0.1))
        if process.is_alive():
            process.kill()
    last = folder / "last.ckpt"
    step = torch.load(last, weights_only=True)["global_step"] if last.is_file() else None
    errors = [(folder / f"{rank}.err").read_text().splitlines()[-1:] for rank in range(2)]
    statuses = [process.exitcode for process in processes]
    return [place, target, int(number), statuses, step, ["".join(lines) for lines in errors]]


def outcomes(kind: str, photos: Path, folder: Path, seconds: float) -> list[Any]:
    """What `pair` finds in each case of that kind, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.stop_run", kind, str(photos), str(folder),
         str(seconds)],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    cases = {"STOPPED": STOPPED, "LOST": LOST}[sys.argv[1]]
    photos, out, seconds = sys.argv[2], Path(sys.argv[3]), float(sys.argv[4])
    print(json.dumps([pair(photos, out / str(i), seconds, c) for i, c in enumerate(cases)]))
