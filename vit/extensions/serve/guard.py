"""Checks of requests: names of the server, origins of web pages, and a token."""

import hmac
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN = ("/", "/page.js", "/page.css", "/health")
"""Paths that need no token: the page asks for it."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
HEADERS = {
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
}
"""Of every answer."""


def refused(error: HTTPException) -> JSONResponse:
    """The answer to a request that is refused."""
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


class Guard:
    """ASGI application that checks who asks, and adds HEADERS to answers.

    Any web site can send a request to 127.0.0.1, and by a DNS name that it moves there it could
    read the answer. So a request must name this server, and come from no other site.
    """

    def __init__(self, app: ASGIApp, options: Namespace, count: Callable[[str, int], None]) -> None:
        """`options`: max_bytes, name and token of `vit serve`. `count` takes path and status."""
        self._app, self._options, self._count = app, options, count
        self._names = LOOPBACK.union(options.name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, size, is_whole = Headers(scope=scope), 0, False

        async def counted() -> Message:
            nonlocal size, is_whole
            message = await receive()
            size, is_whole = size + len(message.get("body", b"")), not message.get("more_body")
            self._check_size(size)
            return message

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Who still sends when the connection ends may lose the answer: the rest is read.
                while message["status"] >= 400 and "expect" not in headers and not is_whole:
                    with suppress(HTTPException):
                        await counted()
                self._count(scope["path"], message["status"])
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            self._check_size(int(headers.get("content-length", 0)))
            self._check(scope, headers)
        except HTTPException as error:
            await refused(error)(scope, receive, answer)
        else:
            await self._app(scope, counted, answer)

    def _check_size(self, size: int) -> None:
        if size > (most := self._options.max_bytes):
            raise HTTPException(413, f"more than this server's limit of {most:,} bytes")

    def _check(self, scope: Scope, headers: Headers) -> None:
        host, origin = headers.get("host", "").lower(), headers.get("origin", "").lower()
        if _name(f"//{host}") not in self._names | {scope["server"][0]}:
            raise HTTPException(403, f"{host!r} is no name of this server: see its --name")
        is_ours = origin.partition("//")[2] == host or _name(origin) in self._options.name
        # A link from another site may lead to the page, which is the same for everybody.
        is_link = scope["path"] == "/" and headers.get("sec-fetch-mode") == "navigate"
        site = headers.get("sec-fetch-site", "none")
        if (origin and not is_ours) or (site not in ("none", "same-origin") and not is_link):
            raise HTTPException(403, f"a page of another site {origin} may not ask this server")
        if self._options.token and scope["path"] not in OPEN:
            kind, _, token = headers.get("authorization", "").partition(" ")
            right = self._options.token.encode()
            if not hmac.compare_digest(token.strip().encode(), right) or kind.lower() != "bearer":
                reason = "the server's token is needed: the header Authorization: Bearer TOKEN"
                raise HTTPException(401, reason, {"WWW-Authenticate": "Bearer"})


def _name(address: str) -> str | None:
    with suppress(ValueError):
        return urlsplit(address).hostname
