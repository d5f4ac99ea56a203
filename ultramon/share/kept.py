"""What waits on this machine until the shared database has it: numbered batches of readings.

States need no copy, their newest is in the state files; events wait in the journal. Of readings the
files keep a few only, so each is stored here in the step that notes it as seen: a process killed at
any moment neither loses one nor sees it twice.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ultramon.backends.local.journal import TOOL_TIMEOUT_SECONDS, Journal, execute_with_retry
from ultramon.errors import StateCorruptError, StateError
from ultramon.system import compact_json
from ultramon.system.files import delete_quietly

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence

    from ultramon.backends.local.connection import JournalConnection

_log = logging.getLogger("ultramon.share")

KEPT_FILE = "share.sqlite3"
MAX_KEPT_BYTES = 64 << 20
"""Of batches; readings of 40 busy sessions take some 40 MB a day. The oldest of more are
dropped."""
_CHECK_ROWS = 64
"""The bytes of batches are counted once in so many."""
_CURSOR, _DROPPED = "cursor", "dropped"


class Batch(NamedTuple):
    """Readings that were seen at one look, or none."""

    position: int
    rows: list[list[Any]]
    """The fields of a `Reading` of `ultramon.backends.postgres.store.mirror`, in their order."""


class Waiting(NamedTuple):
    """What waits here."""

    batches: int
    readings: int
    oldest_at: float | None
    """When the oldest one was kept, epoch seconds."""
    dropped: int
    """Readings that were dropped because there was no room."""


class _File(Journal):
    """A SQLite file like the journal, with tables of its own."""

    __slots__ = ()

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.path = os.path.join(directory, KEPT_FILE)

    def _prepare(self, connection: sqlite3.Connection, timeout_seconds: float) -> None:
        execute_with_retry(connection, "PRAGMA journal_mode = WAL", timeout_seconds)
        connection.execute("PRAGMA synchronous = FULL")
        # AUTOINCREMENT gives no number twice, also after its batch was forgotten.
        connection.execute(
            "CREATE TABLE IF NOT EXISTS batches (position INTEGER PRIMARY KEY AUTOINCREMENT,"
            " readings INTEGER NOT NULL, body TEXT NOT NULL, kept_at REAL NOT NULL)"
        )
        connection.execute(
            "CREATE TABLE IF NOT EXISTS seen (agent_id TEXT PRIMARY KEY, point BLOB NOT NULL)"
        )
        connection.execute(
            "CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL)"
        )

    @property
    def cure(self) -> str:
        return "it is set aside, and what the files still hold is read anew"

    def _replace(self) -> str:
        return self._move_away()

    def find_bad_row(self, connection: JournalConnection) -> str | None:
        """Return None: batches are checked as they are sent."""
        return None


class Kept:
    """The file with what waits, of the one process that shares from a state directory.

    Args:
        directory: The state directory.
        max_bytes: Of batches, at most; the oldest of more are dropped, and counted.
    """

    def __init__(self, directory: str, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._file = _File(directory)
        self._max_bytes = max_bytes
        self._appended = 0
        # Stored with the next batch, as each step waits for the disk. After a kill the database
        # says what it has.
        self._forgotten = self._last = 0
        self._cursor: str | None = None

    @property
    def path(self) -> str:
        """The file; it need not be there."""
        return self._file.path

    def append(self, rows: Sequence[Sequence[Any]], seen: Mapping[str, bytes], now: float) -> int:
        """Keep the readings of one look, durably, and note the last one seen of each agent.

        Args:
            rows: As in a `Batch`; may be empty.
            seen: The last point of `ultramon.state.history_ring`, by agent.
            now: Epoch seconds.

        Returns:
            The batch's position, higher than that of all before.

        Raises:
            StateError: This machine's disk refused; nothing was noted.
        """
        body = compact_json.dumps(rows)
        try:
            position = self._append(len(rows), body, seen, now)
        except StateCorruptError as error:
            self._set_aside(error)
            position = self._append(len(rows), body, seen, now)
        self._appended, self._last = self._appended + 1, position
        if self._appended % _CHECK_ROWS == 1:
            self._make_room()
        return position

    def _set_aside(self, error: StateCorruptError) -> None:
        _log.warning("%s", self._file.set_aside(error))
        # The database has batches of these numbers already, and would pass over others of them.
        last, self._forgotten = self._last, 0
        self.begin_behind(last)

    def _append(self, count: int, body: str, seen: Mapping[str, bytes], now: float) -> int:
        with self._file.transaction(TOOL_TIMEOUT_SECONDS) as connection:
            self._forget(connection)
            added = connection.execute(
                "INSERT INTO batches (readings, body, kept_at) VALUES (?, ?, ?)", (count, body, now)
            )
            connection.executemany(
                "INSERT INTO seen VALUES (?, ?)"
                " ON CONFLICT (agent_id) DO UPDATE SET point = excluded.point",
                seen.items(),
            )
            return int(added.lastrowid or 0)

    def _make_room(self) -> None:
        with self._file.transaction(TOOL_TIMEOUT_SECONDS) as connection:
            [(size,)] = connection.execute("SELECT coalesce(sum(length(body)), 0) FROM batches")
            if size <= self._max_bytes:
                return
            freed, last, readings = 0, 0, 0
            rows = "SELECT position, readings, length(body) FROM batches ORDER BY position"
            for position, count, length in connection.execute(rows).fetchall():
                # A tenth at once: to count all of them takes a while.
                if freed >= size - self._max_bytes * 0.9:
                    break
                last, readings, freed = position, readings + count, freed + length
            connection.execute("DELETE FROM batches WHERE position <= ?", (last,))
            connection.execute(
                "INSERT INTO facts VALUES (?, ?) ON CONFLICT (name)"
                " DO UPDATE SET value = CAST(value AS INTEGER) + excluded.value",
                (_DROPPED, str(readings)),
            )

    def oldest(self, most_readings: int, after: int = 0) -> list[Batch]:
        """Return the first batches behind a position, up to so many readings but at least one.

        Raises:
            StateError: This machine's disk refused.
        """
        found: list[Batch] = []
        count = 0
        query = (
            "SELECT position, readings, body FROM batches WHERE position > ?"
            " ORDER BY position LIMIT 200"
        )
        for position, readings, body in self._read(query, max(after, self._forgotten)):
            if found and count + readings > most_readings:
                break
            found.append(Batch(position, _rows_of(body)))
            count += readings
        return found

    def forget(self, position: int, cursor: str | None) -> None:
        """Delete the batches up to a position, and note how far the journal is sent.

        Args:
            position: Of the last one that is sent.
            cursor: Behind the last event that is sent; None = as before.
        """
        self._forgotten = max(self._forgotten, position)
        self._cursor = cursor or self._cursor

    def _forget(self, connection: JournalConnection) -> None:
        connection.execute("DELETE FROM batches WHERE position <= ?", (self._forgotten,))
        if self._cursor is not None:
            connection.execute(
                "INSERT INTO facts VALUES (?, ?)"
                " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (_CURSOR, self._cursor),
            )

    def begin_behind(self, position: int) -> None:
        """Have all positions be higher than one that the database knows.

        It knows a higher one where this file is new: none of what waits here was sent then.
        """
        with self._file.transaction(TOOL_TIMEOUT_SECONDS) as connection:
            row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'batches'")
            [used] = row.fetchone() or (0,)
            if used >= position:
                return
            # From the last on: no number is there twice in between.
            waiting = "SELECT position FROM batches ORDER BY position DESC"
            for (own,) in connection.execute(waiting).fetchall():
                connection.execute(
                    "UPDATE batches SET position = ? WHERE position = ?", (own + position, own)
                )
            connection.execute(
                "INSERT INTO batches (position, readings, body, kept_at) VALUES (?, 0, '[]', 0)",
                (used + position + 1,),
            )
            connection.execute("DELETE FROM batches WHERE position = ?", (used + position + 1,))

    def sent_position(self) -> int:
        """Return the position of the last batch that was sent, 0 before the first."""
        rows = self._read(
            "SELECT coalesce((SELECT min(position) - 1 FROM batches),"
            " (SELECT seq FROM sqlite_sequence WHERE name = 'batches'), 0)"
        )
        return max(int(rows[0][0]), self._forgotten) if rows else 0

    def read_anew(self) -> None:
        """Have the journal be sent from its beginning: the database has nothing of this machine."""
        self._cursor = None
        with self._file.transaction(TOOL_TIMEOUT_SECONDS) as connection:
            connection.execute("DELETE FROM facts WHERE name = ?", (_CURSOR,))

    def seen(self) -> dict[str, bytes]:
        """Return the last point seen of each agent."""
        try:
            return dict(self._read("SELECT agent_id, point FROM seen"))
        except StateCorruptError as error:
            self._set_aside(error)
            return {}

    def forget_agents(self, agent_ids: Sequence[str]) -> None:
        """Forget what was seen of agents that are gone."""
        if not agent_ids:
            return
        with self._file.transaction(TOOL_TIMEOUT_SECONDS) as connection:
            connection.executemany(
                "DELETE FROM seen WHERE agent_id = ?", [(one,) for one in agent_ids]
            )

    def cursor(self) -> str | None:
        """Return how far the journal is sent; None = from its beginning."""
        if self._cursor is not None:
            return self._cursor
        rows = self._read("SELECT value FROM facts WHERE name = ?", _CURSOR)
        return str(rows[0][0]) if rows else None

    def waiting(self, after: int = 0) -> Waiting:
        """Return what waits here behind a position.

        Raises:
            StateError: This machine's disk refused.
        """
        rows = self._read(
            "SELECT count(*), coalesce(sum(readings), 0), min(kept_at) FROM batches"
            " WHERE position > ?",
            max(after, self._forgotten),
        )
        dropped = self._read("SELECT value FROM facts WHERE name = ?", _DROPPED)
        if not rows:
            return Waiting(0, 0, None, 0)
        batches, readings, oldest_at = rows[0]
        return Waiting(batches, readings, oldest_at, int(dropped[0][0]) if dropped else 0)

    def delete(self) -> None:
        """Delete the file."""
        self._file.close()
        for suffix in ("", "-wal", "-shm"):
            delete_quietly(self._file.path + suffix)

    def close(self) -> None:
        """Store what was forgotten, and close the file; the next call opens it again."""
        if self._forgotten or self._cursor is not None:
            with suppress(StateError), self._file.transaction(TOOL_TIMEOUT_SECONDS) as connection:
                self._forget(connection)
        self._file.close()

    def _read(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        if not self._file.exists():
            return []
        with self._file.transaction(TOOL_TIMEOUT_SECONDS, "DEFERRED") as connection:
            # A process that was killed may have left a file without its tables.
            tables = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'facts'")
            if tables.fetchone() == (0,):
                return []
            return connection.execute(query, arguments).fetchall()


def _rows_of(body: object) -> list[list[Any]]:
    """Return the rows of a batch; none of a damaged one."""
    try:
        rows = compact_json.loads(body) if isinstance(body, str) else []
    except ValueError:
        return []
    return [row for row in rows if isinstance(row, list)] if isinstance(rows, list) else []
