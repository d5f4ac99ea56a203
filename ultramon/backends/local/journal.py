"""The journal: one SQLite file of events, claims and consumers beside the state files.

Events are appended once per key and read in commit order. Registrations and the message queue are
further tables of the same file: `ultramon.backends.local.queue` and `registry`. All tables are
defined in `ultramon.backends.local.schema`.
"""

from __future__ import annotations

import os
import time
from _thread import RLock  # as `threading.RLock`, without what a hook would pay for that module

from ultramon.backends.local.event_rows import insert_event, position_of
from ultramon.backends.local.level_marks import is_due, write_mark
from ultramon.backends.local.message_rows import forget
from ultramon.backends.local.route_rows import JournalRows
from ultramon.backends.local.schema import SCHEMA_VERSION, migrate
from ultramon.backends.local.transaction import Transaction
from ultramon.errors import StateCorruptError, StateError, StateSchemaError, StateWriteError
from ultramon.notices.router import route, route_noted
from ultramon.notices.texts import ENDS
from ultramon.system import compact_json
from ultramon.system.files import check_private, make_private_directory
from ultramon.system.ids import random_hex
from ultramon.system.timestamps import format_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence
    from typing import Any, TypeVar

    from ultramon.backends.local.connection import JournalConnection
    from ultramon.backends.local.level_marks import Mark
    from ultramon.state.record import StateRecord

    Found = TypeVar("Found")

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
    """The SQLite file under a state directory. One object serves the threads of one process.

    Args:
        directory: The state directory; it must exist before anything is written.

    Attributes:
        path: The file.
        lock: Keeps the threads of this process apart; a transaction holds it.
    """

    __slots__ = ("_connection", "_directory", "_identity", "_is_prepared", "_pid", "lock", "path")

    # A connection opened before a fork must be neither used nor closed in the child.
    _inherited: list[object] = []  # noqa: RUF012 - shared on purpose

    def __init__(self, directory: str) -> None:
        self.path = os.path.join(directory, JOURNAL)
        self._directory = directory
        self._connection: JournalConnection | None = None
        self._identity: tuple[int, int] | None = None
        self._is_prepared = False
        self._pid = 0
        self.lock = RLock()

    def after_fork(self) -> None:
        """Replace a lock that another thread of the parent may have held."""
        self.lock = RLock()

    def make_directory(self) -> None:
        """Make the state directory where it is missing, and check it.

        Raises:
            StateDirectoryError: It is not safe to use.
        """
        make_private_directory(self._directory)

    def exists(self) -> bool:
        """Return whether anything was ever written; reading makes no journal."""
        return os.path.exists(self.path)

    def close(self) -> None:
        """Close the connection; the next call opens it again."""
        with self.lock:
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

    def _open(self, timeout_seconds: float, *, to_write: bool) -> JournalConnection:
        from ultramon.backends.local.connection import JournalConnection

        is_ours = self._pid == os.getpid()
        if self._connection is not None and not (is_ours and self._identity == self._find()):
            self.close()
        if self._connection is None:
            self._create_private()
            self._identity = self._find()
            self._connection = JournalConnection(
                self.path, timeout=timeout_seconds, isolation_level=None, check_same_thread=False
            )
            self._connection.directory = self._directory
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

    def acquire(self, timeout_seconds: float) -> None:
        """Keep the other threads of this process away until `lock` is released.

        Raises:
            StateWriteError: One of them holds it beyond the timeout.
        """
        if not self.lock.acquire(timeout=timeout_seconds):
            raise StateWriteError(self.path, "is locked by another thread")

    def transaction(self, timeout_seconds: float, kind: str = "IMMEDIATE") -> Transaction:
        """Return a transaction as a ``with`` block.

        Args:
            timeout_seconds: How long to wait for another writer, and for a thread of this process.
            kind: ``IMMEDIATE`` to write; ``DEFERRED`` to read, which brings no older journal up to
                date.
        """
        return Transaction(self, timeout_seconds, kind)

    def begin(self, timeout_seconds: float, kind: str) -> JournalConnection:
        """Begin a transaction, for `Transaction`, which ends it."""
        to_write = kind == "IMMEDIATE"
        connection = self._open(timeout_seconds, to_write=to_write)
        milliseconds = 0 if to_write else int(timeout_seconds * 1000)
        if milliseconds != connection.busy_milliseconds:
            connection.execute(f"PRAGMA busy_timeout = {milliseconds}")
            connection.busy_milliseconds = milliseconds
        if to_write:
            execute_with_retry(connection, "BEGIN IMMEDIATE", timeout_seconds)
        else:
            connection.execute("BEGIN DEFERRED")
        return connection

    def read(self, since_version: int, read: Callable[[JournalConnection], Found]) -> Found | None:
        """Read in a transaction, without bringing an older journal up to date.

        Args:
            since_version: The first version of the journal that has these tables.
            read: What to read.

        Returns:
            None where there is no journal, or an older one.
        """
        if not self.exists():
            return None
        with self.transaction(TOOL_TIMEOUT_SECONDS, "DEFERRED") as connection:
            return None if self.version(connection) < since_version else read(connection)

    def select(self, since_version: int, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query; none where there is no journal, or an older one."""
        return self.read(since_version, lambda db: db.execute(query, arguments).fetchall()) or []

    def change(
        self,
        change: Callable[[JournalConnection], Found],
        timeout_seconds: float = TOOL_TIMEOUT_SECONDS,
    ) -> Found | None:
        """Change what is stored, in a transaction; None where there is no journal."""
        if not self.exists():
            return None
        with self.transaction(timeout_seconds) as connection:
            return change(connection)

    def execute(
        self, statement: str, *arguments: object, within: float = TOOL_TIMEOUT_SECONDS
    ) -> int:
        """Return how many rows a statement changed; ``within`` seconds or not at all."""
        return self.change(lambda rows: rows.execute(statement, arguments).rowcount, within) or 0

    def _quarantine(self) -> str | None:
        """Set an unreadable journal aside as evidence, with its write-ahead log.

        Returns:
            The new path; None when another process has set it aside already, or it can be read
            after all.
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
        """Set a journal aside after an error, unless it can be read; return both as a text.

        Raises:
            StateWriteError: The file system refused.
        """
        with self.lock:
            kept = self._quarantine()
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
        # Held until the marks are right: no thread with more patience may come in between.
        self.acquire(timeout_seconds)
        try:
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
            self._sync_marks(marks, record)
        finally:
            self.lock.release()

    def _sync_marks(self, marks: dict[str, Mark | None], record: StateRecord | None) -> None:
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
            self.write_mark(agent_id, mark)
            with self.transaction(TOOL_TIMEOUT_SECONDS, "DEFERRED") as connection:
                rows = JournalRows(connection)
                mark = rows.mark(rows.registration(agent_id))

    def is_due(self, record: StateRecord) -> bool:
        """Return whether a state may lead to a notice; cheap, and without the database."""
        return is_due(self._directory, record)

    def write_mark(self, agent_id: str, mark: Mark | None) -> None:
        """Have every writer of an agent's state check whether it is due. See `level_marks`.

        Raises:
            StateError: The file system refused.
        """
        write_mark(self._directory, agent_id, mark)

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
        query = "SELECT id, payload FROM events WHERE id > ? ORDER BY id LIMIT ?"
        # The first writer may have made the file and not its tables yet.
        rows = self.select(1, query, position, limit)
        if rows:
            position = rows[-1][0]
        read = [(str(number), _read_event(payload)) for number, payload in rows]
        cursors = [cursor for cursor, event in read if event]
        return [event for _, event in read if event], str(position), cursors

    def mentions(self, agent_ids: Sequence[str]) -> set[str]:
        """Return which agents have events, those without a state too."""
        places = ", ".join("?" * len(agent_ids))
        query = f"SELECT DISTINCT agent_id FROM events WHERE agent_id IN ({places})"
        return {agent_id for (agent_id,) in self.select(1, query, *agent_ids)}

    def prune(self, before: float, agents: Sequence[str] = ()) -> int:
        """Delete events and dead messages older than a time, and what belongs to deleted agents.

        Args:
            before: Epoch seconds.
            agents: Their messages go, whatever their age.

        Returns:
            How many events were deleted.
        """

        def prune(connection: JournalConnection) -> int:
            done = connection.execute(
                "DELETE FROM events WHERE occurred_at < ?", (format_time(before),)
            )
            forget(connection, before, agents)
            return done.rowcount

        deleted = self.change(prune) or 0
        for agent_id in agents:
            self.write_mark(agent_id, None)
        return deleted
