"""A server under load: the queue, clients that leave, signals."""

import gc
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.extensions.serve.serving import Client, served
from vit.hardware import memory_field
from vit.inference.classifier import Classifier, load


def contents(place: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((place / "photos").rglob("*.jpg"))]


def delayed(monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[int]:
    """Sizes of the batches that a model computes, each in at least these seconds."""
    sizes: list[int] = []
    outputs = Classifier.outputs

    def slow(self: Classifier, pixels: Any, **asked: bool) -> Any:
        sizes.append(len(pixels))
        time.sleep(seconds)
        return outputs(self, pixels, **asked)

    monkeypatch.setattr(Classifier, "outputs", slow)
    return sizes


@pytest.mark.parametrize("batch", ("1", "8"))
def test_thirty_two_clients_get_the_answers_of_classify(place: Path, batch: str) -> None:
    pictures, classifier = contents(place), load(place / "model")
    rows = [row.row("picture") for row in classifier.predict([*pictures])]
    with served(place / "model", "--batch", batch) as client, ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda i: client.ask(body=pictures[i % 36]), range(320)))
    assert {answer.status for answer in answers} <= {200, 503}
    answered = [(i, a.json[0]) for i, a in enumerate(answers) if a.status == 200]
    assert len(answered) > 300
    for i, row in answered:
        expected = {top["class"]: top["probability"] for top in rows[i % 36]["top"]}
        for top in row["top"]:
            assert abs(top["probability"] - expected[top["class"]]) < 2e-6


def test_a_flood_is_refused_with_a_time_to_come_back(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delayed(monkeypatch, 0.05)
    picture = contents(place)[0]
    with served(place / "model", "--queue", "4") as client, ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda _: client.ask(body=picture), range(40)))
        statuses = [answer.status for answer in answers]
        assert set(statuses) == {200, 503} and statuses.count(200) >= 4
        assert all(a.headers["retry-after"] == "1" for a in answers if a.status == 503)
        pictures = [("a.jpg", picture)] * 4
        assert client.form(pictures).status == 200  # all places are free again
        assert b"vit_queue_pictures 0.0" in client.ask("/metrics").body


def test_pictures_of_a_client_that_leaves_are_not_computed(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    picture = contents(place)[0]
    with served(place / "model", "--queue", "20") as client:
        sizes = delayed(monkeypatch, 0.2)
        part = b'--x\r\nContent-Disposition: form-data; name="a"; filename="b"\r\n\r\n%s\r\n'
        body = part % picture * 15 + b"--x--\r\n"
        head = b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n" % len(body)
        kind = b"Content-Type: multipart/form-data; boundary=x\r\n\r\n"
        with socket.create_connection(("127.0.0.1", client.port)) as connection:
            connection.sendall(head + kind + body)
            while not sizes:
                time.sleep(0.01)
        assert client.ask(body=picture).status == 200
        assert len(sizes) < 8
        assert b"vit_queue_pictures 0.0" in client.ask("/metrics").body
        assert b'status="499"' in client.ask("/metrics").body
    gc.collect()
    assert not caplog.records  # asyncio writes about errors that nobody has read


def test_an_error_of_the_model_is_said(place: Path, capsys: pytest.CaptureFixture) -> None:
    with served(place / "model") as client, pytest.MonkeyPatch.context() as patch:

        def broken(*_: object, **__: object) -> None:
            raise RuntimeError("no memory\nleft")

        patch.setattr(Classifier, "outputs", broken)
        answer = client.ask(body=contents(place)[0])
        assert (answer.status, answer.json) == (500, {"error": "no memory\nleft"})
    assert "a request failed: RuntimeError: no memory" in capsys.readouterr().err


@contextmanager
def process(place: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], Client]]:
    """`vit serve` in a process of its own."""
    environment = {**os.environ, "VIT_TOKEN": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "vit", "serve", str(place / "model"), "--port", "0"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, *options], env=environment, **pipes) as started:
        try:
            assert started.stdout
            line = started.stdout.readline()
            yield started, Client(int(line.split(":")[3].partition("/")[0]))
        finally:
            started.kill()


@pytest.mark.parametrize("number", (signal.SIGTERM, signal.SIGINT))
def test_a_signal_lets_requests_in_hand_end(place: Path, number: int) -> None:
    # so that an answer takes this long
    with process(place, "--batch", "3", "--wait-ms", "1500") as (server, client):
        answers: list[Any] = []
        asking = threading.Thread(
            target=lambda: answers.append(client.ask(body=contents(place)[0])), daemon=True
        )
        asking.start()
        while b"vit_queue_pictures 1.0" not in client.ask("/metrics").body:
            time.sleep(0.02)
        server.send_signal(number)
        asking.join(10)
        assert server.wait(10) == 128 + number
        assert server.stderr
        error = server.stderr.read()
    assert json.loads(answers[0].body)[0]["top"] and answers[0].status == 200
    assert "Traceback" not in error and error.endswith("vit: stopped\n")
    with pytest.raises(ConnectionError):
        client.ask("/health")


def test_a_signal_ends_it_whoever_does_not_read(place: Path) -> None:
    with process(place, "--drain", "1") as (server, client), ExitStack() as stack:
        request = b"GET /page.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for _ in range(3):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", client.port))
            connection.setblocking(False)
            with suppress(BlockingIOError):
                connection.sendall(request * 3000)
        time.sleep(3)  # until its buffers are full
        server.send_signal(signal.SIGTERM)
        assert server.wait(15) == 143


@pytest.mark.skipif(sys.platform != "linux", reason="/proc, and glibc's heaps of threads")
def test_the_memory_of_a_large_picture_is_returned(place: Path) -> None:
    Image.new("RGBA", (6000, 6000), (200, 10, 10, 128)).save(file := io.BytesIO(), "PNG")
    with process(place, "--threads", "1") as (server, client):

        def used() -> int:
            assert client.ask(body=contents(place)[0]).status == 200
            value = memory_field(f"/proc/{server.pid}/status", "VmRSS")
            assert value is not None
            return value

        before = used()
        for path in ("/classify", "/explain"):
            assert client.ask(path, file.getvalue()).status == 200
        assert used() - before < 100e6  # it has 144 MB, and two copies


def test_what_takes_longer_than_the_drain_is_left(place: Path) -> None:
    picture = contents(place)[0]
    answers: list[Any] = []
    options = ("--batch", "3", "--wait-ms", "4000", "--drain", "0.3")
    start = time.monotonic()
    with served(place / "model", *options) as client:

        def ask() -> None:
            try:
                answers.append(client.ask(body=picture).status)
            except OSError as error:
                answers.append(type(error))

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        while b"vit_queue_pictures 1.0" not in client.ask("/metrics").body:
            time.sleep(0.02)
    asking.join(5)
    assert time.monotonic() - start < 12
    assert answers and answers[0] != 200
