"""Runs of several processes lose one, get a signal, change their number; a disk fills.

`python -m benchmarks.faults.chaos_processes [--steps 66] [--out FILE]`; some minutes on two cores.

Drives the installed command through torchrun on loopback (gloo), a small model on the digits, and
compares weights, losses and exit statuses with those of runs left alone. The disk is a tmpfs of
30 MB, for which the script must be root; elsewhere that part is left out. Writes JSON.
"""

import csv
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, suppress
from pathlib import Path
from typing import Any

from benchmarks.faults.chaos import SIZES, command, equal
from benchmarks.lib.harness import (
    arguments,
    document,
    publish,
)
from vit.errors import UserError
from vit.weights.archives import read_checkpoint

VIT = [sys.executable, "-m", "vit"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1"]
TORCHRUN += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
BATCH = (
    "--data.batch_size=null --data.global_batch=64 --final_split=none --trainer.log_every_n_steps=1"
)
DEADLINE = 900
"""Seconds, for a machine in use; a run that waits longer counts as hanging."""


class Launch:
    """A command in one process, or by torchrun in several."""

    def __init__(self, args: list[str], processes: int, name: str, strategy: str = "ddp") -> None:
        prefix = VIT
        if processes > 1:
            prefix = [*TORCHRUN, f"--nproc-per-node={processes}", "-m", "vit"]
            args = [*args, f"--trainer.devices={processes}", f"--trainer.strategy={strategy}"]
        self.log = Path(f"{name}.log").open("w+")
        self.process = subprocess.Popen([*prefix, *args], stdout=self.log, stderr=self.log)
        self.processes = processes

    def rank(self, number: int) -> int:
        """Process id of a rank."""
        started = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        while self.processes > 1 and self.process.poll() is None:
            for pid in map(int, started.read_text().split()):
                with suppress(OSError):  # it has ended
                    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                    if f"RANK={number}".encode() in environment:
                        return pid
            time.sleep(0.2)
        return self.process.pid

    def end(self) -> tuple[int | None, list[str]]:
        """Exit status, None at the deadline, and the lines that `vit` has printed about its end."""
        try:
            status: int | None = self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = None
        self.log.seek(0)
        text = self.log.read()
        lines = [line for line in text.splitlines() if line.startswith(("vit: ", "stopped"))]
        ours = "/vit/" in text and 'File "' in text  # torchrun prints a traceback of its own
        return status, [*lines, *(["Traceback"] if ours else [])]


def losses(folder: str) -> dict[int, float]:
    """Validation loss by step."""
    path = Path(folder) / "metrics.csv"
    if not path.is_file():
        return {}
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return {int(r["step"]): float(r["val/loss"]) for r in rows if r.get("val/loss")}


def wait_for_save(launch: Launch, folder: str, saves: int = 1) -> None:
    """Until the run has saved so many times."""
    last, seen = Path(folder) / "checkpoints/last.ckpt", set[int]()
    if last.is_file():
        seen.add(last.stat().st_mtime_ns)
    saves += len(seen)
    while launch.process.poll() is None and len(seen) < saves:
        if last.is_file():
            seen.add(last.stat().st_mtime_ns)
        time.sleep(0.05)


def same_weights(folder: str, other: str) -> bool:
    """Whether the last weights are bitwise those of another run."""
    files = (Path(name, "checkpoints/last.ckpt") for name in (folder, other))
    return equal(*(read_checkpoint(file)["state_dict"] for file in files))


def interrupted(folder: str, steps: int, number: signal.Signals, rank: int) -> dict[str, Any]:
    """Two processes; one gets a signal in the middle; the same command continues."""
    args = command(folder, steps, BATCH)
    launch = Launch(args, 2, f"{folder}-1")
    pid = launch.rank(rank)
    wait_for_save(launch, folder)
    time.sleep(0.5)
    began = time.monotonic()
    os.kill(pid, number)
    status, lines = launch.end()
    seconds = round(time.monotonic() - began, 1)
    again, _ = Launch(args, 2, f"{folder}-2").end()
    return {
        "signal": number.name, "rank": rank, "exit_status": status, "seconds_to_end": seconds,
        "lines": lines, "exit_status_of_the_same_command": again,
    }  # fmt: skip


def changed(folder: str, steps: int) -> dict[str, Any]:
    """Two processes, then one, then four."""
    args, ends = command(folder, steps, BATCH), []
    for processes in (2, 1):
        launch = Launch(args, processes, f"{folder}-{processes}")
        pid = launch.rank(0)
        wait_for_save(launch, folder)
        os.kill(pid, signal.SIGTERM)
        ends.append(launch.end()[0])
    ends.append(Launch(args, 4, f"{folder}-4").end()[0])
    return {"processes": [2, 1, 4], "exit_statuses": ends}


def killed_in_saves(folder: str, steps: int, kills: int = 5) -> dict[str, Any]:
    """fsdp2: a process is killed inside a sharded save, again and again, then the run ends."""
    args, draw, left = command(folder, steps, BATCH), random.Random(0), []
    place = Path(folder) / "checkpoints"
    for i in range(kills):
        before = {*place.glob(".last.*.ckpt")}
        launch = Launch(args, 2, f"{folder}-{i}", "fsdp2")
        pid = launch.rank(i % 2)
        while launch.process.poll() is None and {*place.glob(".last.*.ckpt")} <= before:
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.02))
        os.kill(pid, signal.SIGKILL)
        launch.end()
        left.append(sorted(path.name for path in place.iterdir()))
    status, _ = Launch(args, 2, f"{folder}-end", "fsdp2").end()
    return {"ranks": [i % 2 for i in range(kills)], "left": left, "exit_status": status}


