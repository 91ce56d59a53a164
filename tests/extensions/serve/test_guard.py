"""Requests that a server refuses: names, origins, tokens, slow and hostile senders."""

import random
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.command import Vit, coloured, saved, vit  # noqa: F401
from tests.extensions.serve.serving import Client, served
from vit.extensions.serve.cli_serve import _listener, parser

TOKEN = "a-token-of-26-characters"


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    (file := tmp_path_factory.mktemp("token") / "token").write_text(f"{TOKEN}\n")
    return str(file)


@pytest.fixture(scope="module")
def content(place: Path) -> bytes:
    return (place / "photos" / "red" / "00.jpg").read_bytes()


@pytest.fixture(scope="module")
def client(place: Path) -> Iterator[Client]:
    with served(place / "model", "--read-timeout", "0.5") as client:
        yield client


@pytest.fixture(scope="module")
def guarded(place: Path, token_file: str) -> Iterator[Client]:
    token = ("--token-file", token_file)
    with served(place / "model", "--name", "Photos.example.org", *token) as client:
        yield client


@pytest.mark.parametrize("host", ("localhost", "127.0.0.1:80", "[::1]:8000", "LOCALHOST:1"))
def test_names_of_this_machine(client: Client, content: bytes, host: str) -> None:
    assert client.ask(body=content, host=host).status == 200


@pytest.mark.parametrize(
    "host",
    (
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.nip.io",
        "192.168.0.7",
        "",
        "[::1",
        "a@b",
    ),
)
def test_other_names(client: Client, content: bytes, host: str) -> None:
    answer = client.ask(body=content, host=host)
    assert answer.status == 403 and "is no name of this server" in answer.json["error"]
    assert client.ask("/", host=host).status == 403


def test_origins_of_web_pages(client: Client, content: bytes) -> None:
    ours = f"http://127.0.0.1:{client.port}"
    assert client.ask(body=content, origin=ours, sec_fetch_site="same-origin").status == 200
    assert client.ask(body=content, sec_fetch_site="none").status == 200
    foreign = ("http://evil.example", "null", "http://localhost:3000", "https://127.0.0.1", "x")
    for origin in foreign:
        assert client.ask(body=content, origin=origin).status == 403, origin
    for site in ("cross-site", "same-site", "anything"):
        assert client.ask(body=content, sec_fetch_site=site).status == 403, site
        assert client.ask("/metrics", sec_fetch_site=site).status == 403, site
        navigation = {"sec_fetch_site": site, "sec_fetch_mode": "navigate"}
        assert client.ask("/", **navigation).status == 200
        assert client.ask("/health", **navigation).status == 403
        assert client.ask(body=content, **navigation).status == 403


