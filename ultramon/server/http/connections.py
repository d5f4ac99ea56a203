"""HTTP connections with deadlines and a limit on their number; uvicorn's own wait for ever.

On loopback every peer has the same address, so connections are not counted by peer. A connection is
known once a request on it was authenticated; beyond the limit the oldest unknown one is closed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import struct
import sys
from itertools import count
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ultramon.server.http.authentication import CONNECTION, ConnectionAuth
from ultramon.server.http.error_responses import Json
from ultramon.server.http.request_filter import CLOSE, MAX_HEAD_BYTES, OWN_HEADERS

if TYPE_CHECKING:
    import ssl

    from uvicorn.config import Config
    from uvicorn.server import ServerState

MAX_CONNECTIONS = 256
HEAD_SECONDS = 5.0
IDLE_SECONDS = 30.0
STALL_SECONDS = 10.0
"""How long a peer may take to read the next `STALL_BYTES` of its answer, or the rest of it."""
STALL_BYTES = 16 << 10
_MAX_AHEAD_BYTES = 64 << 10
_LOOSE_LINE = re.compile(rb"(?<!\r)\n|\n[ \t]")
_NO_LINGER = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)
_log = logging.getLogger("ultramon.server")
_numbers = count()


class TlsHandshake(asyncio.Protocol):
    """Completes the TLS handshake, then hands over to HTTP.

    asyncio's own handshake would not count the connection until it is complete.

    Args:
        inside: Speaks HTTP; holds its slot from the first moment on.
        context: The certificate.
    """

    def __init__(self, inside: BoundedProtocol, context: ssl.SSLContext) -> None:
        self._inside = inside
        self._context = context
        self._early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()  # the next bytes belong to the handshake
        self._inside.hold_slot(transport)
        task = self._inside.loop.create_task(self._shake(transport))
        self._inside.tasks.add(task)
        task.add_done_callback(self._inside.tasks.discard)

    def data_received(self, data: bytes) -> None:
        """Keep the bytes that follow the handshake."""
        self._early += data

    async def _shake(self, transport: asyncio.Transport) -> None:
        inside, over_tls = self._inside, None
        try:
            over_tls = await inside.loop.start_tls(
                transport,
                self,
                self._context,
                server_side=True,
                ssl_handshake_timeout=inside.head_seconds,
            )
        except OSError as error:
            _log.info("no TLS handshake: %s", type(error).__name__)
        if over_tls is None or over_tls.is_closing():  # closed in favour of another one
            inside.connections.discard(inside)
            transport.abort()
            return
        over_tls.set_protocol(inside)
        inside.connection_made(over_tls)
        if self._early:
            inside.data_received(self._early)


class StrictConnection(h11.Connection):
    """Refuses lines that another parser of the same bytes could end elsewhere.

    h11 also ends lines at a bare LF and unfolds lines; a proxy in front that does neither would see
    other requests than the server.
    """

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event; see `h11.Connection.next_event`."""
        before = self.trailing_data[0]
        event = super().next_event()
        if isinstance(event, h11.Request | h11.EndOfMessage):
            taken = before[: len(before) - len(self.trailing_data[0])]
            if _LOOSE_LINE.search(taken):
                raise h11.RemoteProtocolError("a line is folded, or does not end in CR LF")
        return event


class BoundedProtocol(H11Protocol):
    """One connection; the class attributes are its limits."""

    max_connections = MAX_CONNECTIONS
    head_seconds = HEAD_SECONDS
    idle_seconds = IDLE_SECONDS
    stall_seconds = STALL_SECONDS

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._auth = ConnectionAuth()
        super().__init__(config, server_state, {**app_state, CONNECTION: self._auth}, _loop)
        self.conn = StrictConnection(h11.SERVER, MAX_HEAD_BYTES)
        self.timeout_keep_alive = self.idle_seconds  # type: ignore[assignment]  # a delay
        self._number = next(_numbers)
        self._bytes_ahead = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._unread_bytes = 0

    @property
    def _is_busy(self) -> bool:
        """Whether a whole head has come and its answer is not over."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Hold a slot, which may close another connection."""
        if self not in self.connections:
            self.hold_slot(transport)
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.head_seconds, self._close)

    def hold_slot(self, transport: asyncio.Transport) -> None:
        """Count as a connection from now on, even before the TLS handshake."""
        self.transport = transport
        self.connections.add(self)
        if len(self.connections) > self.max_connections:
            self._evict()

    def _evict(self) -> None:
        # An authenticated client that waits for its answer never gives way to a new connection.
        others = [
            other
            for other in self.connections
            if isinstance(other, BoundedProtocol)
            and other is not self
            and not (other._auth.is_known and other._is_busy)
        ]
        leaving = min(
            others,
            key=lambda other: (other._auth.is_known, other._is_busy, other._number),
            default=self,
        )
        # Not `close`: it would wait for a peer that does not read.
        leaving.transport.abort()
        self.connections.discard(leaving)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        for timer in (self._head_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Read more, within the limits."""
        if self._is_busy and self.conn.their_state is not h11.SEND_BODY:
            # Pipelined requests wait here, and each check for a disconnected client would read
            # more of them.
            self._bytes_ahead += len(data)
            if self._bytes_ahead > _MAX_AHEAD_BYTES:
                self.transport.abort()
                return
        elif not self._is_busy and self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self._close)
        super().data_received(data)

    def handle_events(self) -> None:
        """Process complete requests, and stop the timer of their heads."""
        super().handle_events()
        if not self._is_busy:
            return
        if not self.flow.write_paused:
            self._stop_stall_timer()
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def on_response_complete(self) -> None:
        """Continue with the next request while the peer reads the answer."""
        self._bytes_ahead = 0
        self._start_stall_timer()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer malformed HTTP and close; called while the parser's error is being handled."""
        error = sys.exc_info()[1]
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        _log.info("no HTTP request: %s", status)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = Json({"detail": "not a valid HTTP request"})
            headers = [*response.raw_headers, *OWN_HEADERS, CLOSE]
            for event in (
                h11.Response(status_code=status, headers=headers),
                h11.Data(data=bytes(response.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self._close()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection."""
        self._close()

    def pause_writing(self) -> None:
        """Start the deadline for a peer that does not read."""
        super().pause_writing()
        self._start_stall_timer()

    def resume_writing(self) -> None:
        """Stop the deadline: the peer reads again."""
        super().resume_writing()
        self._stop_stall_timer()

    def shutdown(self) -> None:
        """Close after the answer under way, at once when there is none."""
        if self._is_busy:
            self.cycle.keep_alive = False
        else:
            self._close()

    def _close(self) -> None:
        """Close, whether or not the peer reads the rest."""
        self.transport.close()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self.stall_seconds, self._reset)

    def _start_stall_timer(self) -> None:
        """Check after `stall_seconds` whether the peer has read its answer."""
        if self._stall_timer is None:
            self._unread_bytes = self.transport.get_write_buffer_size()
            if self._unread_bytes > 0:
                self._stall_timer = self.loop.call_later(self.stall_seconds, self._check_stall)

    def _check_stall(self) -> None:
        self._stall_timer = None
        # The buffer has not grown since: a writer waits for this peer, too.
        if 0 < self.transport.get_write_buffer_size() > self._unread_bytes - STALL_BYTES:
            self._reset()
        else:
            self._start_stall_timer()

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None and not self.transport.is_closing():
            self._stall_timer.cancel()
            self._stall_timer = None

    def _reset(self) -> None:
        """Discard the unread rest; the kernel would keep sending it for minutes."""
        connection = self.transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.transport.abort()
