"""A server on 127.0.0.1 that may do everything a server on the internet may do."""

import base64
import hashlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server(ThreadingHTTPServer):
    """Serves `files`; may break off a transfer once, send a wrong hash, or be a hub."""

    files: dict[str, bytes]
    asked: list[tuple[str, str, str | None]]
    """Method, path and Range header of every request."""
    break_after: int = 0
    wrong_hash: bool = False
    hashes: bool = True
    lengths: bool = True
    """False: no Content-Length; the end of the connection is the end of the file."""
    stated_length: int | None = None
    """A Content-Length that is not the content's."""
    content_range: str | None = None
    """A Content-Range that is not the content's."""
    status: int | None = None
    """Answers everything so."""
    redirects: dict[str, str]
    """Path -> where it is said to be."""


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
        self.send_response(206 if start else 200)
        if self.server.lengths:
            length = len(data) - start
            self.send_header("Content-Length", str(self.server.stated_length or length))
        if start:
            stated = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self.send_header("Content-Range", self.server.content_range or stated)
        self.send_header("ETag", etag)
        self.send_header("X-Repo-Commit", "1" * 40)
        if self.server.hashes:
            md5 = base64.b64encode(hashlib.md5(data).digest()).decode()
            self.send_header("x-goog-hash", f"md5={'AAAA' if self.server.wrong_hash else md5}")
        self.end_headers()
        if not body:
            return
        if self.server.break_after:
            self.wfile.write(data[start : self.server.break_after])
            self.server.break_after = 0
            self.close_connection = True
            return
        self.wfile.write(data[start:])

    def headers_only(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": "0"}.items():
            self.send_header(name, value)
        self.end_headers()


def url(server: Server, path: str = "/w.bin") -> str:
    return f"http://127.0.0.1:{server.server_port}{path}"
