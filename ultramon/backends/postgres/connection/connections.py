"""A small connection pool, shared by the threads of a process, in which no caller waits for long.

Connections are opened by a thread of their own, so that a caller waits no longer than its timeout,
and gets a refusal at once, in the server's words. A server that does not answer is tried again
after a growing pause; until then every request for a new connection fails at once.
"""

from __future__ import annotations

import os
import random
import select
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.pq import ConnStatus, TransactionStatus

if TYPE_CHECKING:
    from psycopg.abc import Params, PQGen
    from psycopg.errors import Diagnostic

    from ultramon.backends.postgres.connection.address import Address

    Result = TypeVar("Result")

FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 10.0
"""Between two attempts to connect. A thousand processes then return at some 100 a second."""
SILENCE_SECONDS = 5.0
IDLE_SECONDS = 60.0
_MOST_READS = 10


class PooledConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that fails when the server falls silent, which TCP alone would wait out.

    In its statements ``ultramon.`` stands for the schema of the store.

    Attributes:
        address: Where the store is.
        silence_seconds: How long an answer may take to begin, or to continue.
        deadline: Monotonic time of the last wait for an answer.
        clock_offset: Between wall clock and monotonic clock when the server's clock was read; None
            before.
        idle_since: Monotonic time at which it was given back.
        last_words: The server's message when it ended the idle connection.
    """

    address: Address
    silence_seconds = SILENCE_SECONDS
    deadline = float("inf")
    clock_offset: float | None = None
    idle_since = 0.0
    last_words: list[str]

    def __del__(self, *_: Any) -> None:
        """Emit no warning: an idle connection ends with the program."""

    def execute(
        self, query: Any, params: Params | None = None, **given: Any
    ) -> psycopg.Cursor[tuple[Any, ...]]:
        """Execute a statement. See `psycopg.Connection.execute`."""
        return super().execute(self.address.sql(query), params, **given)

    def wait(self, gen: PQGen[Result], *args: Any, **given: Any) -> Result:
        """Drive one exchange with the server. See `psycopg.Connection.wait`."""
        return super().wait(self._until_silent(gen), *args, **given)

    def _until_silent(self, exchange: PQGen[Result]) -> PQGen[Result]:
        heard_at = time.monotonic()
        try:
            wanted = next(exchange)
            while True:
                ready = yield wanted
                now = time.monotonic()
                if ready:
                    heard_at = now
                elif now >= min(heard_at + self.silence_seconds, self.deadline):
                    raise psycopg.OperationalError(f"no answer for {now - heard_at:.1f} s")
                wanted = exchange.send(ready)
        except StopIteration as end:
            result: Result = end.value
            return result

    def is_usable(self) -> bool:
        """Return whether it is idle and the server has not ended it meanwhile."""
        pgconn = self.pgconn
        if pgconn.status != ConnStatus.OK or pgconn.transaction_status != TransactionStatus.IDLE:
            return False
        try:
            for _ in range(_MOST_READS):
                if not _has_news(pgconn.socket):
                    return not self.last_words
                pgconn.consume_input()
                pgconn.is_busy()  # parses the message into `last_words`
        except psycopg.Error:
            return False
        return False


class _Attempt:
    """One attempt to connect."""

    def __init__(self) -> None:
        self.started_at = time.monotonic()
        self.error: Exception | None = None


class Connections:
    """Lends connections of one pool.

    Args:
        address: Where the database is.
        most: How many there may be at a time.
    """

    # Sockets that a forked copy shares with its parent must be neither used nor closed there.
    _inherited: list[object] = []  # noqa: RUF012 - shared on purpose

    def __init__(self, address: Address, most: int) -> None:
        self._address = address
        self._most = most
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._pid = os.getpid()
        self._idle: list[PooledConnection] = []
        self._lent: set[PooledConnection] = set()
        self._attempt: _Attempt | None = None
        self._round = 0
        self._failure = ""
        self._pause_seconds = 0.0
        self._closed_until = 0.0

    def lend(self, timeout_seconds: float, connect_seconds: float) -> PooledConnection:
        """Lend a connection; give it back with `give_back`.

        Args:
            timeout_seconds: How long to wait for one.
            connect_seconds: How long an attempt to connect, which others may have begun, is waited
                for. It continues, and a later caller finds the connection.

        Raises:
            psycopg.OperationalError: There is none.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while True:
                connection = self._find_usable()
                if connection is not None:
                    self._lent.add(connection)
                    return connection
                attempt = self._attempt or self._begin_attempt()
                until = deadline
                if attempt is not None:
                    until = min(deadline, attempt.started_at + connect_seconds)
                elif not self._lent:
                    raise psycopg.OperationalError(f"{self._failure} (a moment ago)")
                left = until - time.monotonic()
                if left > 0:
                    self._changed.wait(left)
                elif attempt is None:
                    in_use = f"all {len(self._lent)} connections are in use"
                    raise psycopg.OperationalError(f"{in_use}{self._why_no_more()}")
                else:
                    silent = time.monotonic() - attempt.started_at
                    raise psycopg.OperationalError(f"not connected after {silent:.1f} s")
                if attempt is not None and attempt.error is not None and not self._lent:
                    raise psycopg.OperationalError(self._failure) from attempt.error

    def _find_usable(self) -> PooledConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable():
                return connection
            connection.close()
        return None

    def _begin_attempt(self) -> _Attempt | None:
        """Begin to connect, unless it is too early, or there are enough connections."""
        if len(self._lent) >= self._most or time.monotonic() < self._closed_until:
            return None
        attempt = self._attempt = _Attempt()
        thread = threading.Thread(
            target=self._connect, args=(attempt, self._round), name="ultramon-connect", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # the process may have no more threads
            self._end_attempt(attempt, error)
        return attempt

    def _why_no_more(self) -> str:
        return f", and {self._failure}" if time.monotonic() < self._closed_until else ""

    def _connect(self, attempt: _Attempt, current_round: int) -> None:
        connection: PooledConnection | None = None
        error: Exception | None = psycopg.OperationalError("connecting was interrupted")
        try:
            # No statement is prepared: behind a pooler each may reach another server process. And
            # transactions begin by statements, which bring their time limits.
            conninfo = self._address.conninfo
            connection = PooledConnection.connect(conninfo, autocommit=True, prepare_threshold=None)
            connection.address = self._address
            words: list[str] = []
            connection.last_words = words
            connection.add_notice_handler(partial(_note_end, words))
            error = None
        except psycopg.Error as refusal:
            error = refusal
        finally:
            with self._changed:
                if connection is not None and current_round == self._round:
                    connection.idle_since = time.monotonic()
                    self._idle.append(connection)
                elif connection is not None:
                    connection.close()
                if current_round == self._round:
                    self._end_attempt(attempt, error)

    def _end_attempt(self, attempt: _Attempt, error: Exception | None) -> None:
        self._attempt = None
        if error is None:
            self._pause_seconds = self._closed_until = 0.0
        else:
            attempt.error = error
            self._failure = " ".join(str(error).split()) or type(error).__name__
            self._pause_seconds = min(
                max(2 * self._pause_seconds, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS
            )
            # Jittered, so that a thousand processes do not come back in the same moment.
            pause = self._pause_seconds * random.SystemRandom().uniform(0.5, 1.0)
            self._closed_until = time.monotonic() + pause
        self._changed.notify_all()

    def give_back(self, connection: PooledConnection) -> None:
        """Take a connection back; one that is not idle is closed."""
        if self._pid != os.getpid():
            return  # a forked copy's: it belongs to the parent
        with self._changed:
            if connection not in self._lent:
                connection.close()  # lent before `close`
                return
            self._lent.discard(connection)
            now = connection.idle_since = time.monotonic()
            while self._idle and self._idle[0].idle_since < now - IDLE_SECONDS:
                self._idle.pop(0).close()
            if connection.is_usable():
                self._idle.append(connection)
            else:
                connection.close()
            self._changed.notify_all()

    def close(self) -> None:
        """Close idle connections now, and lent ones when they are given back."""
        with self._changed:
            idle, self._idle = self._idle, []
            self._lent.clear()
            self._round += 1
            self._attempt = None
            self._changed.notify_all()
        for connection in idle:
            connection.close()

    def after_fork(self) -> None:
        """Begin without connections in a forked copy."""
        self._inherited.extend((*self._idle, *self._lent))
        self._reset()


def _note_end(words: list[str], said: Diagnostic) -> None:
    if said.severity_nonlocalized in ("FATAL", "PANIC"):
        words.append(said.message_primary or "")


if hasattr(select, "poll"):

    def _has_news(fd: int) -> bool:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(0))

else:  # Windows, where descriptors of sockets are not numbered from 0 either

    def _has_news(fd: int) -> bool:
        return bool(select.select([fd], [], [], 0)[0])
