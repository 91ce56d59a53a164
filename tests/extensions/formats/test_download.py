"""A download is one whole file or one line, whatever the server and other processes do."""

import hashlib
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock

from tests.extensions.formats.loopback import Handler, Server, url
from vit import console
from vit.cli.main import main
from vit.errors import UserError
from vit.extensions.formats import download as downloads
from vit.extensions.formats.download import download
from vit.extensions.formats.hub import fetch
from vit.writing import cache_directory

CONTENT = b"PK\x03\x04" + bytes(range(256)) * 10_000
SHIPPED = list(downloads.HANDLERS)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def part_of(server: Server) -> Path:
    """Where an unfinished download of the server's file is kept."""
    folder = hashlib.sha256(url(server).encode()).hexdigest()[:16]
    return cache_directory() / folder / "w.bin.part"


def broken_off(server: Server, at: int = 1_500_000) -> Path:
    """A download that broke off; the path of what has arrived."""
    server.files["/w.bin"] = CONTENT
    server.break_after = at
    with pytest.raises(UserError, match="continues"):
        download(url(server))
    assert part_of(server).stat().st_size == at
    return part_of(server)


def refused(server: Server, message: str, fragment: str = "") -> None:
    """A download that ends in one line and leaves nothing."""
    with pytest.raises(UserError, match=message) as raised:
        download(url(server) + fragment)
    assert "\n" not in str(raised.value) and "\\n" not in str(raised.value)
    assert [path.suffix for path in part_of(server).parent.iterdir()] in ([], [".lock"])


def test_a_download_is_shown_and_then_needs_no_server(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "PATIENCE", -1.0)
    server.files["/bucket/w.bin"] = CONTENT
    path = fetch("gs://bucket/w.bin")
    assert path.read_bytes() == CONTENT and path.name == "w.bin"
    first, *shares = capsys.readouterr().err.splitlines()
    assert first == f"downloading gs://bucket/w.bin (2.6 MB) from 127.0.0.1 to {path.parent}"
    assert [line.split()[1] for line in shares] == ["41%", "82%", "100%"]  # by the MiB
    server.shutdown()
    server.server_close()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch("gs://bucket/w.bin") == path
    with pytest.raises(UserError, match=r"not in the cache, and HF_HUB_OFFLINE .* local file"):
        fetch("gs://bucket/other.bin")


def test_three_downloads_of_one_address_at_once_are_one(server: Server) -> None:
    server.files["/w.bin"] = CONTENT
    with ThreadPoolExecutor(3) as pool:
        [path] = set(pool.map(download, [url(server)] * 3))
    assert path.read_bytes() == CONTENT and len(server.asked) == 1
    assert {file.suffix for file in path.parent.iterdir()} <= {".bin", ".lock"}


