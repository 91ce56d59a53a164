"""A download is one whole file or one line, whatever the server and other processes do."""

import hashlib
import json
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest

from tests.checkpoints.loopback import Handler, Server, url
from vit.cache import cache_directory
from vit.checkpoints import download as downloads
from vit.checkpoints.download import download
from vit.checkpoints.hub import fetch
from vit.cli.main import main
from vit.errors import UserError

CONTENT = bytes(range(256)) * 10_000


def part_of(server: Server) -> Path:
    """Where an unfinished download of the server's file is kept."""
    folder = hashlib.sha256(url(server).encode()).hexdigest()[:16]
    return cache_directory() / folder / "w.bin.part"


def broken_off(server: Server, at: int = 1_500_000) -> Path:
    """A download that broke off; the path of what has arrived."""
    server.files["/w.bin"] = CONTENT
    server.break_after = at
    with pytest.raises(UserError, match="continued"):
        download(url(server))
    assert part_of(server).stat().st_size == at
    return part_of(server)


@pytest.mark.parametrize("round", [1, 2])
def test_three_processes_that_download_one_address_get_one_right_file(
    round: int, load_benchmark: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    result = load_benchmark("downloads").one_round(tmp_path / "cache", size=3 << 20, processes=3)
    assert result == {"statuses": [0, 0, 0], "right_files": 1, "requests": 1, "left_behind": []}


def test_a_crash_between_the_last_byte_and_the_renaming_is_finished(server: Server) -> None:
    part = broken_off(server)
    part.write_bytes(CONTENT)
    path = download(url(server))
    assert path.read_bytes() == CONTENT
    assert server.asked[-1][2] == f"bytes={len(CONTENT)}-"  # answered by 416
    assert not part.exists()


@pytest.mark.parametrize("hashes", [True, False])
def test_more_bytes_than_the_file_has_are_started_over(server: Server, hashes: bool) -> None:
    server.hashes = hashes
    part = broken_off(server)
    part.write_bytes(CONTENT + b"x")
    assert download(url(server)).read_bytes() == CONTENT


@pytest.mark.parametrize(
    "state",
    ["{", "[1]", "null", "[" * 100_000, '{"etag": 1}', '{"url": "u", "size": "x"}', "\x00\xff", ""],
)
def test_a_damaged_note_beside_an_unfinished_download_starts_it_over(
    server: Server, state: str
) -> None:
    part = broken_off(server)
    part.with_name(part.name + ".json").write_text(state, encoding="latin-1")
    part.write_bytes(b"x" * 1_500_000)  # nothing says what these are
    assert download(url(server)).read_bytes() == CONTENT


@pytest.mark.parametrize("field", ["etag", "url", "size", "md5"])
@pytest.mark.parametrize("value", [None, 1, -1, "x", [], {}])
def test_no_field_of_that_note_is_believed(server: Server, field: str, value: object) -> None:
    part = broken_off(server)
    note = part.with_name(part.name + ".json")
    note.write_text(json.dumps({**json.loads(note.read_text()), field: value}))
    assert download(url(server)).read_bytes() == CONTENT


@pytest.mark.parametrize(
    "stated", ["bytes 0-2559999/2560000", "bytes 1500000-2559999/2560001", "bytes 5-7/9", "x"]
)
def test_another_range_than_the_one_asked_for_starts_over(server: Server, stated: str) -> None:
    broken_off(server)
    server.content_range = stated
    assert download(url(server)).read_bytes() == CONTENT
    assert [asked[2] for asked in server.asked] == [None, "bytes=1500000-", None]


def test_an_answer_of_unknown_length_is_refused_unless_its_digest_is_known(
    server: Server,
) -> None:
    server.files["/w.bin"] = CONTENT
    server.lengths = server.hashes = False
    server.break_after = 1000
    with pytest.raises(UserError, match="does not say how long the file is; add #sha256="):
        download(url(server))
    digest = hashlib.sha256(CONTENT).hexdigest()
    server.break_after = 1000
    with pytest.raises(UserError, match="SHA-256"):
        download(f"{url(server)}#sha256={digest}")
    assert download(f"{url(server)}#sha256={digest}").read_bytes() == CONTENT


def test_google_s_hash_is_enough_where_the_length_is_unknown(server: Server) -> None:
    server.files["/w.bin"] = CONTENT
    server.lengths = False
    server.break_after = 1000
    with pytest.raises(UserError, match="arrived damaged"):
        download(url(server))
    assert download(url(server)).read_bytes() == CONTENT


def test_a_typing_error_in_the_digest_leaves_the_cached_file(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.files["/w.bin"] = CONTENT
    path = download(url(server))
    with pytest.raises(UserError, match=r"does not have the given SHA-256.* delete"):
        download(f"{url(server)}#sha256={'0' * 64}")
    for fragment in ("sha256=12", "md5=1", "x"):
        with pytest.raises(UserError, match="64 hexadecimal digits"):
            download(f"{url(server)}#{fragment}")
    assert path.read_bytes() == CONTENT
    assert download(url(server)) == path and len(server.asked) == 1


def test_a_file_in_the_cache_needs_no_server(server: Server) -> None:
    server.files["/w.bin"] = CONTENT
    path = download(url(server))
    server.shutdown()
    server.server_close()
    assert download(url(server)) == path
    assert download(f"{url(server)}#sha256={hashlib.sha256(CONTENT).hexdigest()}") == path


def test_a_file_that_does_not_fit_on_the_disk_is_refused_before_it_is_fetched(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.files["/w.bin"] = CONTENT
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(
        downloads.shutil, "disk_usage", lambda folder: usage._replace(free=(16 << 20) + 1_000_000)
    )
    with pytest.raises(UserError, match=r"needs 2\.6 MB of disk space and .* has 1\.0 MB; .*VIT_C"):
        download(url(server))
    assert not part_of(server).exists()
    assert "(2.6 MB) to " in capsys.readouterr().err
    server.lengths = False  # nobody knows the size: it ends where the room does
    with pytest.raises(UserError, match="does not fit on the disk"):
        download(url(server))


def test_host_and_size_are_said_before_a_download(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.files["/bucket/w.bin"] = CONTENT
    fetch("gs://bucket/w.bin")
    first, second = capsys.readouterr().err.splitlines()
    assert first == "asking 127.0.0.1 for gs://bucket/w.bin ..."
    assert second.startswith("downloading gs://bucket/w.bin (2.6 MB) to ")
    with pytest.raises(
        UserError, match=r"^gs://bucket/none cannot be fetched: the server says 404"
    ):
        fetch("gs://bucket/none")


@pytest.mark.parametrize(
    ("status", "remedy"),
    [(404, "check the address"), (500, "try again later"), (429, "try again later")],
)
def test_a_refusal_names_the_url_and_what_helps(status: int, remedy: str, server: Server) -> None:
    server.status = status
    with pytest.raises(UserError, match=rf"says {status} .* for {url(server)}; {remedy}, or give"):
        download(url(server))


def test_redirects_in_a_circle_are_one_line(server: Server) -> None:
    server.redirects["/w.bin"] = url(server)
    with pytest.raises(UserError, match="redirects in a circle; check the address") as raised:
        download(url(server))
    assert "\\n" not in str(raised.value)


def test_the_remedy_fits_how_the_file_was_named(server: Server, tmp_path: Path) -> None:
    server.files["/w.bin"] = CONTENT
    server.lengths = server.hashes = False
    target = tmp_path / "usb" / "w.bin"
    with pytest.raises(UserError, match=rf"fetch it in another way and put it at {target}$"):
        download(url(server), name="vit_ti16", target=target)
    (tmp_path / "file").touch()
    with pytest.raises(
        UserError, match=r"cannot be written to .*; give --to another folder of you"
    ):
        download(url(server), name="vit_ti16", target=tmp_path / "file" / "w.bin")


@pytest.mark.parametrize("content", [b"<!DOCTYPE html>", b""])
def test_a_page_in_the_place_of_weights_is_not_kept(content: bytes, server: Server) -> None:
    server.files["/bucket/w.bin"] = content
    with pytest.raises(UserError, match=r"what it sent is not a file of weights: .* not kept"):
        fetch("gs://bucket/w.bin")
    server.files["/bucket/w.bin"] = CONTENT
    assert fetch("gs://bucket/w.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("target", ["ftp://127.0.0.1:9/w", "file:///etc/hostname", "data:,x"])
def test_redirects_to_other_protocols_are_refused(server: Server, target: str) -> None:
    server.redirects["/w.bin"] = target
    with pytest.raises(
        UserError, match=r"redirects to (ftp|file|data), which is refused"
    ) as raised:
        download(url(server))
    assert "\n" not in str(raised.value)


def test_redirects_between_servers_of_one_kind_are_followed(server: Server) -> None:
    server.files["/elsewhere"] = CONTENT
    server.redirects["/w.bin"] = "/elsewhere"
    assert download(url(server)).read_bytes() == CONTENT


def test_https_stays_https(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with a certificate that sends its visitors to one without."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command, *files], check=True, capture_output=True)
    secure = Server(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    secure.socket = context.wrap_socket(secure.socket, server_side=True)
    secure.files, secure.asked = {"/w.bin": CONTENT}, []
    secure.redirects = {"/moved": url(server), "/here": "/w.bin"}
    threading.Thread(target=secure.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    address = f"https://127.0.0.1:{secure.server_port}"
    server.files["/w.bin"] = b"from the server without a certificate"
    try:
        with pytest.raises(UserError, match="redirects from https to http, which is refused"):
            fetch(f"{address}/moved")
        assert server.asked == []
        assert fetch(f"{address}/here").read_bytes() == CONTENT
    finally:
        secure.shutdown()
        secure.server_close()


def test_a_server_that_closes_the_connection_is_one_line(server: Server) -> None:
    silent = ThreadingHTTPServer(("127.0.0.1", 0), type("Rude", (Handler,), {"answer": _nothing}))
    threading.Thread(target=silent.serve_forever, args=(0.02,), daemon=True).start()
    try:
        with pytest.raises(UserError, match="check the network") as raised:
            download(f"http://127.0.0.1:{silent.server_port}/w.bin")
        assert "\n" not in str(raised.value)
    finally:
        silent.shutdown()
        silent.server_close()


def _nothing(handler: Handler, body: bool) -> None:
    handler.close_connection = True


@pytest.mark.parametrize(
    "address",
    ["https://", "https:///x", "https://[", "https://h:port/x", "https://127.0.0.1:9/ü", "gs://",
     "gs://../..", f"https://127.0.0.1:9/{'x' * 300}", "https://127.0.0.1:9/..", "hf://a"],
)  # fmt: skip
def test_odd_addresses_are_one_line_and_status_2(
    address: str, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", address, str(tmp_path / "out"), "--to", "native"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("vit: ")] == lines[-1:]
    assert len(lines) <= 2


def test_a_cache_that_cannot_be_written_is_one_line(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("VIT_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match=r"cannot be written to .* set VIT_CACHE"):
        download(url(server))


def test_a_waiting_process_says_for_whom(server: Server, tmp_path: Path) -> None:
    """It takes the file that the other one has left, without a request."""
    server.files["/w.bin"] = CONTENT
    part = part_of(server)
    part.parent.mkdir(parents=True)
    lock = downloads.FileLock(part.with_name("w.bin.lock"))
    code = f"from vit.checkpoints.download import download; print(download({url(server)!r}))"
    with lock:
        waiting = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert waiting.stderr is not None and waiting.stdout is not None
        line = waiting.stderr.readline()
        assert line.startswith("waiting for process ") and f"downloads {url(server)} ..." in line
        part.with_name("w.bin").write_bytes(CONTENT)
    path, _ = waiting.communicate()
    assert waiting.returncode == 0 and Path(path.strip()) == part.with_name("w.bin")
    assert server.asked == []
