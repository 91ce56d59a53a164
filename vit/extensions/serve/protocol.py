"""HTTP/1.1 of uvicorn, for requests that arrive in time."""

from asyncio import TimerHandle, Transport
from socket import socket
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol


class TimedProtocol(H11Protocol):
    """A connection that ends unless each request arrives whole within `read_timeout` seconds of its
    first byte, the first one of the connection's beginning."""

    def __init__(self, *, read_timeout: float, **options: Any) -> None:
        super().__init__(**options)
        self._seconds, self._timer = read_timeout, None

    def connection_made(self, transport: Transport) -> None:  # pyright: ignore
        super().connection_made(transport)
        self._timer: TimerHandle | None = self.loop.call_later(self._seconds, self._end)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._set_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._set_timer()  # the next request of a pipeline

    def _set_timer(self) -> None:
        begun, has_timer = self.conn.trailing_data[0], self.timeout_keep_alive_task is not None
        is_idle = self.cycle is None or self.cycle.response_complete
        waits = self.conn.their_state is h11.IDLE and (begun or (is_idle and not has_timer))
        if not waits and self.conn.their_state is not h11.SEND_BODY:
            self._timer = self._timer and self._timer.cancel()
        elif self._timer is None:
            self._timer = self.loop.call_later(self._seconds, self._end)

    def _end(self) -> None:
        if not self.transport.is_closing() and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            late = h11.Response(status_code=408, headers=[("connection", "close")])
            self.transport.writelines(map(self.conn.send, (late, h11.EndOfMessage())))
        self.transport.close()


class Server(uvicorn.Server):
    """A server that ends, after its graceful time, also the connections of clients that read
    nothing."""

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        await super().shutdown(sockets)
        for connection in [*self.server_state.connections]:
            connection.transport.abort()
