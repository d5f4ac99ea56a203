"""A network between a client and a server that a test can cut: real sockets, no answers."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress


class Proxy:
    """Passes bytes on between those who connect to it and a server on this host.

    Args:
        port: Of the server.

    Attributes:
        port: Of the proxy.
    """

    def __init__(self, port: int) -> None:
        self._server = port
        self._flows = threading.Event()
        self._flows.set()
        self._lost_word: bytes | None = None
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

    def lose_answer_to(self, word: bytes) -> None:
        """Pass the next bytes of a client that hold a word on, and close before their answer."""
        self._lost_word = word

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
        _close(client, server)

    def _pump(self, client: socket.socket, server: socket.socket) -> None:
        others = {client: server, server: client}
        while True:
            ready, _, _ = select.select([client, server], [], [])
            for source in ready:
                data = source.recv(65536)
                self._flows.wait()
                if not data:
                    return
                others[source].sendall(data)
                if source is client and self._lost_word is not None and self._lost_word in data:
                    self._lost_word = None
                    select.select([server], [], [])
                    return


def _close(*pair: socket.socket) -> None:
    for one in pair:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
