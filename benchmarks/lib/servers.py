"""Servers of a model, each a process of its own."""

import http.client
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks.lib.harness import free_port
from vit.hardware import memory_field

PLAIN, TORCH, OPENVINO = "plain function", "vit serve, PyTorch", "vit serve, OpenVINO"
FILES = {PLAIN: "model", TORCH: "model", OPENVINO: "model.xml"}
"""Server -> its model in a folder."""


class Server(NamedTuple):
    """A process that answers at a port of this machine."""

    process: subprocess.Popen[bytes]
    port: int

    def cpu_seconds(self) -> float:
        """CPU time of all its threads."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        """Resident bytes."""
        return memory_field(f"/proc/{self.process.pid}/status", "VmRSS") or 0


@contextmanager
def started(name: str, folder: Path, threads: int, *options: str) -> Iterator[Server]:
    """A server of FILES that answers; `options` are of `vit serve`. SystemExit if it ends."""
    port, model = free_port(), str(folder / FILES[name])
    command = [sys.executable, "-m", "vit", "serve", model, "--port", str(port)]
    command += ["--threads", str(threads), *options]
    if name == PLAIN:
        command = [sys.executable, "-m", "benchmarks.speed.serve_peer", model, str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment(threads)) as process:
        try:
            while not _answers(port):
                if process.poll() is not None:
                    raise SystemExit(f"{name} did not start, for the reason above")
                time.sleep(0.1)
            yield Server(process, port)
        finally:
            process.terminate()


def _answers(port: int) -> bool:
    """Whether a request gets a status; a socket may listen before there is a model behind it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    with suppress(OSError):
        connection.request("GET", "/health")
        return bool(connection.getresponse().status)
    return False


def environment(threads: int) -> dict[str, str]:
    """Variables of a process with as many threads."""
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "VIT_TOKEN": ""}
