"""A server on 127.0.0.1 that may do everything a server on the internet may do."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.request import HTTPHandler

import pytest

from vit.extensions.formats import download as downloads

COMMIT = "1" * 40


class Server(ThreadingHTTPServer):
    """Serves `files`; may break off a transfer once, send a wrong hash, or be a hub.

    The hub's files are `/ORG/REPO/resolve/COMMIT/FILE`.
    """

    files: dict[str, bytes]
    asked: list[tuple[str, str, str | None]]
    """Method, path and Range header of every request."""
    break_after: int = 0
    wrong_hash: bool = False
    hashes: bool = True
    lengths: bool = True
    # Headers that are not the content's.
    content_range: str | None = None
    encoding: str | None = None
    status: int | None = None
    """Of every answer."""
    redirects: dict[str, str]

    @classmethod
    @contextmanager
    def running(cls, monkeypatch: pytest.MonkeyPatch) -> Iterator[Self]:
        """A server that answers, and http understood in this process, which it is not otherwise."""
        server = cls(("127.0.0.1", 0), Handler)
        server.files, server.asked, server.redirects = {}, [], {}
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        monkeypatch.setattr(downloads, "HANDLERS", [*downloads.HANDLERS, HTTPHandler])
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield server
        server.shutdown()
        server.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that breaks off is no error of the server's."""


class Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append((self.command, self.path, wanted))
        if self.server.status is not None:
            self.headers_only(self.server.status, {})
            return
        if self.path in self.server.redirects:
            self.headers_only(302, {"Location": self.server.redirects[self.path]})
            return
        if self.path.startswith("/api/models/"):
            self.as_hub()
            return
        data = self.server.files.get(self.path)
        if data is None:
            self.headers_only(404, {"X-Error-Code": "EntryNotFound"})
            return
        etag = f'"{hashlib.sha256(data).hexdigest()}"'
        start = 0
        if wanted and self.headers.get("If-Range", etag) == etag:
            start = int(wanted.removeprefix("bytes=").split("-")[0])
        if start >= len(data) > 0:
            self.headers_only(416, {"Content-Range": f"bytes */{len(data)}"})
            return
        self.send_response(206 if start or self.server.content_range else 200)
        if self.server.lengths:
            self.send_header("Content-Length", str(len(data) - start))
        if self.server.encoding:
            self.send_header("Content-Encoding", self.server.encoding)
        if start or self.server.content_range:
            stated = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self.send_header("Content-Range", self.server.content_range or stated)
        self.send_header("ETag", etag)
        self.send_header("X-Repo-Commit", COMMIT)
        if self.server.hashes:
            md5 = base64.b64encode(hashlib.md5(data).digest()).decode()
            self.send_header("x-goog-hash", f"md5={'AAAA' if self.server.wrong_hash else md5}")
        end = None
        if body and self.server.break_after:
            # Before the client can ask again.
            end, self.server.break_after = self.server.break_after, 0
            self.close_connection = True
        self.end_headers()
        if body:
            self.wfile.write(data[start:end])

    def as_hub(self) -> None:
        """Says which commit a repository has, or its files."""
        repository = "/".join(self.path.split("/")[3:5])
        before = f"/{repository}/resolve/{COMMIT}/"
        names = [path[len(before) :] for path in self.server.files if path.startswith(before)]
        if not names:
            self.headers_only(404, {"X-Error-Code": "RepoNotFound"})
            return
        answer: object = {"id": repository, "sha": COMMIT}
        if "/tree/" in self.path:
            sizes = {name: len(self.server.files[before + name]) for name in names}
            answer = [
                {"type": "file", "path": name, "size": size, "oid": "0" * 40}
                for name, size in sizes.items()
            ]
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def headers_only(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": "0"}.items():
            self.send_header(name, value)
        self.end_headers()


def url(server: Server, path: str = "/w.bin") -> str:
    return f"http://127.0.0.1:{server.server_port}{path}"
