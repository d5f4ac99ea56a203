"""The journal: one SQLite file of events, claims and consumers beside the state files.

Events are appended once per key and read in commit order. Registrations and the message queue are
further tables of the same file: `ultramon.backends.local.queue` and `registry`. All tables are
defined in `ultramon.backends.local.schema`.
"""

from __future__ import annotations

import os
import time

from ultramon.backends.lease_holder import is_gone
from ultramon.backends.local.event_rows import insert_event, position_of
from ultramon.backends.local.level_marks import is_due, remove_mark, write_mark
from ultramon.backends.local.message_rows import forget
from ultramon.backends.local.route_rows import JournalRows
from ultramon.backends.local.schema import SCHEMA_VERSION, migrate
from ultramon.backends.local.transaction import Transaction
from ultramon.errors import StateCorruptError, StateError, StateSchemaError, StateWriteError
from ultramon.notices.router import route, route_noted
from ultramon.notices.texts import ENDS
from ultramon.system import compact_json
from ultramon.system.files import check_private
from ultramon.system.ids import random_hex
from ultramon.system.timestamps import format_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence
    from typing import Any

    from ultramon.backends.local.route_rows import Mark
    from ultramon.state.record import StateRecord

JOURNAL = "journal.sqlite3"
AGENT_TIMEOUT_SECONDS = 0.05
"""How long a write on an agent's or a hook's path waits for another writer."""
TOOL_TIMEOUT_SECONDS = 5.0
"""The same for everything a person or an orchestrator waits for."""
_RETRY_SECONDS = 0.002


def _read_event(payload: str) -> dict[str, Any] | None:
    """Return a stored event; None for a damaged row, which must not stop the readers behind it."""
    try:
        event = compact_json.loads(payload)
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("type"), str) else None


def execute_with_retry(
    connection: sqlite3.Connection, statement: str, timeout_seconds: float
) -> None:
    """Execute a statement as soon as no other writer holds the lock, retrying in small steps.

    SQLite itself retries less and less often, at last every 100 ms: of eight busy writers one then
    waited more than 5 s.
    """
    import sqlite3

    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            connection.execute(statement)
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= deadline:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return


