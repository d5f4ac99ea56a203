"""A network between a client and a server that a test can cut: real sockets, no answers."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count

_LOOK_SECONDS = 0.1


class Proxy:
    """Passes bytes on between those who connect to it and a server on this machine.

    Args:
        port: Of the server.

    Attributes:
        port: Of the proxy.
        requests: How often clients have sent something.
        delay_seconds: By so much each piece of a conversation is late.
    """

    def __init__(self, port: int) -> None:
        self._server = port
        self._flows = threading.Event()
        self._flows.set()
        self._is_last: Callable[[bytes], bool] | None = None
        self._is_heard = True
        self._then: Callable[[], object] = bool
        self.requests = 0
        self.delay_seconds = 0.0
        self._to_reset: set[socket.socket] = set()
        self._half_open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.port = 0
        self.accept()

    def accept(self) -> None:
        """Listen, on the same port as before."""
        self._listening = socket.create_server(("127.0.0.1", self.port), backlog=128)
        self.port = self._listening.getsockname()[1]
        self._woken, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def refuse(self) -> None:
        """Close every connection, and listen no more."""
        self._waker.close()
        self._thread.join()
        self._woken.close()
        self._listening.close()
        self.break_all()

    def hang(self) -> None:
        """Pass nothing on any more and close nothing, as a cut cable does."""
        self._flows.clear()

    def flow(self) -> None:
        """Pass everything on again, also what was sent meanwhile."""
        self._flows.set()

    def break_all(self) -> None:
        """Close every connection that there is."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _close(*pair)

    def reset_all(self) -> None:
        """End every connection that there is as one with an error: its client gets a RST."""
        self._end(self._to_reset)

    def half_open(self) -> None:
        """End every connection that there is on its server's side; its client learns nothing."""
        self._end(self._half_open)

    def reset_half_open(self) -> None:
        """Reset what `half_open` has left open, as a server does that was started anew."""
        with self._lock:
            self._to_reset |= self._half_open
            self._half_open.clear()

    def _end(self, clients: set[socket.socket]) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, []
            clients.update(client for client, _ in pairs)
        for _, server in pairs:
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)

    def lose_answer_to(self, word: bytes, then: Callable[[], object] = bool) -> None:
        """Pass the next bytes of a client that hold a word on, and close before their answer.

        Args:
            word: The word.
            then: Called before its client can know of that.
        """
        self._is_last, self._is_heard, self._then = (lambda data: word in data), True, then

    def cut_at(self, number: int, *, is_heard: bool) -> None:
        """Close the connection of the client that sends so many requests from now, 1 = the next.

        Args:
            number: Which request.
            is_heard: True = only its answer is lost.
        """
        numbers = count(1)
        self._is_last, self._is_heard = (lambda data: next(numbers) == number), is_heard
        self._then = bool

    @property
    def is_cut(self) -> bool:
        """Whether what `cut_at` or `lose_answer_to` asked for has happened."""
        return self._is_last is None

    def close(self) -> None:
        """End it, in whatever state it is."""
        self._flows.set()
        if self._thread.is_alive():
            self.refuse()

    def _accept(self) -> None:
        while True:
            ready, _, _ = select.select([self._listening, self._woken], [], [])
            if self._woken in ready:
                return
            client, _ = self._listening.accept()
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._flows.wait()
        try:
            server = socket.create_connection(("127.0.0.1", self._server))
        except OSError:
            client.close()
            return
        with self._lock:
            self._pairs.append((client, server))
        with suppress(OSError, ValueError):
            self._pump(client, server)
        with self._lock:
            if (client, server) in self._pairs:
                self._pairs.remove((client, server))
        if client in self._half_open:
            self._swallow(client)
        with self._lock:
            is_reset = client in self._to_reset
            self._to_reset.discard(client)
        if is_reset:
            _reset(client)
        _close(client, server)

    def _swallow(self, client: socket.socket) -> None:
        """Take what a client sends and answer nothing, until it leaves or is reset."""
        while client in self._half_open:
            with suppress(OSError):
                ready, _, _ = select.select([client], [], [], _LOOK_SECONDS)
                if not ready or client.recv(65536):
                    continue
            with self._lock:
                self._half_open.discard(client)

    def _pump(self, client: socket.socket, server: socket.socket) -> None:
        others = {client: server, server: client}
        while True:
            ready, _, _ = select.select([client, server], [], [])
            for source in ready:
                data = source.recv(65536)
                self._flows.wait()
                if self.delay_seconds:
                    time.sleep(self.delay_seconds)
                if not data:
                    return
                is_last = source is client and self._is_last is not None and self._is_last(data)
                self.requests += source is client
                if not is_last or self._is_heard:
                    others[source].sendall(data)
                if is_last:
                    self._is_last = None
                    if self._is_heard:
                        select.select([server], [], [])
                    self._then()
                    return


def _reset(client: socket.socket) -> None:
    with suppress(OSError):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def _close(*pair: socket.socket) -> None:
    for one in pair:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
