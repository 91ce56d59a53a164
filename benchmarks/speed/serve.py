"""`vit serve` under load, held against the same model behind a plain function of Starlette.

    python -m benchmarks.speed.serve --weights WEIGHTS --photos PHOTOS
    python -m benchmarks.speed.serve --weights WEIGHTS --photos PHOTOS --parts load batch

WEIGHTS is a ViT without a head, and gets one of ten random classes. Each server is a process of its
own on --threads; all are up, and take turns under the load of clients in this process, which share
the machine's cores with it and ask again when they are answered. Parts:

load    requests per second of `vit serve` with PyTorch and OpenVINO, and of the function
batch   the same of `vit serve --batch` 1, 4 and 8 with PyTorch
equal   rows of photos against those of `vit classify --json`
memory  of the server with PyTorch over 10,000 requests, at 28 pixels and with small photos
end     answers to 32 clients while SIGTERM ends the server

Rows of parts that are not measured stay. The tables are in docs/serve.md, by serve_page.py.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch

import vit
from benchmarks.lib.harness import (
    Rows,
    Times,
    arguments,
    commit,
    document,
    installed,
    publish,
    ratio,
    results_name,
    save,
    target,
)
from benchmarks.lib.servers import FILES, PLAIN, TORCH, Server, started
from benchmarks.speed import serve_checks
from benchmarks.speed.threads import busy_seconds
from vit.extensions.compute.serve_load import figures, load
from vit.hardware import available_cores

BATCHES = (1, 4, 8)
PHOTOS = 40
"""Photos for which the clients ask in turn."""


class Turn(NamedTuple):
    """A server under load for some seconds."""

    milliseconds: list[float]
    seconds: float
    cpu_seconds: float
    """Of the server for each request."""
    others: float
    """Cores that other processes used, the clients among them."""


def turn(server: Server, clients: int, pictures: Sequence[bytes], seconds: float) -> Turn:
    """One server under load."""
    used, busy = server.cpu_seconds(), busy_seconds() or 0.0
    milliseconds, seconds = load(server.port, clients, pictures, seconds)
    used, busy = server.cpu_seconds() - used, (busy_seconds() or 0.0) - busy
    return Turn(milliseconds, seconds, used / len(milliseconds), (busy - used) / seconds)


def row(turns: Sequence[Turn], base: Sequence[Turn]) -> dict[str, Any]:
    """Figures of a server's turns, and its speed over that of another in the same rounds."""
    values = [value for each in turns for value in each.milliseconds]
    times, others = (
        Times(tuple(each.seconds / len(each.milliseconds) for each in some))
        for some in (turns, base)
    )
    result: dict[str, Any] = figures(values, sum(each.seconds for each in turns))
    result |= {"per_second": 1 / times.median, "requests": len(values), "rounds": len(turns)}
    result["cpu_ms"] = 1000 * statistics.mean(each.cpu_seconds for each in turns)
    result["others"] = statistics.mean(each.others for each in turns)
    return result | ratio(times.ratios(others))


def in_turns(
    servers: Mapping[Any, Server], clients: Sequence[int], base: Any, options: argparse.Namespace
) -> Iterator[tuple[Any, int, dict[str, Any]]]:
    """Key of a server, number of clients, and figures over those of the server `base`."""
    for count in clients:
        turns: dict[Any, list[Turn]] = {key: [] for key in servers}
        for server in servers.values():
            load(server.port, count, options.pictures, 0.5)
        for _ in range(options.rounds):
            for key, server in servers.items():
                turns[key].append(turn(server, count, options.pictures, options.seconds))
        for key, each in turns.items():
            yield key, count, row(each, turns[base])


def loads(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Servers by the number of clients."""
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(started(name, folder, options.threads)) for name in FILES
        }
        for name, count, result in in_turns(servers, options.clients, PLAIN, options):
            yield {"server": name, "clients": count, **result}


def batches(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Sizes of batches in PyTorch."""
    with ExitStack() as stack:
        servers = {
            size: stack.enter_context(started(TORCH, folder, options.threads, "--batch", str(size)))
            for size in BATCHES
        }
        several = [count for count in options.clients if count > 1]
        for size, count, result in in_turns(servers, several, 1, options):
            yield {"server": TORCH, "batch": size, "clients": count, **result}


PARTS: dict[str, Callable[[Path, argparse.Namespace], Iterator[dict[str, Any]]]] = {
    "load": loads,
    "batch": batches,
    "equal": serve_checks.equal,
    "memory": serve_checks.memory,
    "end": serve_checks.end,
}


def prepare(folder: Path, weights: Path, side: int) -> None:
    """FOLDER/model and model.xml, and FOLDER/small/model at 28 pixels."""
    for place, pixels in ((folder, side), (folder / "small", 28)):
        torch.manual_seed(0)
        model = vit.create_model(pretrained=weights, num_classes=10, image_size=pixels)
        torch.nn.init.normal_(model.get_parameter("head.weight"), std=0.02)
        vit.save(model, place / "model", [f"class {number}" for number in range(10)])
    vit.export(folder / "model", folder / "model.xml")


def main() -> None:
    """Measures, writes the file, prints the JSON."""
    parser = arguments(__doc__, "weights", "photos", rounds=5)
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    add("--clients", nargs="+", type=int, default=[1, 8, 32], metavar="N")
    add("--pixels", type=int, default=224, help="side of what the model sees; default 224")
    add("--threads", type=int, default=available_cores(), help="default: one per core")
    add("--seconds", type=float, default=4.0, help="of a turn; default 4")
    add("--requests", nargs="+", type=int, default=[1000, 10000], metavar="N")
    options = parser.parse_args()
    options.photos_compared = 200
    if options.quick:
        options.clients, options.rounds, options.seconds = [1, 2], 1, 0.5
        options.requests, options.photos_compared = [20], 4
    options.files = sorted(options.photos.glob("*.JPEG"))
    options.pictures = [path.read_bytes() for path in options.files[:PHOTOS]]
    name = results_name("serve")
    path = target(options, name)
    content = document("serve", [], threads=options.threads)
    content["versions"] |= installed("openvino", "starlette", "uvicorn")
    measured = {"commit": commit(), "pixels": options.pixels, "seconds": options.seconds}
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), options.weights, options.pixels)
        for part in options.parts:
            rows: Rows = []
            for result in PARTS[part](Path(folder), options):
                rows.append({"part": part, **measured, **result})
                print(rows[-1], flush=True)
            if path and path.is_file():
                content["rows"] = json.loads(path.read_text(encoding="utf-8"))["rows"]
            content["rows"] = [row for row in content["rows"] if row["part"] != part] + rows
            save(content, path)
    publish(content, options, name)


if __name__ == "__main__":
    main()
