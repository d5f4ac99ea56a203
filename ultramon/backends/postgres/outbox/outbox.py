"""The outbox: what is stored during an outage of the database, kept here until it is back.

States with their events, messages and cancels, in order. Each takes effect once, however often it
is delivered: events have keys, states a generation and a sequence, messages a dedupe key, and a
cancel the time up to which it reaches.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ultramon.backends.local.journal import TOOL_TIMEOUT_SECONDS, Journal, execute_with_retry
from ultramon.errors import StateCorruptError
from ultramon.state.event_keys import event_key
from ultramon.system import compact_json
from ultramon.system.files import make_private_directory, open_private
from ultramon.system.locks import Lock

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Sequence

    from ultramon.backends.local.connection import JournalConnection
    from ultramon.backends.local.journal import Transaction

_log = logging.getLogger("ultramon.backend")

STATE = "state"
MESSAGE = "message"
CANCEL = "cancel"
BATCH = 50
LOOK_SECONDS = 15.0
"""How often a process looks for entries of other processes even if no file shows a change."""
_NAME_DIGITS = 12


class Entry(NamedTuple):
    """One entry of the outbox."""

    id: int
    kind: str
    """``state``, ``message`` or ``cancel``."""
    agent_id: str
    """The agent of the state, the recipient of the message, or the sender of the cancelled ones."""
    body: dict[str, Any]


class Kept(NamedTuple):
    """How many entries are kept on this machine."""

    states: int
    messages: int
    """Cancels of messages included."""
    refused: int
    """Entries that can never be stored; they stay as evidence."""
    oldest_at: float | None
    """When the oldest waiting entry was kept, epoch seconds."""


class _File(Journal):
    """A SQLite file like the journal, with a table of its own."""

    __slots__ = ()

    def __init__(self, directory: str, name: str) -> None:
        super().__init__(directory)
        self.path = os.path.join(directory, name)

    def _prepare(self, connection: sqlite3.Connection, timeout_seconds: float) -> None:
        execute_with_retry(connection, "PRAGMA journal_mode = WAL", timeout_seconds)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")  # on macOS, as for the journal
        # AUTOINCREMENT uses no id twice: `forget` cannot delete an entry that replaced another.
        connection.execute(
            "CREATE TABLE IF NOT EXISTS entries"
            " (id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL,"
            "  agent_id TEXT NOT NULL, body TEXT NOT NULL, kept_at REAL NOT NULL, problem TEXT)"
        )
        connection.execute(
            "CREATE INDEX IF NOT EXISTS entries_by_agent ON entries (agent_id, kind)"
            " WHERE problem IS NULL"
        )

    @property
    def cure(self) -> str:
        return "the next entry that is kept sets it aside"

    def _replace(self) -> str:
        return self._move_away()

    def find_bad_row(self, connection: JournalConnection) -> str | None:
        """Return None: entries are checked as they are delivered."""
        return None


class Outbox:
    """One file on this machine for one database, shared by its processes.

    Args:
        url: Of the database, as it is shown; names the file.
        directory: Returns the state directory; called when something has to be kept.
    """

    def __init__(self, url: str, directory: Callable[[], str]) -> None:
        self._name = f"outbox-{hashlib.sha256(url.encode()).hexdigest()[:_NAME_DIGITS]}.sqlite3"
        self._directory = directory
        self._file: _File | None = None
        self._lock = threading.Lock()
        self._is_empty = False
        self._looked_at = 0.0
        self._mark: object = None

    def put_state(self, agent_id: str, document: str, events: Sequence[dict[str, Any]]) -> None:
        """Keep the newest state of an agent durably, and its events that are not stored yet.

        Raises:
            StateError: This machine's disk refused as well.
        """

        def put(connection: sqlite3.Connection) -> None:
            mine = "WHERE kind = ? AND agent_id = ? AND problem IS NULL"
            kept = connection.execute(f"SELECT body FROM entries {mine}", (STATE, agent_id))
            bodies = [_decoded(body) for (body,) in kept.fetchall()]
            known = [event for body in bodies for event in body.get("events", ())]
            # A refused caller comes again with the same events and more.
            merged = {event_key(event): event for event in (*known, *events)}
            connection.execute(f"DELETE FROM entries {mine}", (STATE, agent_id))
            _insert(connection, STATE, agent_id, {"state": document, "events": [*merged.values()]})

        self._keep(put)

    def put(self, kind: str, agent_id: str, body: dict[str, Any]) -> None:
        """Keep a message or a cancel durably. Raises as `put_state`."""
        self._keep(lambda connection: _insert(connection, kind, agent_id, body))

    def _keep(self, put: Callable[[sqlite3.Connection], None]) -> None:
        with self._lock:
            try:
                with self._write() as connection:
                    put(connection)
            except StateCorruptError as error:
                self._quarantine(error)
                with self._write() as connection:
                    put(connection)
            self._is_empty = False

    def _quarantine(self, error: StateCorruptError) -> None:
        _log.warning("%s", self._open().set_aside(error))

    def may_wait(self) -> bool:
        """Return whether an entry may wait, whichever process kept it.

        Costs two looks at files where nothing has changed.
        """
        now, mark = time.monotonic(), self._open().change_mark()
        if self._is_empty and mark == self._mark and now - self._looked_at < LOOK_SECONDS:
            return False
        with self._lock:
            self._looked_at, self._mark = now, mark
            try:
                found = self._read("SELECT 1 FROM entries WHERE problem IS NULL LIMIT 1")
            except StateCorruptError as error:
                self._quarantine(error)
                found = []
            self._is_empty = not found
            return not self._is_empty

    def oldest(self, after: int = 0) -> list[Entry]:
        """Return the first waiting entries after an id.

        Raises:
            StateError: This machine's disk refused.
        """
        return self._entries("id > ? ORDER BY id LIMIT ?", after, BATCH)

    def states_of(self, agent_id: str) -> list[Entry]:
        """Return the waiting states of an agent."""
        return self._entries("kind = ? AND agent_id = ?", STATE, agent_id)

    def _entries(self, which: str, *arguments: object) -> list[Entry]:
        query = f"SELECT id, kind, agent_id, body FROM entries WHERE problem IS NULL AND {which}"
        with self._lock:
            rows = self._read(query, arguments)
        return [Entry(row[0], row[1], row[2], _decoded(row[3])) for row in rows]

    def forget(self, entries: Iterable[Entry]) -> None:
        """Delete stored entries; one that was replaced meanwhile stays."""
        with self._lock, self._write() as connection:
            connection.executemany(
                "DELETE FROM entries WHERE id = ?", [(entry.id,) for entry in entries]
            )

    def set_aside(self, entry: Entry, problem: str) -> None:
        """Set an entry aside that can never be stored; it stays as evidence."""
        with self._lock, self._write() as connection:
            connection.execute("UPDATE entries SET problem = ? WHERE id = ?", (problem, entry.id))

    def only_one(self) -> Lock:
        """Return a ``with`` block that one process of this machine enters at a time.

        Raises:
            LockedError: Another one is within.
        """
        return Lock(f"{self._open().path}.lock", open_private, 0.0)

    @property
    def path(self) -> str:
        """The file; it need not be there."""
        return self._open().path

    def kept(self) -> Kept:
        """Return how many entries are kept on this machine.

        Raises:
            StateError: This machine's disk refused.
        """
        with self._lock:
            rows = self._read(
                "SELECT coalesce(sum(kind = ? AND problem IS NULL), 0),"
                " coalesce(sum(kind != ? AND problem IS NULL), 0),"
                " coalesce(sum(problem IS NOT NULL), 0),"
                " min(CASE WHEN problem IS NULL THEN kept_at END) FROM entries",
                (STATE, STATE),
            )
        return Kept(*rows[0]) if rows else Kept(0, 0, 0, None)

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        with self._lock:
            if self._file is not None:
                self._file.close()

    def after_fork(self) -> None:
        """Replace a lock that another thread of the parent may have held."""
        self._lock = threading.Lock()

    def _open(self) -> _File:
        if self._file is None:
            self._file = _File(self._directory(), self._name)
        return self._file

    def _write(self) -> Transaction:
        file = self._open()
        make_private_directory(os.path.dirname(file.path))
        return file.transaction(TOOL_TIMEOUT_SECONDS)

    def _read(self, query: str, arguments: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        file = self._open()
        if not file.exists():
            return []
        # A process that was killed may have left a file without its table.
        with file.transaction(TOOL_TIMEOUT_SECONDS, "DEFERRED") as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall():
                return []
            return connection.execute(query, arguments).fetchall()


def _decoded(body: str) -> dict[str, Any]:
    """Return the body of an entry; empty when it is damaged."""
    try:
        value = compact_json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _insert(connection: sqlite3.Connection, kind: str, agent_id: str, body: Any) -> None:
    connection.execute(
        "INSERT INTO entries (kind, agent_id, body, kept_at) VALUES (?, ?, ?, ?)",
        (kind, agent_id, compact_json.dumps(body), time.time()),
    )
