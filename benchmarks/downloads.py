"""Do concurrent downloads of one address all yield the right file?

    python benchmarks/downloads.py

A server on 127.0.0.1 sends a file of random bytes in small chunks, so that the processes overlap.
Writes benchmarks/results/downloads.json.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "downloads.json"
ROUNDS, PROCESSES, SIZE = 20, 3, 3 << 20
PIECE = 1 << 16
CLIENT = """
import sys
from urllib.request import HTTPHandler
from vit.checkpoints import download

download.HANDLERS.append(HTTPHandler)  # the server has no certificate
print(download.download(sys.argv[1]))
"""


class Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        data: bytes = self.server.data  # pyright: ignore
        self.server.requests += 1  # pyright: ignore
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", '"one"')
        self.end_headers()
        for start in range(0, len(data), PIECE):
            self.wfile.write(data[start : start + PIECE])


def one_round(cache: Path, *, size: int = SIZE, processes: int = PROCESSES) -> dict[str, Any]:
    """Exit statuses, number of right files in the cache, and number of requests."""
    data = os.urandom(size)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.data, server.requests = data, 0  # pyright: ignore
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/weights.bin"
    environment = {**os.environ, "VIT_CACHE": str(cache), "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-c", CLIENT, address]
    try:
        clients = [
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            for _ in range(processes)
        ]
        answers = [client.communicate() for client in clients]
    finally:
        server.shutdown()
        server.server_close()
    paths = {Path(out.strip()) for out, _ in answers if out.strip()}
    digest = hashlib.sha256(data).digest()
    right = [path for path in paths if hashlib.sha256(path.read_bytes()).digest() == digest]
    files = [path for path in cache.rglob("*") if path.is_file() and path not in paths]
    return {
        "statuses": [client.returncode for client in clients],
        "right_files": len(right) if len(right) == len(paths) else -1,
        "requests": server.requests,  # pyright: ignore
        "left_behind": sorted(path.name for path in files if path.suffix != ".lock"),
    }


def main() -> None:
    """Counts the rounds that end with exactly one right file."""
    rounds = []
    for number in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            rounds.append(one_round(Path(folder)))
        print(f"round {number + 1}: {json.dumps(rounds[-1])}", flush=True)
    right = {"statuses": [0] * PROCESSES, "right_files": 1, "requests": 1, "left_behind": []}
    result = {
        "rounds": ROUNDS,
        "processes": PROCESSES,
        "bytes": SIZE,
        "rounds_with_one_right_file": sum(r == right for r in rounds),
        "python": sys.version.split()[0],
        "platform": sys.platform,
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