def test_a_token_is_needed(guarded: Client, content: bytes) -> None:
    right = {"authorization": f"Bearer {TOKEN}"}
    assert guarded.ask(body=content, **right).status == 200
    assert guarded.ask(body=content, authorization=f"bearer  {TOKEN}").status == 200
    wrong = ("", "Bearer", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \xff", TOKEN)
    for header in wrong:
        answer = guarded.ask(body=content, authorization=header)
        assert answer.status == 401, header
        assert answer.headers["www-authenticate"] == "Bearer"
    for path in ("/metrics", "/openapi.json", "/nowhere"):
        assert guarded.ask(path).status == 401, path
        assert guarded.ask(path, **right).status in (200, 404)
    for path in ("/", "/page.js", "/page.css", "/health"):
        assert guarded.ask(path).status == 200, path
    assert guarded.ask("/health").json["token"] is True


def test_a_further_name_is_that_of_a_proxy(guarded: Client, content: bytes) -> None:
    right = {"authorization": f"Bearer {TOKEN}", "origin": "https://photos.example.org"}
    for host in ("photos.example.org", "PHOTOS.example.org:443", "127.0.0.1:8000"):
        assert guarded.ask(body=content, host=host, **right).status == 200, host
    right["origin"] = "https://photos.example.org.evil.example"
    assert guarded.ask(body=content, **right).status == 403


@pytest.mark.parametrize("status", (401, 413, 503))
def test_a_refusal_reaches_a_client_that_still_sends(
    place: Path, token_file: str, status: int
) -> None:
    options = ["--token-file", token_file, "--max-bytes", str(2**22), "--queue", "1"]
    right = {"authorization": f"Bearer {TOKEN}", "connection": "close"}
    with served(place / "model", *options) as client, ExitStack() as stack:
        size = 2**23 if status == 413 else 2**22
        if status == 401:
            del right["authorization"]
        elif status == 503:
            address = ("127.0.0.1", client.port)
            holder = stack.enter_context(socket.create_connection(address))
            fields = f"Authorization: Bearer {TOKEN}\r\nContent-Length: 9\r\n\r\n".encode()
            holder.sendall(HEAD + fields)
            while b"vit_queue_pictures 1.0" not in client.ask("/metrics", **right).body:
                time.sleep(0.02)
        for _ in range(8):  # the connection would be reset in nearly every one
            answer = client.ask(body=iter([bytes(2**16)] * (size // 2**16)), **right)
            assert answer.status == status and answer.json["error"]
            whole = client.ask(body=bytes(size), **right)
            assert whole.status == status and whole.json["error"]


def test_pages_are_closed_to_frames_and_foreign_scripts(client: Client) -> None:
    for path in ("/", "/health", "/nowhere"):
        headers = client.ask(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers


@pytest.mark.parametrize(
    ("options", "reason"),
    (
        (["--host", "0.0.0.0"], "needs a token: set VIT_TOKEN"),
        (["--name", "photos.example.org"], "needs a token: set VIT_TOKEN"),
        (["--token-file", "empty"], "--token-file empty has no token"),
        (["--host", "256.1.1.1"], "--host 256.1.1.1 --port 0"),
        (["--port", "70000"], "--port 70000"),
        (["--ssl-keyfile", "key.pem"], "--ssl-keyfile key.pem: "),
        (["--ssl-certfile", "cert.pem"], "--ssl-certfile cert.pem --ssl-keyfile None: "),
        (["--queue", "0"], "not a whole number"),
    ),
)
def test_a_mistake_is_one_line(
    vit: Vit,  # noqa: F811
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    reason: str,
) -> None:
    monkeypatch.delenv("VIT_TOKEN", raising=False)
    Path("empty").write_text("\n")
    answer = vit("serve", place / "model", "--port", "0", *options)
    assert answer.status == 2 and reason in answer.err and answer.err.count("\n") == 1


@pytest.mark.parametrize("token", ("with blank", "ümlaut", "two\nlines"))
def test_a_token_that_no_header_holds(
    vit: Vit,  # noqa: F811
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    token: str,
) -> None:
    monkeypatch.setenv("VIT_TOKEN", token)
    answer = vit("serve", place / "model", "--port", "0")
    assert answer.status == 2 and "VIT_TOKEN has no token of letters" in answer.err


@pytest.mark.parametrize(
    "name", ("photos.example.org", "https://Photos.example.org/x", "photos.example.org:8443")
)
def test_a_name_may_be_an_address(name: str) -> None:
    assert parser().parse_args(["m", "--name", name]).name == ["photos.example.org"]


def test_a_port_that_is_taken(vit: Vit, place: Path, client: Client) -> None:  # noqa: F811
    answer = vit("serve", place / "model", "--port", client.port)
    assert answer.status == 2 and "in use" in answer.err


def test_an_answer_does_not_wait_for_an_acknowledgement() -> None:
    with _listener("127.0.0.1", 0) as listener:
        with (
            socket.create_connection(listener.getsockname()) as _,
            listener.accept()[0] as accepted,
        ):
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def raw(client: Client, *parts: bytes, pause: float = 0.0) -> tuple[bytes, bool]:
    """What a server answers to bytes, and whether it closes the connection within 3 seconds."""
    with socket.create_connection(("127.0.0.1", client.port), timeout=3) as connection:
        answer = b""
        try:
            for part in parts:
                connection.sendall(part)
                time.sleep(pause)
            while more := connection.recv(65536):
                answer += more
        except ConnectionError:
            pass
        except TimeoutError:
            return answer, False
        return answer, True


HEAD = b"POST /classify HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    "parts",
    (
        [],
        [b"POST /class"],
        [b"G"] * 12,
        [HEAD, b"X-A: b\r\n" * 2, *[b"X-B: c\r\n"] * 20],
        [HEAD + b"Content-Length: 1000\r\n\r\n", *[b"x"] * 20],
        [HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[b"1\r\nx\r\n"] * 20],
        [b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + HEAD + b"Content-Length: 9\r\n\r\n"],
        [b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"GET /"],
    ),
)
def test_a_slow_sender_is_left(client: Client, parts: list[bytes]) -> None:
    start = time.monotonic()
    answer, is_closed = raw(client, *parts, pause=0.1)
    assert is_closed and time.monotonic() - start > 0.3  # uvicorn's keep-alive time is 5 s
    statuses = [line[9:12] for line in answer.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    answered = [b"200"] if parts and b"health" in parts[0] else []
    assert statuses in ([*answered, b"408"], answered)
    assert client.ask("/health").status == 200


def test_a_body_that_comes_after_the_answer_leaves_no_open_connection(client: Client) -> None:
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"
    answer, is_closed = raw(client, head, bytes(10), pause=0.2)
    assert answer.startswith(b"HTTP/1.1 200") and is_closed


def test_a_slow_answer_is_waited_for(place: Path, content: bytes) -> None:
    with served(
        place / "model", "--read-timeout", "0.3", "--batch", "2", "--wait-ms", "900"
    ) as slow:
        start = time.monotonic()
        assert slow.ask(body=content).status == 200
        assert time.monotonic() - start > 0.8


def test_bytes_that_are_no_request(client: Client, content: bytes) -> None:
    draw = random.Random(7)
    ordinary = HEAD + b"Content-Length: %d\r\n\r\n" % len(content) + content
    for _ in range(30):
        damaged = bytearray(ordinary)
        for _ in range(draw.randint(1, 8)):
            damaged[draw.randrange(120)] = draw.randrange(256)
        raw(client, bytes(damaged[: draw.randint(1, len(damaged))]))
    assert client.ask(body=content).status == 200
