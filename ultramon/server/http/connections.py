"""HTTP connections with deadlines and places: uvicorn's h11 protocol waits for ever, this one not.

On loopback every peer has the same address, so places are not counted by peer. A connection is
known once it proved a token; when places run out, the oldest that proved nothing gives way.
"""

from __future__ import annotations

import asyncio
import json
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
from ultramon.server.http.request_filter import MAX_HEAD_BYTES

if TYPE_CHECKING:
    import ssl

    from uvicorn.config import Config
    from uvicorn.server import ServerState

MAX_CONNECTIONS = 256
HEAD_SECONDS = 5.0
IDLE_SECONDS = 30.0
STALL_SECONDS = 10.0
"""How long a peer has for the next `STALL_BYTES` of what it asked for, or for what is left."""
STALL_BYTES = 16 << 10
_MAX_AHEAD_BYTES = 64 << 10
_LOOSE_LINE = re.compile(rb"(?<!\r)\n|\n[ \t]")
_NO_LINGER = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)
_log = logging.getLogger("ultramon.server")
_numbers = count()


class TlsDoor(asyncio.Protocol):
    """Shakes hands, then lets a protocol speak; asyncio's own would count nobody until then.

    Args:
        inside: Speaks HTTP; has its place from the first moment on.
        context: The certificate.
    """

    def __init__(self, inside: BoundedProtocol, context: ssl.SSLContext) -> None:
        self._inside = inside
        self._context = context
        self._early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()  # what comes now is for the handshake
        self._inside.take_place(transport)
        task = self._inside.loop.create_task(self._shake(transport))
        self._inside.tasks.add(task)
        task.add_done_callback(self._inside.tasks.discard)

    def data_received(self, data: bytes) -> None:
        """Keep what came with the end of the handshake."""
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
        if over_tls is None or over_tls.is_closing():  # it gave way to another one
            inside.connections.discard(inside)
            transport.abort()
            return
        over_tls.set_protocol(inside)
        inside.connection_made(over_tls)
        if self._early:
            inside.data_received(self._early)


class StrictConnection(h11.Connection):
    """Takes no line that another reader of the same bytes could end elsewhere.

    h11 ends lines at a bare LF too, and joins a line that begins with a space to the one before;
    a proxy in front that does neither sees other requests than the server does.
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
        """Take a place, which may cost another connection its own."""
        if self not in self.connections:
            self.take_place(transport)
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.head_seconds, self._end)

    def take_place(self, transport: asyncio.Transport) -> None:
        """Count as a connection from now on, also before there is one to speak HTTP on."""
        self.transport = transport
        self.connections.add(self)
        if len(self.connections) > self.max_connections:
            self._make_room()

    def _make_room(self) -> None:
        # Whoever proved a token and waits for its answer is never sent away for a newcomer.
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
        """Forget the timers."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        for timer in (self._head_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Read on, within the limits."""
        if self._is_busy and self.conn.their_state is not h11.SEND_BODY:
            # Requests sent ahead wait here, and the application's looks for a leaving client
            # would let in more and more of them.
            self._bytes_ahead += len(data)
            if self._bytes_ahead > _MAX_AHEAD_BYTES:
                self.transport.abort()
                return
        elif not self._is_busy and self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self._end)
        super().data_received(data)

    def handle_events(self) -> None:
        """Take the requests that are complete; then the time for their heads is over."""
        super().handle_events()
        if not self._is_busy:
            return
        if not self.flow.write_paused:
            self._trust_reader()
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def on_response_complete(self) -> None:
        """Go on with the next request, while the peer reads the answer."""
        self._bytes_ahead = 0
        self._watch_reader()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP and close; called where the parser's error is being handled."""
        error = sys.exc_info()[1]
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        _log.info("no HTTP request: %s", status)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"detail": "this is no HTTP request that is taken here"}).encode()
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                (b"cache-control", b"no-store"),
                (b"x-content-type-options", b"nosniff"),
                (b"connection", b"close"),
            ]
            for event in (
                h11.Response(status_code=status, headers=headers),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self._end()

    def timeout_keep_alive_handler(self) -> None:
        """End a connection on which nothing is asked."""
        self._end()

    def pause_writing(self) -> None:
        """Give the peer some time to read."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """The peer reads again."""
        super().resume_writing()
        self._trust_reader()

    def shutdown(self) -> None:
        """End when the answer that is being given is over, at once when there is none."""
        if self._is_busy:
            self.cycle.keep_alive = False
        else:
            self._end()

    def _end(self) -> None:
        """Close, whether or not the peer reads what is left."""
        self.transport.close()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self.stall_seconds, self._give_up)

    def _watch_reader(self) -> None:
        """Have it judged after a while whether the peer reads what was written for it."""
        if self._stall_timer is None:
            self._unread_bytes = self.transport.get_write_buffer_size()
            if self._unread_bytes > 0:
                self._stall_timer = self.loop.call_later(self.stall_seconds, self._judge_reader)

    def _judge_reader(self) -> None:
        self._stall_timer = None
        # Nothing was added since: whoever waits to write waits for this peer, too.
        if 0 < self.transport.get_write_buffer_size() > self._unread_bytes - STALL_BYTES:
            self._give_up()
        else:
            self._watch_reader()

    def _trust_reader(self) -> None:
        if self._stall_timer is not None and not self.transport.is_closing():
            self._stall_timer.cancel()
            self._stall_timer = None

    def _give_up(self) -> None:
        """Drop what the peer leaves unread; the kernel would keep trying for minutes."""
        connection = self.transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.transport.abort()
