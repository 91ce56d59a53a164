"""A server in a thread of the test."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from vit.extensions.serve import cli_serve


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client(NamedTuple):
    """Requests to a server at a port of this machine."""

    port: int

    def ask(
        self,
        path: str = "/classify",
        body: bytes | Iterator[bytes] | None = None,
        method: str | None = None,
        **headers: str,
    ) -> Answer:
        """POST with a body, else GET; `content_type="image/png"` is a header."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method or ("GET" if body is None else "POST"), path, body, named)
            response = connection.getresponse()
            lower = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, lower, response.read())
        finally:
            connection.close()

    def form(self, pictures: list[tuple[str, bytes]], path: str = "/classify") -> Answer:
        """The files of a form."""
        parts = b"".join(
            b'--x\r\nContent-Disposition: form-data; name="a"; filename="%s"\r\n\r\n%s\r\n'
            % (name.encode(), content)
            for name, content in pictures
        )
        kind = "multipart/form-data; boundary=x"
        return self.ask(path, parts + b"--x--\r\n", content_type=kind)


@contextmanager
def served(model: Path, *options: str) -> Iterator[Client]:
    """`vit serve MODEL OPTIONS`, without its process."""
    parsed = cli_serve.parser().parse_args([str(model), "--threads", "1", *options])
    with cli_serve._listener("127.0.0.1", 0) as listener:
        parsed.token = cli_serve._token(parsed.token_file)
        server = cli_serve._server(parsed)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield Client(listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()
