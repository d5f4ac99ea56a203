"""Transactions in one database, with its errors as ultramon's."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors as pg
from psycopg.pq import TransactionStatus

from ultramon.backends.postgres.connection.connections import (
    SILENCE_SECONDS,
    Connections,
    PooledConnection,
)
from ultramon.backends.postgres.schema.tables import SCHEMA_VERSION
from ultramon.backends.store_time import NOTICED_SKEW_SECONDS, skew
from ultramon.errors import StateSchemaError, StateWriteError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from ultramon.backends.postgres.connection.address import Address

    Connection = PooledConnection

_log = logging.getLogger("ultramon.backend")

MAX_CONNECTIONS = 4
FIRST_CONNECT_SECONDS = 5.0
CONNECT_SECONDS = 1.0
"""How long a further connection may take to a server that was reached before."""
_TRUSTED_SECONDS = 0.5
"""A connection that answered so recently is not asked again whether it does."""
_AWAY_SECONDS = 0.5
"""How long a screen that did without the database does not ask it again."""
LONG_SILENCE_SECONDS = 60.0
"""For what a person waits for, and what reads whole tables."""
_BEGIN = (
    "BEGIN; SET LOCAL lock_timeout = '{lock}ms'; SET LOCAL statement_timeout = '{statement}ms';"
    " SET LOCAL idle_in_transaction_session_timeout = '10s'"
)
# For what may be lost in a power cut, see `Backend.record`.
_LAZILY = "; SET LOCAL synchronous_commit = off"
_LOCK_SECONDS = 2.0


class DatabaseAwayError(StateWriteError):
    """The database is unreachable or refuses for now; the outbox can be stored later."""


class StoreNotReadyError(StateSchemaError):
    """The database has no tables of this version."""


class Database:
    """The database of one backend.

    Args:
        address: Where it is.
        max_connections: Of this process, at most; opened when they are needed.

    Attributes:
        skew_seconds: How far the server's clock is ahead of this machine's; 0.0 when it is less
            than a second. Asked with each new connection, and when this machine's clock was set.
        was_connected: Whether the server was reached before.
        look_seconds: How long a screen waits to learn that the database does not answer; None = as
            long as an agent. A question that takes long is waited for all the same.
    """

    def __init__(self, address: Address, max_connections: int = MAX_CONNECTIONS) -> None:
        self.address = address
        self.skew_seconds = 0.0
        self._clock_offset: float | None = None
        self._connections = Connections(address, max_connections)
        self.was_connected = False
        self.look_seconds: float | None = None
        self._away_until, self._reason = float("-inf"), ""

    def select(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        """Return the rows that a query finds. Raises as `connection`."""
        with self.connection() as connection:
            return connection.execute(query, arguments).fetchall()

    def change(self, statement: str, *arguments: object) -> int:
        """Return how many rows a statement changed, durably. Raises as `transaction`."""
        with self.transaction() as connection:
            return connection.execute(statement, arguments).rowcount

    @contextmanager
    def connection(
        self,
        timeout_seconds: float = 5.0,
        *,
        silence_seconds: float = SILENCE_SECONDS,
        within_seconds: float = float("inf"),
        is_checked: bool = True,
    ) -> Iterator[Connection]:
        """Lend a connection; each statement is a transaction of its own.

        Args:
            timeout_seconds: How long to wait until one is free. A new one may take a second, the
                first one this long.
            silence_seconds: How long to wait for an answer to begin, or to continue.
            within_seconds: How long all of it may take, if there is a limit.
            is_checked: False = the database may have no tables yet, or those of another version.

        Raises:
            DatabaseAwayError: The database cannot be reached, fell silent, or has too much to do.
            StateWriteError: The database refused.
            StateSchemaError: Its tables are of another version.
        """
        began = time.monotonic()
        connection = self._lend(min(timeout_seconds, within_seconds))
        self.was_connected = True
        connection.deadline = began + within_seconds
        try:
            if self.look_seconds is not None:
                self._probe(connection, began + self.look_seconds, is_checked=is_checked)
            connection.silence_seconds = silence_seconds
            if is_checked:
                self._check(connection)
            yield connection
        except (pg.QueryCanceled, pg.LockNotAvailable, pg.DeadlockDetected) as error:
            raise self._away("is busy", error) from error
        except pg.ReadOnlySqlTransaction as error:
            raise self._away("is only a copy", error) from error
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise self._away("does not answer", error) from error
        except (pg.UndefinedTable, pg.UndefinedColumn, pg.InvalidSchemaName) as error:
            raise self._unprepared(_first_line(error)) from error
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            reason = f"the database refused: {_first_line(error)}"
            raise StateWriteError(self.address.shown, reason) from error
        except psycopg.Error as error:
            # Not because of the values, e.g. for want of a permission that can be granted.
            raise self._away("refused", error) from error
        finally:
            self._connections.give_back(connection)

    def _lend(self, timeout_seconds: float) -> Connection:
        longest = CONNECT_SECONDS if self.was_connected else FIRST_CONNECT_SECONDS
        if self.look_seconds is not None:
            timeout_seconds = min(timeout_seconds, self.look_seconds)
            longest = min(longest, self.look_seconds)
            if time.monotonic() < self._away_until:
                raise DatabaseAwayError(self.address.shown, f"{self._reason} (a moment ago)")
        try:
            return self._connections.lend(timeout_seconds, longest)
        except psycopg.Error as error:
            away = self._away("cannot be reached", error)
            self._note_away(away)
            raise away from error

    def _probe(self, connection: Connection, until: float, *, is_checked: bool) -> None:
        """Ask the server for a sign of life, unless it has just given one.

        A question that is silent for long may be a large one: this one is not.
        """
        if time.monotonic() - connection.idle_since < _TRUSTED_SECONDS and (
            connection.clock_offset is not None
        ):
            return
        connection.silence_seconds = max(until - time.monotonic(), 0.0)
        try:
            if is_checked:
                self._check(connection)
            connection.execute("SELECT 1")
        except psycopg.OperationalError as error:
            self._note_away(self._away("does not answer", error))
            raise

    def _note_away(self, away: DatabaseAwayError) -> None:
        # What a screen reads next would wait as long once more.
        self._away_until, self._reason = time.monotonic() + _AWAY_SECONDS, away.reason

    def for_admin(self) -> AbstractContextManager[Connection]:
        """Lend a connection to a database that may have no tables yet. See `connection`."""
        return self.connection(silence_seconds=LONG_SILENCE_SECONDS, is_checked=False)

    @contextmanager
    def transaction(
        self,
        *,
        durable: bool = True,
        timeout_seconds: float = 5.0,
        silence_seconds: float = SILENCE_SECONDS,
        within_seconds: float = float("inf"),
    ) -> Iterator[Connection]:
        """Lend a connection for one transaction. See `connection`.

        Args:
            durable: False = a power cut of the server may undo the last half second.
            timeout_seconds: How long to wait for a connection.
            silence_seconds: How long to wait for an answer, and the server for a statement.
            within_seconds: How long all of it may take.

        Raises:
            StateWriteError: As for `connection`. Nothing was stored, unless the database fell
                silent during the commit: then the outcome is unknown.
        """
        lent = self.connection(
            timeout_seconds, silence_seconds=silence_seconds, within_seconds=within_seconds
        )
        with lent as connection:
            longest = min(silence_seconds, within_seconds)
            begin = _BEGIN.format(
                lock=round(1000 * min(_LOCK_SECONDS, longest)), statement=round(1000 * longest)
            )
            connection.execute(begin if durable else begin + _LAZILY)
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                _roll_back(connection)

    def read_clock(self) -> None:
        """Make `skew_seconds` that of now: this machine's clock may have been set meanwhile.

        Raises:
            StateError: As `connection`, where the server has to be asked.
        """
        if self._clock_offset is None or _was_set(self._clock_offset):
            with self.connection():
                pass

    def to_server(self, at: float) -> float:
        """Return a time of this machine's clock by the server's. Raises as `read_clock`."""
        self.read_clock()
        return at + self.skew_seconds

    def from_server(self, at: float) -> float:
        """Return a time of the server's clock by this machine's."""
        return at - self.skew_seconds

    def close(self) -> None:
        """Close all connections; the next call opens them again."""
        self._connections.close()

    def after_fork(self) -> None:
        """Leave the connections of the parent alone in a forked copy."""
        self._connections.after_fork()

    def _check(self, connection: PooledConnection) -> None:
        """Read the server's clock, and make sure that its tables are of this version.

        Once a connection, and again when this machine's clock was set.
        """
        if connection.clock_offset is not None and not _was_set(connection.clock_offset):
            return
        offset = time.time() - time.monotonic()
        before = time.time()
        [(server_at, version)] = connection.execute(
            "SELECT extract(epoch FROM clock_timestamp())::float8,"
            " (SELECT value FROM ultramon.meta WHERE key = 'schema_version')"
        )
        after = time.time()
        self._set_skew(skew(server_at, (before + after) / 2))
        self._clock_offset = offset
        if version is None or int(version) < SCHEMA_VERSION:
            raise self._unprepared(f"its tables have version {version}")
        self.refuse_newer(int(version))
        connection.clock_offset = offset

    def refuse_newer(self, version: int) -> None:
        """Raise `StateSchemaError` for tables of a version that this ultramon does not know."""
        if version > SCHEMA_VERSION:
            raise StoreNotReadyError(
                self.address.shown,
                f"version {version} was written by a newer ultramon, this one knows"
                f" {SCHEMA_VERSION}",
                "upgrade ultramon",
            )

    def _set_skew(self, seconds: float) -> None:
        former, self.skew_seconds = self.skew_seconds, seconds
        if abs(seconds - former) >= NOTICED_SKEW_SECONDS:
            _log.warning(
                "the clock of %s is %.1f s ahead of this machine's; its clock counts",
                self.address.shown,
                seconds,
            )

    def _away(self, what: str, error: psycopg.Error) -> DatabaseAwayError:
        reason = " ".join(str(error).split()) or type(error).__name__
        return DatabaseAwayError(self.address.shown, f"the database {what}: {reason}")

    def _unprepared(self, problem: str) -> StoreNotReadyError:
        return StoreNotReadyError(
            self.address.shown,
            f"the store is not ready: {problem}",
            "`ultramon backend init` makes its tables, `ultramon backend migrate` brings them up"
            " to date",
        )


def _was_set(clock_offset: float) -> bool:
    """Return whether the wall clock was set since it was so far ahead of the monotonic clock."""
    return skew(time.time() - time.monotonic(), clock_offset) != 0.0


def _first_line(error: psycopg.Error) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _roll_back(connection: Connection) -> None:
    """Roll back what was not committed; a statement under way is ended with its connection."""
    status = connection.info.transaction_status
    if status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
        try:
            connection.execute("ROLLBACK")
        except psycopg.Error:
            connection.close()
    elif status != TransactionStatus.IDLE:
        connection.close()