def full_disk(steps: int) -> dict[str, Any] | str:
    """A tmpfs of 30 MB that fills while the run saves into it."""
    disk = Path("disk")
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=30m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        return "left out: mounting a tmpfs takes root"
    try:
        wide = SIZES.replace("32", "160").replace("64", "480")
        args = [a.replace(SIZES, wide) for a in command("disk/run", steps, BATCH)]
        launch = Launch(args, 1, "disk-1")
        wait_for_save(launch, "disk/run", 2)
        ballast = disk / "ballast"
        with suppress(OSError), ballast.open("wb") as file:  # until the disk is full
            while True:
                file.write(bytes(1 << 16))
                file.flush()
        status, lines = launch.end()
        whole = {p.name: _whole(p) for p in sorted((disk / "run/checkpoints").glob("*.ckpt"))}
        refused, reason = Launch(args, 1, "disk-2").end()
        ballast.unlink(missing_ok=True)
        again, _ = Launch(args, 1, "disk-3").end()
        return {
            "exit_status": status, "lines": lines, "checkpoints_whole": whole,
            "next_start_on_the_full_disk": {"exit_status": refused, "lines": reason},
            "exit_status_with_space_again": again,
        }  # fmt: skip
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def _whole(path: Path) -> bool:
    try:
        read_checkpoint(path)
    except UserError:
        return False
    return True


def spread(seeds: list[dict[int, float]]) -> float:
    """Mean over validations of the standard deviation of the loss over seeds."""
    steps = set.intersection(*(set(s) for s in seeds))
    return statistics.mean(statistics.stdev([s[step] for s in seeds]) for step in steps)


def main() -> int:
    """Exit status 0 if nothing was lost, hung or was silent."""
    parser = arguments(__doc__, quick=False)
    parser.add_argument("--steps", type=int, default=66)
    options = parser.parse_args()
    steps = options.steps
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name, chdir(name), ThreadPoolExecutor(2) as pool:
        began = time.monotonic()
        disk = pool.submit(full_disk, steps)
        alone = pool.submit(lambda: Launch(command("alone", steps, BATCH), 2, "alone").end()[0])
        singles = [
            pool.submit(
                lambda s=s: Launch(command(f"seed{s}", steps, BATCH, s), 1, f"seed{s}").end()[0]
            )
            for s in range(3)
        ]
        kill = pool.submit(interrupted, "killed", steps, signal.SIGKILL, 1)
        term = pool.submit(interrupted, "stopped", steps, signal.SIGTERM, 1)
        change = pool.submit(changed, "changed", steps)
        whole = pool.submit(
            lambda: Launch(command("sharded", steps, BATCH), 2, "sharded", "fsdp2").end()[0]
        )
        in_saves = pool.submit(killed_in_saves, "killed_in_saves", steps)
        for future in (alone, *singles, kill, term, change, whole, in_saves, disk):
            future.result()
        curves = [losses(f"seed{s}") for s in range(3)]
        moved = losses("changed")
        far = statistics.mean(abs(moved[step] - curves[0][step]) for step in moved)
        facts = {
            "steps": steps,
            "one_process_killed": {
                **kill.result(),
                "bitwise_equal": same_weights("killed", "alone"),
            },
            "one_process_stopped": {
                **term.result(),
                "bitwise_equal": same_weights("stopped", "alone"),
            },
            "number_changed": {
                **change.result(),
                "validation_losses": {"one_process": curves[0], "changed": moved},
                "mean_difference_to_one_process": far,
                "mean_standard_deviation_over_three_seeds": spread(curves),
            },
            "sharded_killed_in_saves": {
                **in_saves.result(),
                "bitwise_equal": same_weights("killed_in_saves", "sharded"),
            },
            "full_disk": disk.result(),
            "seconds": round(time.monotonic() - began, 1),
        }
    content = document("chaos of processes", [], **facts)
    publish(content, options, "results/chaos_processes")
    equal_runs = ("one_process_killed", "one_process_stopped", "sharded_killed_in_saves")
    return (
        0
        if all(facts[name]["bitwise_equal"] for name in equal_runs) and far <= spread(curves)
        else 1
    )


if __name__ == "__main__":
    sys.exit(main())
