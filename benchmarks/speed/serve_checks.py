"""Checks of `vit serve` under load: equal answers, memory, and its end by SIGTERM."""

import argparse
import http.client
import io
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.lib.harness import Rows, timed
from benchmarks.lib.servers import FILES, OPENVINO, PLAIN, TORCH, Server, environment, started
from vit.extensions.compute.serve_load import load

CLIENTS = 8
"""Clients whose requests make the server's memory."""


def equal(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rows of a pass over photos against those of `vit classify --json`, digit by digit."""
    photos = options.files[: options.photos_compared]
    rows_of: dict[str, list[Rows]] = {}
    for name, model in FILES.items():
        if model not in rows_of:
            command = [sys.executable, "-m", "vit", "classify", folder / model, *photos, "--json"]
            text, _ = timed(command, env=environment(options.threads))
            rows_of[model] = [row["top"] for row in json.loads(text, parse_float=str)]
        wanted = rows_of[model]
        for batch in (1,) if name == PLAIN else (1, 8):
            size = () if name == PLAIN else ("--batch", str(batch))
            with started(name, folder, options.threads, *size) as server:
                with ThreadPoolExecutor(4 * batch) as pool:
                    texts = [*pool.map(lambda path: ask(server.port, path.read_bytes()), photos)]
            rows = [json.loads(text, parse_float=str)[0]["top"] for text in texts]
            same = sum(a == b for a, b in zip(rows, wanted, strict=True))
            row = {"server": name, "batch": batch, "photos": len(rows), "identical": same}
            yield row | {"difference": max(map(difference, rows, wanted))}


def ask(port: int, picture: bytes) -> bytes:
    """The answer to a request on a connection of its own; HTTPException if it is none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", "/classify", picture)
        response = connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise http.client.HTTPException(response.status)
        return answer
    finally:
        connection.close()


def difference(top: Rows, wanted: Rows) -> float:
    """Largest difference of the probability of a class that both name."""
    one, other = ({t["class"]: float(t["probability"]) for t in each} for each in (top, wanted))
    return max(abs(one[name] - other[name]) for name in one.keys() & other)


def memory(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Memory of the server by the requests that it has answered."""
    photos = list(map(reduced, options.pictures))
    with started(TORCH, folder / "small", options.threads) as server:
        sizes, count = [(0, server.memory())], 0
        for limit in options.requests:
            while count < limit:
                count += len(load(server.port, CLIENTS, photos, 5.0)[0])
            sizes.append((count, server.memory()))
            print(f"{sizes[-1][1] / 2**20:.0f} MiB after {count:,}", flush=True)
    yield {"server": TORCH, "clients": CLIENTS, "bytes": sizes}


def reduced(photo: bytes) -> bytes:
    """A JPEG of at most 64 pixels."""
    image = Image.open(io.BytesIO(photo)).convert("RGB")
    image.thumbnail((64, 64))
    image.save(file := io.BytesIO(), "JPEG")
    return file.getvalue()


def end(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What 32 clients meet while SIGTERM ends the server."""
    for name in (TORCH, OPENVINO):
        before: Counter[str] = Counter()
        with started(name, folder, options.threads) as server:
            met, ends = Counter[str](), threading.Event()
            clients = [
                threading.Thread(target=meet, args=(server, options.pictures[i % 4], met, ends))
                for i in range(32)
            ]
            for client in clients:
                client.start()
            time.sleep(options.seconds)
            before = met.copy()
            server.process.terminate()
            status = server.process.wait()
            ends.set()
            for client in clients:
                client.join()
        yield {
            "server": name,
            "before": before["200"],
            "after": dict(met - before),
            "status": status,
        }


def meet(server: Server, picture: bytes, met: Counter[str], ends: threading.Event) -> None:
    """Counts what a client meets."""
    while not ends.is_set():
        try:
            ask(server.port, picture)
            met["200"] += 1
        except ConnectionRefusedError:
            met["refused"] += 1
            return
        except (OSError, http.client.HTTPException) as error:
            met[f"{type(error).__name__}: {error}"] += 1
            return