class Journal:
    """The SQLite file under a state directory. One object serves one process; not thread-safe.

    Args:
        directory: The state directory; it must exist before anything is written.
    """

    __slots__ = ("_connection", "_directory", "_identity", "_is_prepared", "_pid", "path")

    # A connection opened before a fork must be neither used nor closed in the child.
    _inherited: list[object] = []  # noqa: RUF012 - shared on purpose

    def __init__(self, directory: str) -> None:
        self.path = os.path.join(directory, JOURNAL)
        self._directory = directory
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._is_prepared = False
        self._pid = 0

    def exists(self) -> bool:
        """Return whether anything was ever written; reading makes no journal."""
        return os.path.exists(self.path)

    def close(self) -> None:
        """Close the connection; the next call opens it again."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._pid == os.getpid():
            connection.close()
        else:
            self._inherited.append(connection)

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        # At the end of the interpreter the globals of this module may be gone.
        if self._connection is not None and self._pid == getpid():
            self._connection.close()

    def _open(self, timeout_seconds: float, *, to_write: bool) -> sqlite3.Connection:
        import sqlite3

        is_ours = self._pid == os.getpid()
        if self._connection is not None and not (is_ours and self._identity == self._find()):
            self.close()
        if self._connection is None:
            self._create_private()
            self._identity = self._find()
            self._connection = sqlite3.connect(
                self.path, timeout=timeout_seconds, isolation_level=None, check_same_thread=False
            )
            self._pid = os.getpid()
            self._is_prepared = False
        # A reader must not shut out an older ultramon that still writes this journal.
        if to_write and not self._is_prepared:
            self._prepare(self._connection, timeout_seconds)
            self._is_prepared = True
        return self._connection

    def _prepare(self, connection: sqlite3.Connection, timeout_seconds: float) -> None:
        # Where two processes make the file at once, SQLite refuses one without waiting for it.
        execute_with_retry(connection, "PRAGMA journal_mode = WAL", timeout_seconds)
        # WAL + NORMAL lost acknowledged rows in every simulated power cut, FULL none in 18.
        connection.execute("PRAGMA synchronous = FULL")
        if self.version(connection) < SCHEMA_VERSION:
            migrate(connection)

    def _find(self) -> tuple[int, int] | None:
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            return None
        check_private(found, self.path)
        return found.st_dev, found.st_ino

    def _create_private(self) -> None:
        # Never opened when it is there: closing a second descriptor drops the locks of SQLite's.
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
        try:
            os.close(os.open(self.path, flags, 0o600))
            os.chmod(self.path, 0o600)  # a umask may have removed bits
        except FileExistsError:
            pass

    def version(self, connection: sqlite3.Connection) -> int:
        """Return the version of the tables, 0 before there are any.

        Raises:
            StateSchemaError: A newer ultramon wrote the journal.
        """
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise StateSchemaError(
                self.path,
                f"journal version {version} was written by a newer ultramon, "
                f"this one knows {SCHEMA_VERSION}",
                "upgrade ultramon",
            )
        return version

    def transaction(self, timeout_seconds: float, kind: str = "IMMEDIATE") -> Transaction:
        """Return a transaction as a ``with`` block.

        Args:
            timeout_seconds: How long to wait for another writer.
            kind: ``IMMEDIATE`` to write; ``DEFERRED`` to read, which brings no older journal up to
                date.
        """

        def begin() -> sqlite3.Connection:
            to_write = kind == "IMMEDIATE"
            connection = self._open(timeout_seconds, to_write=to_write)
            milliseconds = 0 if to_write else int(timeout_seconds * 1000)
            connection.execute(f"PRAGMA busy_timeout = {milliseconds}")
            if to_write:
                execute_with_retry(connection, "BEGIN IMMEDIATE", timeout_seconds)
            else:
                connection.execute("BEGIN DEFERRED")
            return connection

        return Transaction(self.path, begin)

    def quarantine(self) -> str | None:
        """Set an unreadable journal aside as evidence, with its write-ahead log.

        Returns:
            The new path; None when another process has set it aside already, or it can be read
            after all.

        Raises:
            StateWriteError: The file system refused.
        """
        self.close()
        if self._is_sound():
            return None
        kept = f"{self.path}.corrupt-{random_hex(4)}"
        try:
            found = os.lstat(self.path)
            if self._identity not in (None, (found.st_dev, found.st_ino)):
                return None
            os.rename(self.path, kept)
            for suffix in ("-wal", "-shm"):
                try:
                    os.rename(self.path + suffix, kept + suffix)
                except FileNotFoundError:
                    continue
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateWriteError(self.path, f"cannot be set aside: {error.strerror}") from error
        return kept

    def set_aside(self, error: StateCorruptError) -> str:
        """Do what `quarantine` does, after an error; return both as text for a log.

        Raises:
            StateWriteError: The file system refused.
        """
        kept = self.quarantine()
        return f"{error}; " + ("it can be read again" if kept is None else f"set aside as {kept}")

    def _is_sound(self) -> bool:
        """Return whether no damage is found: SQLite reports one failed read as "malformed"."""
        try:
            with self.transaction(0.0, "DEFERRED") as connection:
                return bool(connection.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok")
        except StateCorruptError:
            return False
        except StateError:
            return True  # busy, or gone
        finally:
            self.close()

    def append(
        self,
        events: Sequence[dict[str, Any]],
        timeout_seconds: float,
        record: StateRecord | None = None,
        *,
        known: Sequence[StateRecord] = (),
    ) -> None:
        """Store events durably, each once per key, together with the notices they lead to.

        Args:
            events: With ``agentId``, ``run``, ``generation``, ``epoch``, ``type``, ``occurredAt``.
                One whose key is there already changes nothing.
            timeout_seconds: How long to wait for another writer.
            record: The state that they led to, as its owner stores it; None for events without
                one. Without events the journal is opened only if the state `is_due`.
            known: Without a record: states of the agents that the events are about.

        Raises:
            StateWriteError: Busy beyond the timeout, or the disk refused; nothing was stored.
            StateCorruptError: The journal is not a readable database.
        """
        if not events and not (record is not None and self.is_due(record)):
            return
        with self.transaction(timeout_seconds) as connection:
            new = [event for event in events if insert_event(connection, event)]
            rows = JournalRows(connection)
            if record is None:
                route_noted(rows, new, known)
                ended = {event["agentId"] for event in new if event["type"] in ENDS}
                marks = {agent_id: rows.mark(rows.registration(agent_id)) for agent_id in ended}
            else:
                registration = route(rows, record, new, record.last_heartbeat)
                marks = {record.agent_id: rows.mark(registration)}
        try:
            for agent_id, mark in marks.items():
                if mark is not None if record is None else self.is_due(record):
                    self.sync_mark(agent_id, mark)
        except StateError:
            return  # the next save tries again

    def sync_mark(self, agent_id: str, mark: Mark | None) -> None:
        """Bring an agent's mark in line with the database, however many writers change both.

        Called after each commit that changes it; repeated until it reads back what it wrote.

        Args:
            agent_id: The agent.
            mark: As `JournalRows.mark` gave it before the commit.

        Raises:
            StateError: The journal or the file system refused.
        """
        written: object = ...
        while mark != written:
            written = mark
            if mark is None:
                self.remove_mark(agent_id)
            else:
                self.write_mark(agent_id, *mark)
            with self.transaction(TOOL_TIMEOUT_SECONDS, "DEFERRED") as connection:
                rows = JournalRows(connection)
                mark = rows.mark(rows.registration(agent_id))

    def is_due(self, record: StateRecord) -> bool:
        """Return whether a state may lead to a notice; cheap, and without the database."""
        return is_due(self._directory, record)

    def write_mark(
        self, agent_id: str, ladder: dict[str, Any] | None, announced: tuple[int, str] | None
    ) -> None:
        """Have every writer of an agent's state check whether it is due. See `level_marks`.

        Raises:
            StateError: The file system refused.
        """
        write_mark(self._directory, agent_id, ladder, announced)

    def remove_mark(self, agent_id: str) -> None:
        """Delete that mark."""
        remove_mark(self._directory, agent_id)

    def tail(self, after: str | None, limit: int) -> tuple[list[dict[str, Any]], str, list[str]]:
        """Read events in commit order.

        Args:
            after: A cursor that this method returned, or None for the beginning.
            limit: At most so many events.

        Returns:
            The events, the cursor behind the last one, and the cursor behind each. Writers of a
            SQLite file commit one after the other, so that no event can appear behind a cursor
            later.
        """
        position = position_of(after)
        if not self.exists():
            return [], str(position), []
        with self.transaction(TOOL_TIMEOUT_SECONDS, "DEFERRED") as connection:
            query = "SELECT id, payload FROM events WHERE id > ? ORDER BY id LIMIT ?"
            # The first writer may have made the file and not its tables yet.
            has_tables = self.version(connection) > 0
            rows = connection.execute(query, (position, limit)).fetchall() if has_tables else []
        if rows:
            position = rows[-1][0]
        read = [(str(number), _read_event(payload)) for number, payload in rows]
        cursors = [cursor for cursor, event in read if event]
        return [event for _, event in read if event], str(position), cursors

    def mentions(self, agent_ids: Sequence[str]) -> set[str]:
        """Return which agents have events, those without a state too."""
        if not agent_ids or not self.exists():
            return set()
        places = ", ".join("?" * len(agent_ids))
        query = f"SELECT DISTINCT agent_id FROM events WHERE agent_id IN ({places})"
        with self.transaction(TOOL_TIMEOUT_SECONDS, "DEFERRED") as connection:
            has_tables = self.version(connection) > 0
            rows = connection.execute(query, tuple(agent_ids)).fetchall() if has_tables else []
        return {agent_id for (agent_id,) in rows}

    def subscribe(
        self, name: str, holder: str, now: float, lease_seconds: float
    ) -> tuple[str | None, dict[str, Any]] | None:
        """Become or stay the one holder of a consumer name.

        Returns:
            The cursor and memory of the name, or None while the lease of another holder runs that
            has not provably ended.
        """
        with self.transaction(TOOL_TIMEOUT_SECONDS) as connection:
            held = connection.execute(
                "SELECT holder, lease_until, cursor, memory FROM consumers WHERE name = ?", (name,)
            ).fetchone()
            other, lease_until, cursor, memory = held or (None, 0.0, None, "{}")
            if other not in (None, holder) and lease_until > now and not is_gone(other):
                return None
            connection.execute(
                "INSERT INTO consumers VALUES (?, NULL, '{}', ?, ?)"
                " ON CONFLICT (name) DO UPDATE SET holder = excluded.holder,"
                " lease_until = excluded.lease_until",
                (name, holder, now + lease_seconds),
            )
        return cursor, compact_json.loads(memory)

    def acknowledge(self, name: str, holder: str, cursor: str, memory: dict[str, Any]) -> bool:
        """Store a consumer's cursor and memory; False when another holder has the name."""
        with self.transaction(TOOL_TIMEOUT_SECONDS) as connection:
            done = connection.execute(
                "UPDATE consumers SET cursor = ?, memory = ? WHERE name = ? AND holder = ?",
                (cursor, compact_json.dumps(memory), name, holder),
            )
        return done.rowcount == 1

    def unsubscribe(self, name: str, holder: str) -> None:
        """End the lease of a holder; the consumer's cursor and memory stay."""
        if not self.exists():
            return
        with self.transaction(TOOL_TIMEOUT_SECONDS) as connection:
            connection.execute(
                "UPDATE consumers SET holder = NULL WHERE name = ? AND holder = ?", (name, holder)
            )

    def prune(self, before: float, agents: Sequence[str] = ()) -> int:
        """Delete events and dead messages older than a time, and what belongs to deleted agents.

        Args:
            before: Epoch seconds.
            agents: Their messages go, whatever their age.

        Returns:
            How many events were deleted.
        """
        if not self.exists():
            return 0
        with self.transaction(TOOL_TIMEOUT_SECONDS) as connection:
            cursor = connection.execute(
                "DELETE FROM events WHERE occurred_at < ?", (format_time(before),)
            )
            forget(connection, before, agents)
        for agent_id in agents:
            self.remove_mark(agent_id)
        return cursor.rowcount
