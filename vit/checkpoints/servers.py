"""Servers of files: those that variables name, which redirects are followed, refusals in words."""

import os
from http.client import HTTPMessage
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request

from vit.errors import UserError

_REDIRECTING = (301, 302, 303, 307, 308)


def server_of(variable: str) -> str | None:
    """The server that a variable names, None where it is not set. UserError where it is no URL."""
    value = os.environ.get(variable)
    if not value:
        return None
    try:
        parts = urlsplit(value)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port that is no number, or half an IPv6 address
        valid = False
    if not valid:
        raise UserError(
            f"{variable}={value} is not the address of a server, such as https://mirror.example; "
            "correct it, or unset it"
        )
    return value.rstrip("/")


class Redirects(HTTPRedirectHandler):
    """Follows redirects to http and https, but never from https to anything else."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        old, new = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        if new not in ("http", "https") or (old == "https" and new != "https"):
            raise URLError(f"it redirects from {old} to {new}, which is refused")
        return super().redirect_request(req, fp, code, msg, headers, newurl)

    def http_error_302(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage
    ) -> Any:
        location = headers.get("location") or headers.get("uri") or ""
        scheme = urlsplit(location).scheme
        if scheme not in ("", "http", "https"):  # else the library's own, longer message
            raise URLError(f"it redirects to {scheme}, which is refused")
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def refusal(error: HTTPError, url: str) -> str:
    """What a server's error status says, and what helps."""
    if error.code in _REDIRECTING:  # the library's own text has line breaks
        return f"{url} redirects in a circle; check the address, or give a local file"
    if error.code == 429 or error.code >= 500:
        remedy = "try again later, or give a local file"
    elif error.code in (401, 403, 407):
        remedy = "it asks for a permission that is not sent; give a local file"
    else:
        remedy = "check the address, or give a local file"
    return f"the server says {error.code} {error.reason} for {url}; {remedy}"