def test_one_that_waits_says_so_and_takes_the_file_of_the_other(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    path = part_of(server).with_suffix("")
    path.parent.mkdir(parents=True)
    with ThreadPoolExecutor(1) as pool, FileLock(path.with_name("w.bin.lock")):
        waiting = pool.submit(download, url(server))
        while f"downloads {url(server)} ..." not in capsys.readouterr().err:
            assert not waiting.done()
            time.sleep(0.01)
        path.write_bytes(CONTENT)
    assert waiting.result() == path and server.asked == []


def test_a_broken_transfer_is_continued(server: Server) -> None:
    part = broken_off(server)
    assert download(url(server)).read_bytes() == CONTENT
    assert server.asked[-1][2] == "bytes=1500000-"
    assert {path.suffix for path in part.parent.iterdir()} <= {".bin", ".lock"}


@pytest.mark.parametrize("extra", [b"", b"x"])
def test_as_many_bytes_as_the_file_has_or_more_are_started_over(
    server: Server, extra: bytes
) -> None:
    part = broken_off(server)
    part.write_bytes(CONTENT + extra)
    assert download(url(server)).read_bytes() == CONTENT
    assert [asked[2] for asked in server.asked][1:] == [f"bytes={len(CONTENT + extra)}-", None]


@pytest.mark.parametrize("etag", [None, "", "{", 'W/"weak"', '"a\r\nb: c"', "\x00\xff", '"other"'])
def test_a_part_of_an_unknown_file_is_not_continued(server: Server, etag: str | None) -> None:
    part = broken_off(server)
    part.write_bytes(b"x" * 1_500_000)
    note = part.with_suffix(".etag")
    note.unlink() if etag is None else note.write_text(etag, encoding="latin-1")
    assert download(url(server)).read_bytes() == CONTENT


@pytest.mark.parametrize("stated", ["bytes 0-2559999/2560000", "bytes 5-7/9", "x"])
def test_a_part_that_was_not_asked_for_is_one_line(server: Server, stated: str) -> None:
    """Neither after a transfer that broke off, which is started over, nor without one."""
    broken_off(server)
    server.content_range = stated
    for _ in range(2):
        with pytest.raises(UserError, match="does not send the whole file: 206"):
            download(url(server))
    assert [asked[2] for asked in server.asked] == [None, "bytes=1500000-", None, None]


def test_an_answer_of_unknown_length_is_refused_unless_a_digest_is_known(server: Server) -> None:
    server.files["/w.bin"] = CONTENT
    server.encoding = "gzip"
    refused(server, "gzip")
    server.encoding = None
    server.lengths = server.hashes = False
    refused(server, "does not say how long the file is; add #sha256=")
    server.break_after = 1000
    refused(server, f"SHA-256 {SHA256}, but .* not kept", f"#sha256={SHA256}")
    assert download(f"{url(server)}#sha256={SHA256}").read_bytes() == CONTENT


def test_google_s_md5_is_compared(server: Server) -> None:
    server.files["/w.bin"] = CONTENT
    server.wrong_hash = True
    refused(server, "MD5")
    server.wrong_hash, server.lengths = False, False  # then it is the MD5 that shows a cut
    server.break_after = 1000
    refused(server, "MD5")
    assert download(url(server)).read_bytes() == CONTENT


def test_a_wrong_sha256_leaves_the_cached_file(server: Server) -> None:
    server.files["/w.bin"] = CONTENT
    path = download(f"{url(server)}#sha256={SHA256.upper()}")
    with pytest.raises(UserError, match=rf"SHA-256 0+, but {SHA256}; .* delete {path}"):
        download(f"{url(server)}#sha256={'0' * 64}")
    for fragment in ("sha256=12", "md5=1", "x"):
        with pytest.raises(UserError, match="64 hexadecimal digits"):
            download(f"{url(server)}#{fragment}")
    assert path.read_bytes() == CONTENT
    assert download(url(server)) == path and len(server.asked) == 1


def test_what_is_no_file_of_weights_is_not_kept(server: Server) -> None:
    server.files["/bucket/w.bin"] = b"<!DOCTYPE html>"
    with pytest.raises(UserError, match=r"what http\S+ sent is not .* a web page.* was not kept"):
        fetch("gs://bucket/w.bin")
    server.files["/bucket/w.bin"] = CONTENT
    assert fetch("gs://bucket/w.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("status", [404, 500])
def test_a_refusal_is_one_line(status: int, server: Server) -> None:
    server.status = status
    refused(server, rf"{re.escape(url(server))} cannot be fetched \(HTTP Error {status}: ")


def test_redirects_are_followed_but_not_in_a_circle(server: Server) -> None:
    server.redirects["/w.bin"] = url(server)
    refused(server, "infinite loop")
    server.files["/elsewhere"] = CONTENT
    server.redirects["/w.bin"] = "/elsewhere"
    assert download(url(server)).read_bytes() == CONTENT


def test_what_is_not_https_is_refused_also_after_a_redirect(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.redirects["/w.bin"] = "ftp://127.0.0.1/w.bin"
    refused(server, "unknown url type: ftp")
    monkeypatch.setattr(downloads, "HANDLERS", SHIPPED)
    refused(server, "unknown url type: http")
    assert len(server.asked) == 1


def test_a_server_that_closes_the_connection_is_one_line(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(handler: Handler, body: bool) -> None:
        handler.close_connection = True

    monkeypatch.setattr(Handler, "answer", nothing)
    refused(server, "closed connection")
    server.shutdown()
    server.server_close()
    refused(server, "refused")


@pytest.mark.parametrize(
    "address",
    ["https://", "https:///x", "https://[", "https://h:port/x", "https://h:99999/x",
     "https://127.0.0.1:9/ü", "gs://", "gs://../..", f"https://127.0.0.1:9/{'x' * 300}",
     "https://127.0.0.1:9/..", "https://127.0.0.1:9/a b", "hf://a"],
)  # fmt: skip
def test_odd_addresses_are_one_line_and_status_2(
    address: str, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", address, str(tmp_path / "out"), "--to", "native"]) == 2
    assert re.fullmatch(r"vit: .*\n", capsys.readouterr().err)


def test_a_full_disk_is_one_line(server: Server) -> None:
    server.files["/w.bin"] = CONTENT
    part_of(server).parent.mkdir(parents=True)
    part_of(server).symlink_to("/dev/full")
    with pytest.raises(UserError, match=rf"kept in {part_of(server).parent}: No space left"):
        download(url(server))
