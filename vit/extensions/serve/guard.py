"""Checks of requests: names of the server, origins of web pages, and a token."""

import hmac
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

    def __init__(
        self, app: ASGIApp, count: Callable[[str, int], None], names: set[str], token: str
    ) -> None:
        """`count` takes path and status. `names` of the server: beside LOOPBACK and the address
        where a connection arrives. `token`: needed by all paths but those that are OPEN."""
        self._app, self._count, self._names, self._token = app, count, names, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(scope["path"], message["status"])
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            self._check(scope, Headers(scope=scope))
        except HTTPException as error:
            await refused(error)(scope, receive, send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)

    def _check(self, scope: Scope, headers: Headers) -> None:
        host, origin = headers.get("host", "").lower(), headers.get("origin", "").lower()
        if _name(f"//{host}") not in LOOPBACK | self._names | {scope["server"][0]}:
            raise HTTPException(403, f"{host!r} is no name of this server: see its --name")
        is_ours = origin.partition("//")[2] == host or _name(origin) in self._names
        # A link from another site may lead to the page, which is the same for everybody.
        is_link = scope["path"] == "/" and headers.get("sec-fetch-mode") == "navigate"
        site = headers.get("sec-fetch-site", "none")
        if (origin and not is_ours) or (site not in ("none", "same-origin") and not is_link):
            raise HTTPException(403, f"a page of another site {origin} may not ask this server")
        kind, _, token = headers.get("authorization", "").partition(" ")
        is_right = hmac.compare_digest(token.strip().encode("latin-1"), self._token)
        if (
            self._token
            and scope["path"] not in OPEN
            and (kind.lower(), is_right) != ("bearer", True)
        ):
            reason = "the server's token is needed: the header Authorization: Bearer TOKEN"
            raise HTTPException(401, reason, {"WWW-Authenticate": "Bearer"})


def _name(address: str) -> str | None:
    with suppress(ValueError):
        return urlsplit(address).hostname
