"""One connection per process that is notified at once of stored messages: a hint, no more.

It is open only while a caller waits. What it misses is found by that caller, which polls anyway.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ultramon.backends.postgres.connection.address import Address

    Heard = Callable[[], None]

_log = logging.getLogger("ultramon.backend")

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
POOLER_PAUSE_SECONDS = 600.0
"""Pause after a pooler was found in between, which passes no notifications on."""
LINGER_SECONDS = 10.0
"""How long the connection outlives its last waiting caller: most soon wait again."""
_CHECK_SECONDS = 1.0


class Listener:
    """Calls functions when messages are stored.

    Args:
        address: Where the database is; the channel has the name of the schema.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[str, list[Heard]] = {}
        self._thread: threading.Thread | None = None
        self._pause_seconds = 0.0
        self._closed_until = 0.0
        self._left_at = 0.0
        self._fd: int | None = None

    @contextmanager
    def listening(self, recipient: str, heard: Heard) -> Iterator[None]:
        """Within the ``with`` block, call a function when a message may have been stored.

        Args:
            recipient: Whose message.
            heard: Called in another thread; returns at once.
        """
        with self._changed:
            self._waiting.setdefault(recipient, []).append(heard)
            self._start()
        try:
            yield
        finally:
            with self._changed:
                self._waiting[recipient].remove(heard)
                if not self._waiting[recipient]:
                    del self._waiting[recipient]
                self._left_at = time.monotonic()

    def _start(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            self._changed.notify_all()
            return
        thread = threading.Thread(target=self._work, name="ultramon-listener", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the process may have no more threads
            _log.info("messages are polled for, no thread listens: %s", error)
            return
        self._thread = thread

    def _work(self) -> None:
        while self._is_wanted():
            try:
                with psycopg.connect(self._address.conninfo, autocommit=True) as connection:
                    if self._is_direct(connection):
                        self._listen(connection)
            except psycopg.Error as error:
                self._pause(error)
            self._rest()

    def _is_wanted(self) -> bool:
        with self._changed:
            if self._thread is not threading.current_thread():
                return False
            lingers = time.monotonic() - self._left_at < LINGER_SECONDS
            if self._waiting or lingers:
                return True
            self._thread = None
            return False

    def _is_direct(self, connection: psycopg.Connection[tuple[object, ...]]) -> bool:
        """Return whether no pooler is in between: behind one notifications do not arrive."""
        row = connection.execute("SELECT pg_backend_pid()").fetchone()
        if row is not None and row[0] == connection.info.backend_pid:
            return True
        _log.info("%s: behind a pooler messages are polled for", self._address.shown)
        self._closed_until = time.monotonic() + POOLER_PAUSE_SECONDS
        return False

    def _listen(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        connection.execute(f'LISTEN "{self._address.schema}"')
        self._pause_seconds = 0.0
        # Messages stored before this are not notified.
        self._notify(None)
        with self._changed:
            self._fd = connection.fileno()
        try:
            while self._is_wanted():
                for notify in connection.notifies(timeout=_CHECK_SECONDS):
                    self._notify(notify.payload)
        finally:
            with self._changed:
                self._fd = None

    def _notify(self, recipient: str | None) -> None:
        with self._changed:
            names = list(self._waiting) if recipient is None else [recipient]
            called = [heard for name in names for heard in self._waiting.get(name, ())]
        for heard in called:
            heard()

    def _pause(self, error: psycopg.Error) -> None:
        self._pause_seconds = min(
            max(2 * self._pause_seconds, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS
        )
        pause = self._pause_seconds * random.SystemRandom().uniform(0.5, 1.0)
        self._closed_until = time.monotonic() + pause
        _log.debug("messages are polled for, the listener pauses: %s", error)

    def _rest(self) -> None:
        """Wait until it is time to connect again, or no caller waits any more."""
        while (left := self._closed_until - time.monotonic()) > 0 and self._is_wanted():
            with self._changed:
                self._changed.wait(min(left, _CHECK_SECONDS))

    def close(self) -> None:
        """Stop listening; the next caller that waits starts it again."""
        with self._changed:
            thread, self._thread = self._thread, None
            # Only the end of its socket wakes a thread that waits for notifications.
            if self._fd is not None:
                with socket.socket(fileno=os.dup(self._fd)) as connected:
                    connected.shutdown(socket.SHUT_RDWR)
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(2 * _CHECK_SECONDS)

    def after_fork(self) -> None:
        """Begin without a thread in a forked copy."""
        self._reset()
