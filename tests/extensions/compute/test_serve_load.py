"""`vit bench --serve`: latency of a server in a process of its own."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.command import Vit, saved, vit  # noqa: F401
from vit.errors import UserError
from vit.extensions.compute import serve_load


def test_requests_are_counted_and_timed(
    vit: Vit,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve_load, "SECONDS", 0.4)
    saved(Path("model"))
    done = vit("bench", "--serve", "model", "--clients", 1, 3, "--json")
    assert done.status == 0, done.err
    alone, three = json.loads(done.out)["loads"]
    assert (alone["clients"], three["clients"]) == (1, 3)
    for load in (alone, three):
        assert 0 < load["p50_ms"] <= load["p99_ms"]
        # Little's law: clients = rate x mean time, which is between the median and the longest.
        assert load["per_second"] * load["p50_ms"] / 1000 < 1.6 * load["clients"]
        assert load["per_second"] * load["p99_ms"] / 1000 > 0.5 * load["clients"]


def test_an_answer_that_is_an_error_ends_the_measurement() -> None:
    class Failing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_error(500, "broken")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Failing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(UserError, match="the server answers 500"):
            serve_load.load(server.server_address[1], 2, [b"picture"], seconds=30)
        server.shutdown()


def test_ctrl_c_ends_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process must not wait for clients that ask for ever."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    class Answering(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    monkeypatch.setattr(serve_load, "wait", interrupted)
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            serve_load.load(server.server_address[1], 2, [b"picture"], seconds=30)
        server.shutdown()


@pytest.mark.parametrize(
    ("words", "reason"),
    (
        (["--serve"], "--serve measures one model, not 0"),
        (["--serve", "a", "b"], "--serve measures one model, not 2"),
        (["--serve", "a", "--train"], "--train does not go with --serve"),
        (["--serve", "a", "--batch-size", "2"], "--batch-size does not go with --serve"),
        (["--clients", "2"], "--clients needs --serve"),
        (["--serve", "nowhere"], "the server did not start"),
    ),
)
def test_mistakes(vit: Vit, words: list[str], reason: str) -> None:  # noqa: F811
    done = vit("bench", *words)
    assert done.status == 2 and reason in done.err
