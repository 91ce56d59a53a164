"""Latency of `vit serve` on this machine: clients that each ask again when they are answered."""

import http.client
import io
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
from PIL import Image

from vit.console import Meter
from vit.errors import UserError
from vit.hardware import hardware, versions

SECONDS = 6.0
"""Length of each measurement, until the last answer to what was asked then."""
SIDES = (500, 375)
"""Width and height of the picture, those of ImageNet's photos."""


def picture() -> bytes:
    """A JPEG of random blobs, of about the bytes of a photo of its size."""
    coarse = np.random.default_rng(0).integers(0, 256, (94, 125, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize(SIDES, Image.Resampling.BICUBIC)
    image.save(file := io.BytesIO(), "JPEG", quality=90)
    return file.getvalue()


def serve_bench(model: str, clients: Sequence[int], options: Sequence[str] = ()) -> dict[str, Any]:
    """Report of plain JSON types: for each number of clients requests per second, and the median
    and 99th percentile of their milliseconds. `options`: of `vit serve`.

    UserError if the server does not start.
    """
    queue = str(2 * max(clients))
    command = [sys.executable, "-m", "vit", "serve", model, "--port", "0", "--queue", queue]
    environment = {name: value for name, value in os.environ.items() if name != "VIT_TOKEN"}
    pipes: Any = {"stdout": subprocess.PIPE, "text": True, "env": environment}
    with subprocess.Popen([*command, *options], **pipes) as server:
        try:
            assert server.stdout is not None
            ready = server.stdout.readline()
            if not ready:
                raise UserError("the server did not start, for the reason above")
            port = int(ready.split("/")[2].rsplit(":", 1)[1])
            loads = []
            with Meter("measuring", len(clients) * SECONDS, "s") as meter:
                for count in clients:
                    loads.append({"clients": count, **figures(*load(port, count, [picture()]))})
                    meter.advance(SECONDS)
        finally:
            server.terminate()
    facts = {"hardware": hardware(), "versions": versions(), "picture": f"{SIDES[0]}x{SIDES[1]}"}
    return {"model": model, "served": True, **facts, "loads": loads}


def load(
    port: int, clients: int, pictures: Sequence[bytes], seconds: float = SECONDS
) -> tuple[list[float], float]:
    """Milliseconds of all answers to clients that ask for the pictures in turn, and the seconds
    until the last one. UserError for a status that is not 200."""
    milliseconds, turns = list[float](), itertools.cycle(pictures)
    begins, ends = threading.Barrier(clients + 1), threading.Event()

    def ask(connection: http.client.HTTPConnection) -> float:
        start = time.perf_counter()
        connection.request("POST", "/classify", next(turns))
        response = connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise UserError(f"the server answers {response.status}: {answer.decode()}")
        return 1000 * (time.perf_counter() - start)

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        begins.wait()
        while not ends.is_set():
            milliseconds.append(ask(connection))
        connection.close()

    with ThreadPoolExecutor(clients) as pool:
        running = [pool.submit(client) for _ in range(clients)]
        begins.wait()
        start = time.perf_counter()
        try:
            wait(running, seconds, FIRST_EXCEPTION)
        finally:
            ends.set()  # after Ctrl-C, too: the pool waits for its threads
    for done in running:
        done.result()
    return milliseconds, time.perf_counter() - start


def figures(milliseconds: Sequence[float], seconds: float) -> dict[str, float]:
    """Requests per second, and the median and 99th percentile of their milliseconds."""
    p50, p99 = np.percentile(milliseconds, (50, 99))
    return {"per_second": len(milliseconds) / seconds, "p50_ms": float(p50), "p99_ms": float(p99)}


def serve_table(report: dict[str, Any]) -> str:
    """The report as text."""
    lines = ["clients  requests/s   p50 ms   p99 ms"]
    for load in report["loads"]:
        texts = (f"{load[name]:9,.1f}" for name in ("per_second", "p50_ms", "p99_ms"))
        lines.append(f"{load['clients']:7}  {' '.join(texts)}")
    return "\n".join(lines)
